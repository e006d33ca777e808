"""Rows that llama.cpp recorded on real files, teacher-forced: the same best token wherever the margin decides, and the
recorded tokens' log-probabilities close. Both sides round activations to 8 bits, in different blocks, so they cannot be
equal (in float32 the reference backend is as far from the record); the bounds are about twice what was measured."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from harness import DATA, ProgramRunner, open_model
from numpy.typing import NDArray
from real_models import real_model

from surefoot.kernels.backend import Backend
from surefoot.kernels.formats import KvType
from surefoot.kernels.registry import create_backend, has_native_module
from surefoot.models.config import Definition

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not has_native_module(), reason="the native module was not built"),
]


@dataclass(frozen=True)
class Bounds:
    """On |ours - recorded| of log-probabilities: of the chosen token over all rows, and a margin that decides."""

    mean: float
    worst: float
    margin: float


FILES = {
    # measured: mean, worst, and the largest recorded margin at which another token was best
    "smollm2-135m-instruct-q4_1": Bounds(0.06, 0.5, 0.5),  # 0.030, 0.26, 0.24
    "gemma3-270m-q4_k_m": Bounds(0.045, 0.6, 0.6),  # 0.022, 0.31, 0.41
    "qwen2.5-coder-0.5b-instruct-q4_k_m": Bounds(0.016, 0.2, 0.2),  # 0.008, 0.09, 0.07
    "qwen2.5-coder-1.5b-instruct-q4_k_m": Bounds(0.017, 0.3, 0.4),  # 0.008, 0.15, 0.24
}


@dataclass(frozen=True)
class Rows:
    """Our log-probabilities [steps, vocabulary] of one recorded continuation, and the record."""

    name: str
    ours: NDArray[np.float64]
    steps: list[dict[str, Any]]

    def disagreements(self) -> list[float]:
        """Of the recorded tokens."""
        return [
            abs(float(row[step["id"]]) - dict(step["top"])[step["id"]])
            for row, step in zip(self.ours, self.steps, strict=True)
        ]

    def wrong(self, margin: float) -> list[tuple[str, int, float]]:
        """Steps whose best token is another although the recorded margin is larger than `margin`."""
        found: list[tuple[str, int, float]] = []
        for index, (row, step) in enumerate(zip(self.ours, self.steps, strict=True)):
            (best, first), (_, second) = step["top"][:2]
            if row.argmax() != best and first - second > margin:
                found.append((self.name, index, first - second))
        return found


def run(backend: Backend, definition: Definition, record: dict[str, Any]) -> Rows:
    """Feeds the prompt and then, in one verify-like step, all recorded tokens but the last."""
    steps = record["steps"]
    runner = ProgramRunner(
        backend, definition.program, kv_type=KvType.F16, positions=1056, max_rows=256, max_logits_rows=128
    )
    prompt = record["prompt_ids"]
    runner.feed(prompt[:-1], want="last")
    logits = runner.feed([prompt[-1], *(step["id"] for step in steps[:-1])], chunks=[96]).astype(np.float64)
    logits -= logits.max(-1, keepdims=True)
    return Rows(record["name"], logits - np.log(np.exp(logits).sum(-1, keepdims=True)), steps)


@pytest.fixture(scope="module", params=FILES)
def recorded(request: pytest.FixtureRequest) -> Iterator[tuple[Bounds, list[Rows]]]:
    path = real_model(request.param)
    record = json.loads((DATA / "real" / f"{request.param}.json").read_text())
    backend = create_backend("cpu")
    definition = open_model(path)
    yield FILES[request.param], [run(backend, definition, part) for part in record["complete"] + record["chat"]]


def test_best_token_wherever_the_margin_decides(recorded: tuple[Bounds, list[Rows]]) -> None:
    bounds, parts = recorded
    assert [row for part in parts for row in part.wrong(bounds.margin)] == []
    agreeing = [
        int(row.argmax()) == step["top"][0][0]
        for part in parts
        for row, step in zip(part.ours, part.steps, strict=True)
    ]
    assert np.mean(agreeing) > 0.95


def test_log_probabilities_of_recorded_tokens(recorded: tuple[Bounds, list[Rows]]) -> None:
    bounds, parts = recorded
    disagreements = [d for part in parts for d in part.disagreements()]
    assert np.mean(disagreements) < bounds.mean
    assert np.max(disagreements) < bounds.worst
