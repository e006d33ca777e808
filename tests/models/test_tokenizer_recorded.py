"""Tokenizers and templates against what llama.cpp and transformers recorded for the same files. Ids match exactly."""

from __future__ import annotations

import json
import time
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from real_models import real_model

from surefoot.models.chat_template import load_chat_template
from surefoot.models.gguf import GgufFile
from surefoot.models.tokenizer import StreamDecoder, Tokenizer, WholeTexts, load_tokenizer

DATA = Path(__file__).parents[1] / "data"
ORACLES = [
    path.parent
    for path in sorted(DATA.glob("oracle/*/meta.json"))
    if "cases" in json.loads(path.read_text())["tokenizer"]
]
RECORDED = sorted(DATA.glob("real/*.json"))


def by_name(path: Path) -> str:
    return path.stem


@cache
def real_file(recorded: Path) -> GgufFile:
    return GgufFile.open(real_model(recorded.stem))


@cache
def real_tokenizer(recorded: Path) -> Tokenizer:
    return load_tokenizer(real_file(recorded).metadata)


@cache
def small_tokenizer(folder: Path) -> Tokenizer:
    return load_tokenizer(GgufFile.open(folder / "model.gguf").metadata)


def cases(recorded: Path, kind: str) -> list[dict[str, Any]]:
    return json.loads(recorded.read_text())[kind]


def streamed(tokenizer: Tokenizer, ids: list[int]) -> str:
    stream = StreamDecoder(tokenizer, skip_special=False)
    return "".join(stream.feed([token]) for token in ids) + stream.flush()


@pytest.mark.parametrize("folder", ORACLES, ids=by_name)
def test_small_files(folder: Path) -> None:
    tokenizer = load_tokenizer(GgufFile.open(folder / "model.gguf").metadata)
    for case in json.loads((folder / "meta.json").read_text())["tokenizer"]["cases"]:
        assert tokenizer.encode(case["text"], add_special=False, parse_special=True) == case["ids"], case["text"]
        assert tokenizer.decode(case["ids"]) == case["text"]
        assert streamed(tokenizer, case["ids"]) == case["text"]


@pytest.mark.parametrize("folder", ORACLES, ids=by_name)
@given(data=st.data())
def test_tokens_taken_one_by_one_are_the_text_of_all(folder: Path, data: st.DataObject) -> None:
    tokenizer = small_tokenizer(folder)
    tokens = st.integers(0, tokenizer.vocab_size - 1)
    special = sorted(tokenizer.special_ids)
    prompt, ids = data.draw(st.lists(tokens, max_size=4)), data.draw(st.lists(tokens | st.sampled_from(special)))
    visible = frozenset(data.draw(st.lists(st.sampled_from(special), max_size=2)))
    texts = WholeTexts(tokenizer)
    for skip in (True, False):
        whole, single = (
            StreamDecoder(tokenizer, prompt, skip_special=skip, visible_ids=visible, texts=texts) for _ in range(2)
        )
        taken = [single.take(token) for token in ids]
        assert "".join(taken) + single.flush() == whole.feed(ids) + whole.flush()


def test_small_files_were_found() -> None:
    assert len(ORACLES) >= 4
    assert len(RECORDED) == 4


@pytest.mark.slow
@pytest.mark.parametrize("recorded", RECORDED, ids=by_name)
def test_real_files(recorded: Path) -> None:
    tokenizer = real_tokenizer(recorded)
    for case in cases(recorded, "tokenize"):
        assert tokenizer.encode(case["text"], add_special=False, parse_special=True) == case["ids"], case["text"]
        assert tokenizer.decode(case["ids"], skip_special=False) == case["detokenized"]
        assert streamed(tokenizer, case["ids"]) == case["detokenized"]
    for case in cases(recorded, "complete"):
        assert tokenizer.encode(case["prompt"], add_special=True, parse_special=True) == case["prompt_ids"]


@pytest.mark.slow
@pytest.mark.parametrize("recorded", RECORDED, ids=by_name)
def test_loading_is_quick(recorded: Path) -> None:
    metadata = real_file(recorded).metadata
    start = time.process_time()
    load_tokenizer(metadata)
    assert time.process_time() - start < (0.5 if "smollm2" in recorded.stem else 1.5)


@pytest.mark.slow
@pytest.mark.parametrize("recorded", [path for path in RECORDED if cases(path, "chat")], ids=by_name)
def test_real_chat_templates(recorded: Path) -> None:
    tokenizer = real_tokenizer(recorded)
    template = load_chat_template(real_file(recorded).metadata, tokenizer)
    assert template is not None
    for case in cases(recorded, "chat"):
        assert template.render(case["messages"]) == case["prompt"]
        assert tokenizer.encode_prompt(case["prompt"]) == case["prompt_ids"]


@pytest.mark.slow
@pytest.mark.parametrize("recorded", RECORDED, ids=by_name)
def test_recorded_answers_decode_to_recorded_text(recorded: Path) -> None:
    tokenizer = real_tokenizer(recorded)
    for case in cases(recorded, "complete") + cases(recorded, "chat"):
        ids = [step["id"] for step in case["steps"]]
        assert (ids[-1] in tokenizer.end_of_generation_ids) == (case["stop_type"] == "eos")
        stream = StreamDecoder(tokenizer, case["prompt_ids"])
        assert "".join(stream.take(token) for token in ids) + stream.flush() == case["content"]
