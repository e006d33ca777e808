"""Tokenizers on small vocabularies made here: rules, refusals and properties. No model file."""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from surefoot.kernels.errors import ModelFileError
from surefoot.models.gguf import Metadata
from surefoot.models.tokenizer import Tokenizer, load_tokenizer
from surefoot.models.tokenizer.byte_alphabet import text_to_bytes
from surefoot.models.tokenizer.specials import SpecialSplitter
from surefoot.models.tokenizer.vocabulary import TokenType

NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
ALPHABET = sorted((chr(c) for c in range(0x21, 0x144) if c not in range(0x7F, 0xA1) and c != 0xAD), key=ord)
any_text = st.text(st.characters(exclude_categories=()), max_size=60)


def metadata(**values: Any) -> Metadata:
    return Metadata("test.gguf", {f"tokenizer.ggml.{key}": value for key, value in values.items()})


def byte_level(merges: list[str] = [], extra: dict[str, int] = {}, **values: Any) -> Tokenizer:  # noqa: B006
    tokens = ALPHABET + [merge.replace(" ", "") for merge in merges] + list(extra)
    types = [NORMAL] * (len(tokens) - len(extra)) + list(extra.values())
    values = {"model": "gpt2", "pre": "gpt-2", "merges": merges, **values}
    return load_tokenizer(metadata(tokens=tokens, token_type=np.array(types, np.int32), **values))


def sentence_piece(pieces: dict[str, float], extra: dict[str, int] = {}, **values: Any) -> Tokenizer:  # noqa: B006
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces, *extra]
    types = [UNKNOWN, CONTROL, CONTROL] + [BYTE] * 256 + [NORMAL] * len(pieces) + list(extra.values())
    scores = [0.0] * 259 + list(pieces.values()) + [0.0] * len(extra)
    return load_tokenizer(
        metadata(
            model="llama",
            tokens=tokens,
            token_type=np.array(types, np.int32),
            scores=np.array(scores, np.float32),
            **values,
        )
    )


def texts(tokenizer: Tokenizer, text: str, *, add_special: bool = False, parse_special: bool = False) -> list[str]:
    ids = tokenizer.encode(text, add_special=add_special, parse_special=parse_special)
    return [tokenizer.vocabulary.texts[token] for token in ids]


# Byte-level BPE


def test_the_alphabet_covers_every_byte_once() -> None:
    assert sorted(text_to_bytes("".join(ALPHABET))) == list(range(256))
    assert text_to_bytes("Ġ→") == "Ġ→".encode()  # not of the alphabet: stands for itself


def test_merges_by_rank() -> None:
    tokenizer = byte_level(["b c", "a b", "ab c"])
    assert texts(tokenizer, "abc") == ["a", "bc"]
    assert texts(tokenizer, "ab abc") == ["ab", "Ġ", "a", "bc"]


def test_ignore_merges_takes_a_whole_piece() -> None:
    extra = {"Ġxyz": NORMAL, "<|begin|>": CONTROL}
    assert texts(byte_level(extra=extra, pre="llama-bpe", bos_token_id=len(ALPHABET) + 1), " xyz") == ["Ġxyz"]
    assert texts(byte_level(extra=extra), " xyz") == ["Ġ", "x", "y", "z"]


@given(any_text)
def test_byte_level_text_survives(text: str) -> None:
    tokenizer = BYTE_LEVEL
    ids = tokenizer.encode(text, add_special=False, parse_special=False)
    expected = "".join("\ufffd" if "\ud800" <= character <= "\udfff" else character for character in text)
    assert tokenizer.decode(ids) == expected
    assert b"".join(map(tokenizer.token_bytes, ids)) == expected.encode()
    assert not tokenizer.special_ids.intersection(ids)


BYTE_LEVEL = byte_level(["Ġ t", "Ġt h", "Ã ©", "< |", "<| e"], {"<|e|>": CONTROL, "<|tool|>": USER, "gone": UNUSED})


# SentencePiece-style merging


def test_best_score_first_then_leftmost() -> None:
    tokenizer = sentence_piece({"a": -9, "b": -9, "ab": -2, "ba": -1, "aa": -3}, add_space_prefix=False)
    assert texts(tokenizer, "aba") == ["a", "ba"]
    assert texts(tokenizer, "aaa") == ["aa", "a"]
    tie = sentence_piece({"a": -9, "b": -9, "ab": -1, "ba": -1}, add_space_prefix=False)
    assert texts(tie, "aba") == ["ab", "a"]
    assert texts(tie, "bab") == ["ba", "b"]


def test_unknown_characters_become_bytes() -> None:
    tokenizer = sentence_piece({"▁": -1, "a": -1}, add_space_prefix=False)
    assert texts(tokenizer, "aé\n") == ["a", "<0xC3>", "<0xA9>", "<0x0A>"]
    assert tokenizer.decode(tokenizer.encode("aé\n", add_special=False, parse_special=False)) == "aé\n"


def test_a_space_goes_before_the_first_word_and_after_special_tokens() -> None:
    tokenizer = sentence_piece({"▁": -1, "a": -1, "▁a": -1})
    assert texts(tokenizer, "a", add_special=True) == ["<s>", "▁a"]
    assert texts(tokenizer, "a</s>a", parse_special=True) == ["▁a", "</s>", "▁a"]
    assert tokenizer.decode(tokenizer.encode("a a", add_special=True, parse_special=False)) == "a a"
    assert tokenizer.decode(tokenizer.encode(" a", add_special=True, parse_special=False)) == " a"
    assert texts(tokenizer, "", add_special=True) == ["<s>"]


def reference_merge(tokenizer: Tokenizer, scores: dict[str, float], text: str) -> list[str]:
    """The definition, word for word: again and again, of all neighbours the best, of equals the leftmost."""
    symbols = list(text.replace(" ", "▁"))
    while True:
        pairs = [(-scores[a + b], i) for i, (a, b) in enumerate(pairwise(symbols)) if a + b in scores]
        if not pairs:
            break
        at = min(pairs)[1]
        symbols[at : at + 2] = ["".join(symbols[at : at + 2])]
    return [name for s in symbols for name in ([s] if s in scores else [f"<0x{b:02X}>" for b in s.encode()])]


words = st.text("ab▁", min_size=1, max_size=4)


@given(st.dictionaries(words, st.integers(-4, 0).map(float), max_size=25), st.text("abé ", max_size=40))
def test_merging_is_what_the_definition_says(scores: dict[str, float], text: str) -> None:
    tokenizer = sentence_piece(scores, add_space_prefix=False)
    for _ in range(2):  # the second time from remembered words
        assert texts(tokenizer, text) == reference_merge(tokenizer, scores, text)


@given(any_text)
def test_sentence_piece_text_survives(text: str) -> None:
    ids = SPIECE.encode(text, add_special=True, parse_special=False)
    expected = "".join("\ufffd" if "\ud800" <= character <= "\udfff" else character for character in text)
    assert SPIECE.decode(ids) == expected.replace("▁", " ")
    assert not SPIECE.special_ids.intersection(ids[1:])


SPIECE = sentence_piece({"▁": -1, "▁t": -2, "t": -3, "<": -4, "s": -4, ">": -4, "<s": -5, "/s": -6}, {"<x>": USER})


def test_merging_long_text_without_spaces_is_not_quadratic() -> None:
    tokenizer = sentence_piece({"a": -3, "aa": -2, "aaaa": -1}, add_space_prefix=False)
    assert len(tokenizer.encode("a" * 100_000, add_special=False, parse_special=False)) == 25_000


def test_a_vocabulary_without_bytes_uses_the_unknown_token() -> None:
    tokenizer = load_tokenizer(
        metadata(
            model="llama",
            tokens=["<unk>", "<s>", "</s>", "a"],
            token_type=np.array([UNKNOWN, CONTROL, CONTROL, NORMAL], np.int32),
            scores=np.zeros(4, np.float32),
            add_space_prefix=False,
        )
    )
    assert tokenizer.encode("aé", add_special=False, parse_special=False) == [3, 0]


# Gemma 4


def raw_text(pieces: list[str], merges: list[str], extra: dict[str, int]) -> Tokenizer:
    tokens = ["<bos>", *pieces, *extra, *(f"<0x{byte:02X}>" for byte in range(256))]
    types = [CONTROL] + [NORMAL] * len(pieces) + list(extra.values()) + [BYTE] * 256
    return load_tokenizer(
        metadata(model="gemma4", tokens=tokens, token_type=np.array(types, np.int32), merges=merges, bos_token_id=0)
    )


def test_raw_text_bpe() -> None:
    tokenizer = raw_text(["a", "▁", "b", "▁b", "\n", "\n\n"], ["▁ b"], {})
    assert texts(tokenizer, "a b\n\na\n\n\né", add_special=True) == (
        ["<bos>", "a", "▁b", "\n\n", "a", "\n", "\n", "\n", "<0xC3>", "<0xA9>"]
    )
    assert tokenizer.decode(tokenizer.encode("a b\n\né", add_special=True, parse_special=True)) == "a b\n\né"


# Special tokens


def test_control_tokens_come_only_from_parsed_text() -> None:
    tokenizer = byte_level(extra={"<|e|>": CONTROL, "<|tool|>": USER, "<|e": USER})
    assert texts(tokenizer, "a<|e|>b", parse_special=True) == ["a", "<|e|>", "b"]
    assert texts(tokenizer, "a<|e|>b") == ["a", "<|e", "|", ">", "b"]
    assert texts(tokenizer, "<|tool|>") == ["<|tool|>"]


def test_a_merge_into_a_control_token_is_left_out() -> None:
    tokenizer = raw_text(["<", "/", "s", ">", "</", "</s"], ["< /", "</ s", "</s >"], {"</s>": CONTROL})
    assert texts(tokenizer, "</s>") == ["</s", ">"]
    assert texts(tokenizer, "</s>", parse_special=True) == ["</s>"]


@given(st.text("ab<|>", max_size=30), st.lists(st.text("ab<|>", min_size=1, max_size=6), max_size=6))
def test_splitting_is_leftmost_then_longest(text: str, specials: list[str]) -> None:
    parts = list(SpecialSplitter((special, index) for index, special in enumerate(specials)).split(text))
    expected: list[str | int] = []
    at = 0
    while at < len(text):
        found = max((special for special in specials if text.startswith(special, at)), key=len, default=None)
        if found is not None:
            expected.append(specials.index(found))
            at += len(found)
        elif expected and isinstance(expected[-1], str):
            expected[-1] += text[at]
            at += 1
        else:
            expected.append(text[at])
            at += 1
    assert parts == expected


def test_what_is_added_around_a_text() -> None:
    extra = {"<s>": CONTROL, "</e>": CONTROL}
    begin = len(ALPHABET)
    plain = byte_level(extra=extra, bos_token_id=begin, eos_token_id=begin + 1)
    both = byte_level(extra=extra, bos_token_id=begin, eos_token_id=begin + 1, add_bos_token=True, add_eos_token=True)
    assert texts(plain, "a", add_special=True) == ["a"]
    assert texts(both, "a", add_special=True) == ["<s>", "a", "</e>"]
    assert texts(both, "a") == ["a"]
    template = [both.vocabulary.texts[token] for token in both.encode_prompt("<s>a")]
    assert template == ["<s>", "a", "</e>"]
    assert texts(both, "<s>a", add_special=True, parse_special=True) == ["<s>", "<s>", "a", "</e>"]


def test_decoding_special_tokens() -> None:
    tokenizer = byte_level(extra={"<|e|>": CONTROL, "<think>": USER, "[PAD0]": UNUSED})
    ids = [*tokenizer.encode("a<|e|><think>", add_special=False, parse_special=True), len(ALPHABET) + 2]
    assert tokenizer.decode(ids) == "a<think>"
    assert tokenizer.decode(ids, skip_special=False) == "a<|e|><think>"
    assert tokenizer.token_bytes(len(ALPHABET)) == b""
    assert tokenizer.token_bytes(len(ALPHABET), special=True) == b"<|e|>"


def test_threads_agree() -> None:
    text = "the quick é <|e|> fox " * 50
    for tokenizer in (BYTE_LEVEL, SPIECE):
        alone = tokenizer.encode(text, add_special=True, parse_special=True)
        with ThreadPoolExecutor(4) as pool:
            jobs = [pool.submit(tokenizer.encode, text, add_special=True, parse_special=True) for _ in range(20)]
            assert all(job.result() == alone for job in jobs)


# End of generation


def end_texts(tokenizer: Tokenizer) -> set[str]:
    return {tokenizer.vocabulary.texts[token] for token in tokenizer.end_of_generation_ids}


def test_ends_are_named_or_known_by_their_text() -> None:
    extra = {
        "<|im_end|>": CONTROL,
        "<|endoftext|>": CONTROL,
        "<|done|>": CONTROL,
        "<|fim_pad|>": CONTROL,
        "<|x|>": CONTROL,
    }
    tokenizer = byte_level(extra=extra, eos_token_id=len(ALPHABET) + 2)
    assert end_texts(tokenizer) == {"<|im_end|>", "<|endoftext|>", "<|done|>", "<|fim_pad|>"}
    assert tokenizer.fim_ids == {"pad": len(ALPHABET) + 3}
    assert tokenizer.eos_id == len(ALPHABET) + 2


def test_an_end_marker_with_a_wrong_type_is_made_a_control_token() -> None:
    tokenizer = byte_level(extra={"<|eot_id|>": USER})
    assert end_texts(tokenizer) == {"<|eot_id|>"}
    assert tokenizer.special_ids == {len(ALPHABET)}


def test_ordinary_text_is_no_marker() -> None:
    merges = ["< /", "</ s", "</s >", "< e", "<e o", "<eo s", "<eos >"]
    tokenizer = byte_level(merges)
    assert end_texts(tokenizer) == set()
    assert tokenizer.special_ids == set()
    assert tokenizer.decode(tokenizer.encode("</s><eos>", add_special=False, parse_special=True)) == "</s><eos>"
    assert end_texts(byte_level(extra={"</s>": CONTROL})) == {"</s>"}
    assert end_texts(byte_level(extra={"</s>": USER})) == set()


def test_channel_formats_end_with_the_answer_not_with_the_message() -> None:
    names = ["<|return|>", "<|call|>", "<|end|>", "<|channel|>"]
    tokenizer = byte_level(extra=dict.fromkeys(names, CONTROL))
    assert end_texts(tokenizer) == {"<|return|>", "<|call|>"}
    shown = tokenizer.encode("<|channel|>x<|end|>", add_special=False, parse_special=True)
    assert tokenizer.decode(shown) == "<|channel|>x<|end|>"


# Refusals


@pytest.mark.parametrize(
    ("changes", "subject", "words"),
    [
        ({"model": "t5"}, "model", "'t5' is not implemented"),
        ({"model": None}, "model", "missing"),
        ({"pre": "no-such"}, "pre", "'no-such' is not implemented"),
        ({"tokens": None}, "tokens", "missing"),
        ({"tokens": []}, "tokens", "empty"),
        ({"token_type": np.ones(3, np.int32)}, "token_type", "for each of"),
        ({"token_type": np.ones(300, np.float32)}, "token_type", "integer"),
        ({"token_type": np.full(300, BYTE, np.int32)}, "tokens", "byte token 0"),
        ({"merges": None}, "merges", "missing"),
        ({"merges": ["a zz"]}, "merges", "merge 0, 'a zz'"),
        ({"merges": ["ab"]}, "merges", "merge 0, 'ab'"),
        ({"merges": [""]}, "merges", "merge 0, ''"),
        ({"add_bos_token": True}, "add_bos_token", "no bos_token_id"),
        ({"add_sep_token": True}, "add_sep_token", "not implemented"),
        ({"suppress_tokens": np.ones(1, np.float32)}, "suppress_tokens", "token ids"),
        ({"eos_token_id": "x"}, "eos_token_id", "integer"),
    ],
)
def test_refusals_name_the_key(changes: dict[str, Any], subject: str, words: str) -> None:
    values = {"model": "gpt2", "pre": "gpt-2", "tokens": [*ALPHABET, "ab"], "merges": ["a b"], **changes}
    with pytest.raises(ModelFileError) as caught:
        load_tokenizer(metadata(**{key: value for key, value in values.items() if value is not None}))
    assert caught.value.subject == f"tokenizer.ggml.{subject}"
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "subject"),
    [({"scores": None}, "scores"), ({"scores": np.zeros(2, np.float32)}, "scores"), ({"drop_bytes": True}, "tokens")],
)
def test_sentence_piece_refusals(changes: dict[str, Any], subject: str) -> None:
    tokens = [
        "<unk>",
        "<s>",
        "</s>",
        "a",
        *(f"<0x{byte:02X}>" for byte in range(16 if "drop_bytes" in changes else 256)),
    ]
    values = {"model": "llama", "tokens": tokens, "scores": np.zeros(len(tokens), np.float32), **changes}
    values.pop("drop_bytes", None)
    with pytest.raises(ModelFileError) as caught:
        load_tokenizer(metadata(**{key: value for key, value in values.items() if value is not None}))
    assert caught.value.subject == f"tokenizer.ggml.{subject}"


def test_odd_but_usable_files(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        tokenizer = load_tokenizer(
            metadata(
                model="gpt2", tokens=[*ALPHABET, "", "a"], merges=[], eos_token_id=10**6, suppress_tokens=np.array([1])
            )
        )
    log = caplog.text
    assert "names no pre-tokenizer" in log and "appear twice" in log and "outside the vocabulary" in log
    assert tokenizer.eos_id is None
    assert tokenizer.vocabulary.suppressed_ids == (1,)
    assert tokenizer.encode("a", add_special=False, parse_special=False) == [ALPHABET.index("a")]
    assert tokenizer.decode([len(ALPHABET) + 1]) == "a"


def test_bytes_without_a_token_are_left_out_and_named(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        tokenizer = load_tokenizer(metadata(model="gpt2", pre="gpt-2", tokens=ALPHABET[1:], merges=[]))
    assert "left out of prompts: 0x21" in caplog.text
    assert texts(tokenizer, "a!b") == ["a", "b"]


def test_types_beyond_the_known_ones_are_no_text() -> None:
    tokenizer = byte_level(extra={"odd": 99})
    assert tokenizer.decode([len(ALPHABET)]) == ""
    assert tokenizer.vocabulary.types[-1] == TokenType.UNDEFINED
