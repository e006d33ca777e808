"""`suffix` with a real model: Qwen2.5-Coder writes what is missing inside a file."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import openai
import pytest
from real_models import CODER, real_model

from surefoot.engine.config import EngineConfig
from surefoot.engine.opening import open_engine
from surefoot.kernels.registry import has_native_module
from surefoot.models.load import load_model
from surefoot.server.launch import assemble
from surefoot.server.settings import Settings

LARGE = "qwen2.5-coder-1.5b-instruct-q4_k_m"

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not has_native_module(), reason="the native module is not built")]

ADD = ("def add(a, b):\n    return ", "\n\n\nprint(add(1, 2))\n")
AREA = ("import math\n\n\ndef area(radius):\n    return math.", " * radius ** 2\n")
COUNT = ("for i in ", ":\n    print(i)  # 0 to 9\n")
GREET = ('def greet(name):\n    return f"Hello, ', '!"\n\n\nprint(greet("Ada"))\n')
SORT = ("    numbers = [3, 1, 2]\n    numbers.", "()\n    assert numbers == [1, 2, 3]\n")


@pytest.fixture(scope="module")
def clients(serve: Any) -> Iterator[Callable[[str], openai.OpenAI]]:
    """A client of a server on the named model; servers are started when first asked for."""
    with contextlib.ExitStack() as stack:

        @functools.cache
        def client(name: str) -> openai.OpenAI:
            path = real_model(name)
            opened = open_engine(path, EngineConfig(kv_memory=64 << 20, context_length=2048, measure_cost=False))
            return stack.enter_context(stack.enter_context(serve(assemble(opened, Settings(), path))).client())

        yield client


def fill(client: openai.OpenAI, before: str | list[int], after: str, **fields: Any) -> Any:
    body: Any = {
        "model": client.models.list().data[0].id,
        "prompt": before,
        "suffix": after,
        "temperature": 0,
        "max_tokens": 24,
        **fields,
    }
    return client.completions.create(**body).choices[0]


@pytest.mark.parametrize(
    ("gap", "middle"), [(ADD, "a + b"), (AREA, "pi"), (COUNT, "range(10)"), (GREET, "{name}"), (SORT, "sort")]
)
def test_the_middle_fits_and_ends(clients: Any, gap: tuple[str, str], middle: str) -> None:
    choice = fill(clients(LARGE), *gap)
    assert (choice.text, choice.finish_reason) == (middle, "stop")


@pytest.mark.parametrize(
    ("gap", "middle"),
    [
        (COUNT, "range(10):\n    print(i)  # 0 to 9\n\nfor i in range(10"),
        (GREET, '{name}!"\n\n\nprint(greet("Bob"))\n\n\nprint(greet("Charlie"))'),
        (AREA, "pi * radius ** 2\n\n\ndef circumference(radius):"),
    ],
)
def test_the_middle_is_that_of_another_server(clients: Any, gap: tuple[str, str], middle: str) -> None:
    """The small model seldom ends in time; llama.cpp's server, given the markers as text, wrote just the same."""
    assert fill(clients(CODER), *gap).text.startswith(middle)


def test_streams_ids_and_text_give_the_same(clients: Any) -> None:
    client, (before, after) = clients(CODER), ADD
    whole = fill(client, before, after)
    ids = load_model(real_model(CODER)).tokenizer.encode_inside(before)
    assert fill(client, ids, after).text == whole.text
    stream = client.completions.create(
        model=CODER, prompt=before, suffix=after, temperature=0, max_tokens=24, stream=True
    )
    assert "".join(chunk.choices[0].text for chunk in stream) == whole.text


def test_markers_in_a_file_are_text() -> None:
    """A file about such models must not end its own prompt."""
    tokenizer = load_model(real_model(CODER)).tokenizer
    roles = tokenizer.fim_ids
    ids = tokenizer.encode_gap("a<|fim_suffix|>b", "c<|fim_middle|>d<|im_end|>")
    assert ids is not None
    assert [token for token in ids if token in tokenizer.special_ids] == [roles["pre"], roles["suf"], roles["mid"]]
    assert ids[0] == roles["pre"] and ids[-1] == roles["mid"]
    assert {roles[role] for role in ("pad", "rep", "sep")} <= tokenizer.end_of_generation_ids
