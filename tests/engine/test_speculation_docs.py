"""The example in docs/speculation.md runs as it stands there, through the real engine, and changes no token."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine_drive import Answer, Drive, params
from harness import ORACLE

from surefoot.engine.speculation.policy import SpeculationPolicy
from surefoot.engine.speculation.registry import Declined, Entry, Registry, Resources
from surefoot.kernels.registry import create_backend, has_native_module
from surefoot.models.load import load_model

pytestmark = pytest.mark.skipif(not has_native_module(), reason="the native module is not built")

DOCS = Path(__file__).parents[2] / "docs" / "speculation.md"
PROMPT = list(range(20, 60))


@cache
def example() -> dict[str, Any]:
    (code,) = re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(code, str(DOCS), "exec"), names)
    return names


def drive(policy: SpeculationPolicy) -> Drive:
    model = load_model(ORACLE / "llama" / "model.gguf")
    return Drive(model, create_backend("cpu", 1), context_length=256, kv_memory=24 << 20, speculation=policy)


def run(engine: Drive) -> Answer:
    return engine.one(PROMPT, params(max_tokens=48, seed=2, temperature=0.8, num_logprobs=2, ignore_eos=True))


def with_heads(answer: list[int], wrong_every: int) -> tuple[Drive, list[int]]:
    """An engine whose Medusa heads know the answer: they recognise a hidden row by when they are asked."""
    engine = drive(SpeculationPolicy(governor="off"))
    widths: list[int] = []

    def heads(row: np.ndarray) -> np.ndarray:
        widths.append(len(row))
        (request,) = engine.core.scheduler.running
        emitted = len(request.tokens) - request.num_prompt
        table = np.full((4, engine.core.session.arming.target.vocab_size), 1e-4)
        for distance, token in enumerate(answer[emitted : emitted + 4]):
            table[distance, token + (len(widths) % wrong_every == 0)] = 0.9
        return table

    arming = engine.core.session.arming
    arming.registry = Registry().extended("medusa", Entry(example()["create"]))
    arming._resources = Resources(options={"medusa_heads": heads})
    engine.core.session.change({"type": "medusa"})
    assert arming.declined is None
    return engine, widths


def test_the_example_runs_and_changes_no_token() -> None:
    plain = run(drive(SpeculationPolicy(enabled=False)))
    engine, widths = with_heads(plain.token_ids, wrong_every=3)
    answer = run(engine)
    assert (answer.token_ids, answer.draws) == (plain.token_ids, plain.draws)
    counts = engine.core.session.counts
    assert counts.no_draft["no hidden row yet"] == 1
    assert 10 < counts.accepted["medusa"] < counts.drafted["medusa"]
    assert set(widths) == {engine.core.session.arming.target.hidden_size}  # type: ignore[attr-defined]


def test_it_declines_with_a_reason() -> None:
    target = drive(SpeculationPolicy()).core.session.arming.target
    assert example()["create"](target, Resources()) == Declined("no Medusa heads were given for this model")
