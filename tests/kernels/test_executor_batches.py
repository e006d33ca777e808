"""Batches that break the protocol are refused and touch nothing; cancelling ends a step; inputs and outputs."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Callable

import numpy as np
import pytest
from harness import ProgramRunner
from tiny_programs import HIDDEN, SHAPES, VOCABULARY, Shape, tiny_program

from surefoot.kernels.backend import Limits, RowHandle, StepBatch
from surefoot.kernels.cpu.backend import CpuBackend
from surefoot.kernels.errors import ConfigError, StepCancelled, StepError
from surefoot.kernels.formats import KvType, WeightType
from surefoot.kernels.program import Buffer, KvGroup, Linear, Program, Rows, SelectLogitsRows, Weight

Change = Callable[[StepBatch], None]


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def good_batch() -> StepBatch:
    return StepBatch(ints(1, 2, 3, 4), ints(0, 1, 2, 0), ints(0, 3, 4), ints(0, 1), ints(0, 3))


def put(field: str, *values: int) -> Change:
    return lambda batch: setattr(batch, field, ints(*values))


FAULTS: dict[str, Change] = {
    "no token": put("token_ids", 1, 2, VOCABULARY, 4),
    "no token -1": put("token_ids", 1, 2, -1, 4),
    "0 rows": put("token_ids"),
    "positions": put("positions", 0, 1, 2),
    "position -1": put("positions", 0, 1, 2, -1),
    "does not follow": put("positions", 0, 1, 3, 0),
    "beyond the block table": put("positions", 126, 127, 128, 0),
    "row offsets": put("row_offsets", 0, 3, 3),
    "row offsets from": put("row_offsets", 1, 3, 4),
    "has rows": put("row_offsets", 0, 5, 4),
    "no slot": put("slots", 0, 2),
    "slot 1 is used twice": put("slots", 1, 1),
    "logits row": put("logits_rows", 0, 4),
    "logits row 0": put("logits_rows", 3, 0),
    "want logits": put("logits_rows", *range(40)),
    "rows": put("token_ids", *([1] * 40)),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_bad_batches_are_refused_and_leave_no_trace(fault: str) -> None:
    runner = ProgramRunner(CpuBackend(2), tiny_program(SHAPES["grouped"]), sequences=2, positions=128, max_rows=32)
    runner.executor.step(good_batch())
    before = runner.executor.logits().copy()
    batch = good_batch()
    FAULTS[fault](batch)
    with pytest.raises(StepError):
        runner.executor.step(batch)
    with pytest.raises(AssertionError):
        runner.executor.logits()  # of a step that failed
    runner.executor.step(good_batch())
    np.testing.assert_array_equal(runner.executor.logits(), before)


@pytest.mark.parametrize("entry", [-1, 8, 1 << 30])
def test_a_wrong_block_table_is_refused(entry: int) -> None:
    runner = ProgramRunner(CpuBackend(1), tiny_program(SHAPES["grouped"]), sequences=2, positions=128)
    table = next(iter(runner.pools.values())).block_table
    table[0, 0] = entry
    with pytest.raises(StepError, match="block table"):
        runner.executor.step(good_batch())


def test_entries_behind_the_window_are_not_read() -> None:
    runner = ProgramRunner(CpuBackend(1), tiny_program(Shape(window=37, layers=1)))
    runner.feed(list(range(80)))
    next(pool for group, pool in runner.pools.items() if group.window).block_table[0, 0] = -1
    runner.executor.step(StepBatch(ints(1, 2), ints(80, 81), ints(0, 2), ints(0), ints(0, 1)))
    assert np.isfinite(runner.executor.logits()).all()


def test_cancel_ends_a_running_step_and_nothing_else() -> None:
    runner = ProgramRunner(CpuBackend(2), tiny_program(Shape(layers=12)), max_rows=512)
    ids = [1] * 500
    expected = runner.feed(ids, want="last")
    runner.rewind(0)
    runner.executor.cancel()  # no step runs: no effect
    np.testing.assert_array_equal(runner.feed(ids, want="last"), expected)
    runner.rewind(0)
    cancelled = threading.Event()

    def cancel() -> None:
        while not cancelled.wait(0.003):  # one alone may fall between two steps, where it has no effect
            runner.executor.cancel()

    canceller = threading.Thread(target=cancel)
    canceller.start()
    started = time.monotonic()
    with pytest.raises(StepCancelled):
        while time.monotonic() - started < 5:
            runner.feed(ids, want="last")
            runner.rewind(0)
    cancelled.set()
    canceller.join()
    runner.rewind(0)
    np.testing.assert_array_equal(runner.feed(ids, want="last"), expected)


def head_program() -> Program:
    """Reads hidden rows of another program and maps them to a vocabulary."""
    hidden, last = Buffer("hidden", HIDDEN), Buffer("last", HIDDEN, Rows.LOGITS)
    logits = Buffer("logits", HIDDEN, Rows.LOGITS)
    identity = Weight(
        "identity", WeightType.F32, (HIDDEN, HIDDEN), np.eye(HIDDEN, dtype=np.float32).view(np.uint8).reshape(-1)
    )
    return Program("head", (SelectLogitsRows(last, hidden), Linear(logits, last, identity)), logits, (), (hidden,))


def test_rows_cross_between_executors() -> None:
    backend = CpuBackend(2)
    runner = ProgramRunner(backend, tiny_program(SHAPES["grouped"]))
    head = backend.load(head_program(), {}, Limits(8, 8, 1))
    runner.step({0: [1, 2, 3, 4, 5]}, taps=("residual.1",))
    batch = StepBatch(ints(0, 0, 0), ints(0, 1, 2), ints(0, 3), ints(0), ints(0, 2))
    with pytest.raises(StepError, match="inputs"):
        head.step(batch)
    batch.inputs = {"hidden": RowHandle(runner.executor, "residual.1", 2, 3)}
    head.step(batch)
    np.testing.assert_array_equal(head.logits(), runner.outputs["residual.1"][[2, 4]])
    for start, count, name in ((3, 3, "residual.1"), (0, 2, "residual.1"), (2, 3, "residual.0"), (2, 3, "nothing")):
        batch.inputs = {"hidden": RowHandle(runner.executor, name, start, count)}
        with pytest.raises(StepError, match="input hidden"):
            head.step(batch)


def test_unknown_taps_and_logits_of_no_row() -> None:
    runner = ProgramRunner(CpuBackend(1), tiny_program(SHAPES["grouped"]), sequences=2)
    batch = good_batch()
    batch.taps = ("residual.7",)
    with pytest.raises(StepError, match=r"residual\.7"):
        runner.executor.step(batch)
    batch.taps = ()
    batch.logits_rows = ints()
    runner.executor.step(batch)
    assert runner.executor.logits().shape == (0, VOCABULARY)
    with pytest.raises(AssertionError):
        runner.executor.output("residual.0")  # not asked for


def test_programs_that_cannot_run_are_refused_by_name() -> None:
    backend, program = CpuBackend(1), tiny_program(SHAPES["grouped"])
    with pytest.raises(ConfigError, match="KV group full"):
        backend.load(program, {}, Limits(8, 8, 1))
    short = Weight("short", WeightType.F32, (HIDDEN, HIDDEN), np.zeros(16, np.uint8))
    hidden, logits = Buffer("hidden", HIDDEN, Rows.LOGITS), Buffer("logits", HIDDEN, Rows.LOGITS)
    with pytest.raises(ConfigError, match="short has 16 bytes"):
        backend.load(Program("p", (Linear(logits, hidden, short),), logits, ()), {}, Limits(8, 8, 1))
    with pytest.raises(ConfigError, match="cannot run"):
        CpuBackend(1, "sse9")
    with pytest.raises(ConfigError, match="threads"):
        CpuBackend(0)


def test_pools() -> None:
    backend, group = CpuBackend(1), KvGroup("g", 3, 2, 32, 64)
    for kv_type, row in ((KvType.F32, 96 * 4), (KvType.F16, 96 * 2), (KvType.BF16, 96 * 2), (KvType.Q8_0, 96 + 3 * 2)):
        assert backend.block_bytes(group, kv_type) == 3 * 2 * 32 * row
        pool = backend.allocate_kv(group, kv_type, 1 << 16, 4, 10)  # gigabytes, none of them touched
        assert (pool.num_blocks, pool.block_bytes) == (1 << 16, backend.block_bytes(group, kv_type))
        assert pool.block_table.shape == (4, 10)
        assert pool.block_table.dtype == np.int32
        with pytest.raises(IndexError):
            pool.fill(1 << 16, 0.0)


@pytest.mark.parametrize("name", ["grouped", "experts"])
def test_executors_are_released(name: str) -> None:
    backend = CpuBackend(1)
    runner = ProgramRunner(backend, tiny_program(SHAPES[name]))
    runner.feed([1, 2, 3])
    native = weakref.ref(runner.executor)
    pools = [weakref.ref(pool) for pool in runner.pools.values()]
    del runner
    gc.collect()
    assert native() is None
    assert all(pool() is None for pool in pools)
