"""Streams of tokens: the same text however tokens are grouped, never half a character, nothing of the prompt."""

from __future__ import annotations

import time
from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from surefoot.models.gguf import Metadata
from surefoot.models.tokenizer import StreamDecoder, Tokenizer, load_tokenizer


def bytes_and_words(*, space_prefix: bool) -> Tokenizer:
    """Ids 3 to 258 are the bytes, so any byte string has its tokens; then a few words."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁Hello", "▁world", "é", "🌶"]
    types = [2, 3, 3] + [6] * 256 + [1] * 4
    values = {"model": "llama", "tokens": tokens, "token_type": np.array(types, np.int32)}
    values |= {"scores": np.zeros(len(tokens), np.float32), "add_space_prefix": space_prefix}
    return load_tokenizer(Metadata("test.gguf", {f"tokenizer.ggml.{key}": value for key, value in values.items()}))


TOKENIZER = bytes_and_words(space_prefix=False)
PREFIXED = bytes_and_words(space_prefix=True)
PEPPER = "🌶".encode()

sequences = st.lists(
    st.integers(0, TOKENIZER.vocab_size - 1)
    | st.sampled_from([3 + byte for byte in b"\xf0\x9f\x8c\xb6\xe2\x82\xac\xc3\xa9\xed\xa0\x80"]),
    max_size=30,
)


def byte_ids(data: bytes) -> list[int]:
    return [3 + byte for byte in data]


def grouped(ids: list[int], cuts: list[int]) -> list[list[int]]:
    borders = sorted({0, len(ids), *(cut % (len(ids) + 1) for cut in cuts)})
    return [ids[begin:end] for begin, end in pairwise(borders)]


@given(sequences, st.lists(st.integers(0, 99), max_size=8), st.booleans(), st.booleans())
def test_equals_the_full_text_however_grouped(ids: list[int], cuts: list[int], prefixed: bool, skip: bool) -> None:
    tokenizer = PREFIXED if prefixed else TOKENIZER
    stream = StreamDecoder(tokenizer, skip_special=skip)
    pieces = [stream.feed(group) for group in grouped(ids, cuts)] + [stream.flush()]
    assert "".join(pieces) == tokenizer.decode(ids, skip_special=skip)


@given(st.text(max_size=20), st.integers(0, 80))
def test_valid_text_is_never_given_out_in_halves(text: str, at: int) -> None:
    data = text.encode()
    stream = StreamDecoder(TOKENIZER)
    given_out = ""
    for count, token in enumerate(byte_ids(data), 1):
        given_out += stream.feed([token])
        assert given_out == data[:count].decode("utf-8", "ignore")
    assert stream.flush() == ""


def test_half_a_character_at_the_end_is_one_replacement() -> None:
    stream = StreamDecoder(TOKENIZER)
    assert stream.feed(byte_ids(b"a" + PEPPER[:3])) == "a"
    assert stream.flush() == "\ufffd"


def test_half_a_character_in_the_middle_is_replaced_when_it_is_certain() -> None:
    stream = StreamDecoder(TOKENIZER)
    assert stream.feed(byte_ids(PEPPER[:2])) == ""
    assert stream.feed(byte_ids(b"a")) == "\ufffda"


@given(st.text(max_size=12), st.text(max_size=12), st.integers(0, 3), st.booleans())
def test_only_text_beyond_the_prompt_is_given_out(prompt: str, answer: str, part: int, completes: bool) -> None:
    """The prompt ends inside a character (or not, part 0); the answer's first bytes complete it or begin another."""
    stream = StreamDecoder(TOKENIZER, byte_ids(prompt.encode() + PEPPER[:part]))
    rest = PEPPER[part:] if completes else b""
    given_out = "".join(stream.feed([token]) for token in byte_ids(rest + answer.encode())) + stream.flush()
    assert given_out == ("🌶" if completes else "") + answer


def test_a_prompt_that_ends_inside_a_character_and_no_answer() -> None:
    stream = StreamDecoder(TOKENIZER, byte_ids(b"Hello world " + PEPPER[:3]))
    assert stream.feed([]) == ""
    assert stream.flush() == ""


def test_an_answer_that_continues_a_character_but_does_not_end_it() -> None:
    stream = StreamDecoder(TOKENIZER, byte_ids(PEPPER[:2]))
    assert stream.feed(byte_ids(PEPPER[2:3])) == ""
    assert stream.feed(byte_ids(b"x")) == "\ufffdx"


def test_special_tokens() -> None:
    hello, end = TOKENIZER.vocabulary.ids["▁Hello"], 2
    assert StreamDecoder(TOKENIZER).feed([hello, end]) == " Hello"
    assert StreamDecoder(TOKENIZER, skip_special=False).feed([hello, end]) == " Hello</s>"
    assert StreamDecoder(TOKENIZER, visible_ids=frozenset({end})).feed([1, hello, end]) == " Hello</s>"


def test_the_space_of_the_first_word() -> None:
    hello, world = PREFIXED.vocabulary.ids["▁Hello"], PREFIXED.vocabulary.ids["▁world"]
    assert StreamDecoder(PREFIXED, [1]).feed([hello, world]) == "Hello world"
    assert StreamDecoder(PREFIXED, [1, hello]).feed([world, hello]) == " world Hello"
    stream = StreamDecoder(PREFIXED, [1])
    assert stream.feed([]) + stream.feed([1]) + stream.feed([hello]) + stream.feed([world]) == "Hello world"


def test_work_per_token_is_constant() -> None:
    prompt = byte_ids(b"x" * 100_000)
    start = time.process_time()
    for _ in range(1000):
        StreamDecoder(TOKENIZER, prompt)
    stream = StreamDecoder(TOKENIZER, prompt)
    for _ in range(20_000):
        stream.feed([3 + 0x41])
    assert time.process_time() - start < 2.0
