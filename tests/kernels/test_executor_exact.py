"""Rows are exact: a row's bits depend on its own prefix only, not on batch, chunking, threads or instruction set."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from harness import ProgramRunner
from numpy.typing import NDArray
from tiny_programs import SHAPES, VOCABULARY, tiny_program

from surefoot.kernels.cpu import _ops
from surefoot.kernels.cpu.backend import CpuBackend
from surefoot.kernels.formats import KvType
from surefoot.kernels.program import Program

LENGTH = 75
PROGRAMS = {name: tiny_program(shape) for name, shape in SHAPES.items()}
BACKENDS = {(isa, threads): CpuBackend(threads, isa) for isa in _ops.instruction_sets() for threads in (1, 2)}
BEST = _ops.instruction_sets()[0]
IDS = np.random.default_rng(7).integers(0, VOCABULARY, LENGTH).tolist()


def same(got: NDArray[np.float32], expected: NDArray[np.float32]) -> bool:
    """Bit for bit."""
    return got.shape == expected.shape and bool((got.view(np.uint32) == expected.view(np.uint32)).all())


def alone(program: Program, kv_type: KvType, ids: Sequence[int] = IDS) -> NDArray[np.float32]:
    """Logits of every row, one row a step on one thread: what every other way must equal."""
    logits = ProgramRunner(BACKENDS[BEST, 1], program, kv_type=kv_type).feed(ids, chunks=[1])
    assert np.isfinite(logits).all()
    return logits


@pytest.mark.parametrize("kv_type", KvType)
@pytest.mark.parametrize("name", SHAPES)
def test_chunks_threads_and_instruction_sets(name: str, kv_type: KvType) -> None:
    expected = alone(PROGRAMS[name], kv_type)
    for (isa, threads), backend in BACKENDS.items():
        for chunks in ([LENGTH], [16], [7, 31, 1, 2, 33, 9]):
            got = ProgramRunner(backend, PROGRAMS[name], kv_type=kv_type, seed=3).feed(IDS, chunks=chunks)
            assert same(got, expected), (isa, threads, chunks)


@pytest.mark.parametrize("name", SHAPES)
def test_beside_other_sequences(name: str) -> None:
    """In steps of 2 to 17 sequences, each with its own number of rows, the others at positions of their own."""
    program, order = PROGRAMS[name], np.random.default_rng(11)
    expected = alone(program, KvType.F16)
    for neighbours in range(1, 17):
        runner = ProgramRunner(
            BACKENDS[BEST, 1 + neighbours % 2], program, kv_type=KvType.F16, sequences=neighbours + 1, positions=128
        )
        mine, at, rows = neighbours // 2, 0, []
        while at < LENGTH:
            pieces = {s: order.integers(0, VOCABULARY, order.integers(0, 4)).tolist() for s in range(neighbours + 1)}
            pieces = {s: ids for s, ids in pieces.items() if ids and s != mine and runner.lengths[s] < 120}
            pieces[mine] = IDS[at : at + int(order.integers(1, 9))]
            at += len(pieces[mine])
            shuffled = order.permutation(list(pieces)).tolist()
            rows.append(runner.step({s: pieces[s] for s in shuffled})[mine])
        assert same(np.concatenate(rows), expected), neighbours


@pytest.mark.parametrize("name", ["grouped", "windowed", "many_heads", "recurrent", "odd_recurrent"])
@pytest.mark.parametrize("kv_type", [KvType.F16, KvType.Q8_0])
def test_windows_at_every_offset_of_a_block(name: str, kv_type: KvType) -> None:
    """A window of drafts that is rejected in part, at every offset; unused and freed blocks hold NaN throughout."""
    expected = alone(PROGRAMS[name], kv_type)
    for offset in range(32):
        start = 32 + offset
        runner = ProgramRunner(BACKENDS[BEST, 2], PROGRAMS[name], kv_type=kv_type, seed=offset)
        got = [runner.feed(IDS[:start], chunks=[start])]
        wrong = [(token + 1) % VOCABULARY for token in IDS[start + 3 : start + 9]]
        got.append(runner.step({0: IDS[start : start + 3] + wrong}, commit=False)[0][:3])
        runner.rewind(start + 3)
        got.append(runner.feed(IDS[start + 3 :], chunks=[5]))
        assert same(np.concatenate(got), expected), offset


def test_long_contexts_split_alike() -> None:
    """Past several splits of the key range, with one KV head (where threads share a sequence) and with a window."""
    ids = np.random.default_rng(5).integers(0, VOCABULARY, 900).tolist()
    program = PROGRAMS["windowed"]
    runners = [
        ProgramRunner(BACKENDS[isa, threads], program, kv_type=KvType.F16, positions=960, max_rows=700)
        for isa, threads in ((BEST, 1), (BEST, 2), (_ops.instruction_sets()[-1], 2))
    ]
    whole = [
        runner.feed(ids[:700], chunks=chunks) for runner, chunks in zip(runners, ([512], [100], [700]), strict=False)
    ]
    steps = [
        runner.feed(ids[700:780], chunks=chunks) for runner, chunks in zip(runners, ([1], [9], [80]), strict=False)
    ]
    for part in (whole, steps):
        assert np.isfinite(part[0]).all()
        assert all(same(other, part[0]) for other in part[1:])


def test_programs_share_packed_weights() -> None:
    """Two executors of one program read one packed copy, and give the same bits."""
    backend = CpuBackend(2)
    first, second = (ProgramRunner(backend, PROGRAMS["grouped"]) for _ in range(2))
    assert same(first.feed(IDS), second.feed(IDS, chunks=[10]))
