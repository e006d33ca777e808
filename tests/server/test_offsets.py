"""Offsets and echoes on tokenizers that put spaces and special tokens before a text."""

from __future__ import annotations

from functools import cache

import pytest
from harness import ORACLE
from hypothesis import given
from hypothesis import strategies as st

from surefoot.engine.request import Draw, Finish, FinishReason, Output
from surefoot.models.load import load_model
from surefoot.models.tokenizer import StreamDecoder, Tokenizer
from surefoot.server.offsets import AnswerOffsets, Echo
from surefoot.server.prompts import Prompt


@cache
def tokenizer(model: str) -> Tokenizer:
    return load_model(ORACLE / model / "model.gguf").tokenizer


@pytest.mark.parametrize("model", ["llama", "gemma3", "qwen3", "qwen35"])
@given(text=st.text(st.sampled_from("ab é猫🌶\n"), max_size=8), more=st.text(max_size=6), data=st.data())
def test_an_offset_is_where_the_tokens_text_begins(model: str, text: str, more: str, data: st.DataObject) -> None:
    """Any cut of any ids into prompt and answer: decoding up to a token gives the text up to its offset."""
    own = tokenizer(model)
    ids = own.encode(text + more, add_special=data.draw(st.booleans()), parse_special=False)
    cut = data.draw(st.integers(0, len(ids)))
    prompt, answer = ids[:cut], ids[cut:]
    draws = [Draw(token_id) for token_id in answer]
    stream = StreamDecoder(own, prompt)
    seen, whole = [0], ""
    for token_id in answer:
        whole += stream.feed((token_id,))
        seen.append(len(whole))
    tokens = AnswerOffsets(own, prompt, 0).judged(answer, draws)
    assert [token.offset for token in tokens] == seen[:-1]
    if prompt:
        echo = Echo(own, Prompt(prompt, None))
        finish = Finish(FinishReason.LENGTH)
        shown = echo.text + echo.joint(Output(token_ids=answer, finish=finish)) + whole + stream.flush()
        assert shown == own.decode(ids, skip_special=False) or set(answer) & own.special_ids
        assert [token.offset for token in echo.judged([None, *map(Draw, prompt[1:])])][:1] == [0]


@pytest.mark.parametrize("model", ["llama", "gemma3", "qwen3", "qwen35"])
@pytest.mark.parametrize("text", ["Hello world", " Hello", "猫 sat", ""])
def test_a_text_is_echoed_as_it_was_sent(model: str, text: str) -> None:
    own = tokenizer(model)
    ids = own.encode(text, add_special=True, parse_special=True)
    if not ids:
        return
    echo = Echo(own, Prompt(ids, text))
    assert echo.text == text
    offsets = [token.offset for token in echo.judged([None] * len(ids))]
    assert offsets == sorted(offsets) and offsets[0] == 0 and offsets[-1] <= len(text)
    words = [own.token_bytes(token_id, special=False).decode(errors="replace") for token_id in ids]
    for offset, word in zip(offsets, words, strict=True):
        if word.strip() and "\ufffd" not in word:
            assert text[offset:].lstrip(" ").startswith(word.strip())
