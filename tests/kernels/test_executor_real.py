"""Exact rows on real weights: batches, chunks, threads, instruction sets and KV types on a real file."""

from __future__ import annotations

import json
from collections.abc import Iterator

import numpy as np
import pytest
from harness import DATA, ProgramRunner, open_model
from numpy.typing import NDArray
from real_models import real_model

from surefoot.kernels.cpu import _ops
from surefoot.kernels.cpu.backend import CpuBackend
from surefoot.kernels.formats import KvType
from surefoot.models.config import Definition

pytestmark = pytest.mark.slow
FILES = ["smollm2-135m-instruct-q4_1", "gemma3-270m-q4_k_m", "qwen2.5-coder-0.5b-instruct-q4_k_m"]
LENGTH = 80


@pytest.fixture(scope="module", params=FILES)
def model(request: pytest.FixtureRequest) -> Iterator[tuple[Definition, list[int]]]:
    """A real file's program, and token ids of real text."""
    path = real_model(request.param)
    record = json.loads((DATA / "real" / f"{request.param}.json").read_text())
    ids = [token for part in record["complete"] + record["chat"] for token in part["prompt_ids"]]
    yield open_model(path), ids[:LENGTH]


def bits(logits: NDArray[np.float32]) -> bytes:
    assert np.isfinite(logits).all()
    return logits.tobytes()


@pytest.mark.parametrize("kv_type", KvType)
def test_chunks_threads_and_instruction_sets(model: tuple[Definition, list[int]], kv_type: KvType) -> None:
    definition, ids = model
    expected: bytes | None = None
    for isa in _ops.instruction_sets():
        if isa == "portable" and (kv_type is not KvType.F16 or definition.config.hidden_size > 640):
            continue  # minutes, for code that the tiny programs run with every type
        for threads in (1, 2):
            backend = CpuBackend(threads, isa)
            for chunks in ([16], [LENGTH], [33, 1, 5]) if isa != "portable" else ([LENGTH],):
                runner = ProgramRunner(backend, definition.program, kv_type=kv_type, positions=96, max_rows=LENGTH)
                got = bits(runner.feed(ids, chunks=chunks))
                expected = expected or got
                assert got == expected, (isa, threads, chunks)


def test_beside_other_sequences(model: tuple[Definition, list[int]]) -> None:
    """The first rows alone, one by one, against the same rows in steps of 2 to 17 rows of as many sequences."""
    definition, ids = model
    backend = CpuBackend(2)
    alone = ProgramRunner(backend, definition.program, kv_type=KvType.F16, positions=64, max_rows=32)
    expected = [bits(alone.step({0: [token]})[0]) for token in ids[:17]]
    crowd = ProgramRunner(backend, definition.program, kv_type=KvType.F16, sequences=17, positions=64, max_rows=32)
    for at in range(16):
        pieces = {0: [ids[at]]} | {other: [ids[-other - at]] for other in range(1, at + 2)}
        assert bits(crowd.step(pieces)[0]) == expected[at], at
