"""The reference executor: caches and number formats, chunks, windows, refusals, cancelling, inputs and outputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from harness import ProgramRunner
from numpy.typing import NDArray
from tiny_programs import HIDDEN, SHAPES, VOCABULARY, Shape, tiny_program

from surefoot.kernels.backend import Limits, RowHandle, StepBatch
from surefoot.kernels.errors import ConfigError, StepCancelled, StepError
from surefoot.kernels.formats import KvType, WeightType
from surefoot.kernels.program import Buffer, KvGroup, KvWrite, Linear, Op, Program, Rows, SelectLogitsRows, Weight
from surefoot.kernels.reference.backend import ReferenceBackend
from surefoot.kernels.reference.cache import ReferenceKvPool

IDS = np.random.default_rng(1).integers(0, VOCABULARY, 150).astype(np.int32)


def ints(*values: int) -> NDArray[np.int32]:
    return np.array(values, np.int32)


def close(a: NDArray[np.float32], b: NDArray[np.float32]) -> None:
    np.testing.assert_allclose(a, b, atol=2e-4)


# --- the cache ---

GROUP = KvGroup("g", num_layers=2, kv_heads=2, key_dim=32, value_dim=64)


def pool_of(kv_type: KvType) -> ReferenceKvPool:
    pool = ReferenceKvPool(GROUP, kv_type, num_blocks=5, slots=2, max_blocks=3)
    pool.block_table[:] = [[4, 0, 2], [1, 3, 1]]
    return pool


def rounded(x: NDArray[np.float32], kv_type: KvType) -> NDArray[np.float32]:
    if kv_type is KvType.F32:
        return x
    if kv_type is KvType.F16:
        return x.astype(np.float16).astype(np.float32)
    if kv_type is KvType.BF16:  # round to nearest even by hand
        bits = x.view(np.uint32)
        return ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)
    groups = x.reshape(-1, 32)
    scale = np.abs(groups).max(1, keepdims=True) / np.float32(127)
    quants = np.round(groups / np.where(scale == 0, np.float32(1), scale))
    return (quants * scale.astype(np.float16).astype(np.float32)).astype(np.float32).reshape(x.shape)


@pytest.mark.parametrize("kv_type", list(KvType))
def test_rows_come_back_rounded_from_where_the_table_says(kv_type: KvType) -> None:
    pool = pool_of(kv_type)
    rng = np.random.default_rng(2)
    keys = rng.standard_normal((70, 2 * 32)).astype(np.float32)
    values = rng.standard_normal((70, 2 * 64)).astype(np.float32)
    keys[3, :32] = 0
    for block in range(5):
        pool.fill(block, float("nan"))
    pool.write(1, 0, 0, torch.as_tensor(keys[:40]), torch.as_tensor(values[:40]))
    pool.write(1, 0, 40, torch.as_tensor(keys[40:]), torch.as_tensor(values[40:]))
    got_keys, got_values = pool.read(1, 0, 17, 70)
    np.testing.assert_array_equal(got_keys.numpy(), rounded(keys.reshape(70, 2, 32), kv_type)[17:])
    np.testing.assert_array_equal(got_values.numpy(), rounded(values.reshape(70, 2, 64), kv_type)[17:])
    assert pool.read(0, 0, 0, 70)[0].isnan().all(), "another layer was written"
    assert pool.read(1, 1, 0, 70)[0].isnan().all(), "another sequence was written"
    pool.block_table[1, 0] = 0  # shares the block of positions 32..63
    np.testing.assert_array_equal(pool.read(1, 1, 0, 32)[0].numpy(), rounded(keys.reshape(70, 2, 32), kv_type)[32:64])


def test_a_pool_is_accounted_for_by_the_memory_it_takes() -> None:
    pool = pool_of(KvType.F16)
    assert pool.block_bytes == ReferenceBackend().block_bytes(GROUP, KvType.F16) == 4 * 2 * 32 * 2 * (32 + 64)
    assert pool.num_blocks == 5


def test_q8_0_scales_stop_at_the_end_of_a_head() -> None:
    pool = ReferenceKvPool(KvGroup("g", 1, 2, key_dim=40, value_dim=8), KvType.Q8_0, 1, 1, 1)
    keys = np.random.default_rng(6).standard_normal((1, 80)).astype(np.float32)
    keys[0, 40:] *= 1000  # the second head's values must not coarsen the first's
    pool.write(0, 0, 0, torch.as_tensor(keys), torch.zeros(1, 16))
    got, zeros = pool.read(0, 0, 0, 1)
    for head in range(2):
        for part in (slice(0, 32), slice(32, 40)):
            x = keys.reshape(2, 40)[head, part]
            scale = np.abs(x).max() / np.float32(127)
            np.testing.assert_array_equal(
                got[0, head, part].numpy(), np.round(x / scale) * np.float32(np.float16(scale))
            )
    assert not zeros.any()


# --- steps ---


@pytest.mark.parametrize("shape", SHAPES)
def test_chunks_and_neighbours_change_nothing_but_rounding(shape: str) -> None:
    """Freed blocks hold NaN (see harness), so a read behind a window would show."""
    program = tiny_program(SHAPES[shape])
    whole = ProgramRunner(ReferenceBackend(), program, positions=160).feed(IDS)
    assert np.isfinite(whole).all()
    assert whole.std() > 0.01
    close(ProgramRunner(ReferenceBackend(), program, positions=160, seed=3).feed(IDS, chunks=[31, 1, 2, 64, 5]), whole)
    runner = ProgramRunner(ReferenceBackend(), program, positions=160, sequences=2)
    alone = ProgramRunner(ReferenceBackend(), program, positions=160).feed(IDS[:20])
    both = runner.step({1: IDS.tolist(), 0: IDS[:20].tolist()})
    close(both[1], whole)
    close(both[0], alone)


def test_only_rows_that_want_logits_are_computed_to_the_end() -> None:
    program = tiny_program(SHAPES["grouped"])
    every = ProgramRunner(ReferenceBackend(), program).feed(IDS[:12])
    runner = ProgramRunner(ReferenceBackend(), program)
    runner.executor.step(StepBatch(IDS[:12], np.arange(12, dtype=np.int32), ints(0, 12), ints(0), ints(2, 7, 11)))
    close(runner.executor.logits(), every[[2, 7, 11]])


def test_taps_are_copied_where_the_program_names_them() -> None:
    program = tiny_program(SHAPES["grouped"])
    runner = ProgramRunner(ReferenceBackend(), program)
    runner.step({0: IDS[:5].tolist()}, taps=("residual.0", "residual.1"))
    first, second = runner.outputs["residual.0"], runner.outputs["residual.1"]
    assert first.shape == second.shape == (5, HIDDEN)
    assert not np.allclose(first, second)
    runner.step({0: IDS[:1].tolist()})
    with pytest.raises(KeyError):
        runner.executor.output("residual.0")


def head_program(width: int = HIDDEN) -> Program:
    """A program without embedding or cache: logits of rows that another program hands over."""
    hidden, chosen, logits = Buffer("hidden", width), Buffer("chosen", width, Rows.LOGITS), Buffer("y", 7, Rows.LOGITS)
    values = np.random.default_rng(4).standard_normal((7, width)).astype(np.float32)
    weight = Weight("head", WeightType.F32, (7, width), values.view(np.uint8).reshape(-1))
    return Program("head", (SelectLogitsRows(chosen, hidden), Linear(logits, chosen, weight)), logits, (), (hidden,))


def test_inputs_come_from_another_executors_output() -> None:
    trunk = ProgramRunner(ReferenceBackend(), tiny_program(SHAPES["grouped"]))
    trunk.step({0: IDS[:6].tolist()}, taps=("residual.1",))
    program = head_program()
    head = ReferenceBackend().load(program, {}, Limits(8, 8, 1))
    handle = RowHandle(trunk.executor, "residual.1", 2, 3)
    batch = StepBatch(ints(0, 0, 0), ints(0, 1, 2), ints(0, 3), ints(0), ints(0, 2), inputs={"hidden": handle})
    head.step(batch)
    linear = program.ops[1]
    assert isinstance(linear, Linear)
    weight = linear.weight.data.view(np.float32).reshape(7, HIDDEN)
    close(head.logits(), trunk.outputs["residual.1"][[2, 4]] @ weight.T)
    with pytest.raises(StepError, match="input hidden of shape"):
        head.step(replace(batch, inputs={"hidden": RowHandle(trunk.executor, "residual.1", 0, 2)}))
    with pytest.raises(StepError, match="other inputs"):
        head.step(replace(batch, inputs={}))


Change = Callable[[StepBatch], None]


def put(field: str, *values: int) -> Change:
    return lambda batch: setattr(batch, field, ints(*values))


FAULTS: dict[str, Change] = {
    "no rows": put("token_ids"),
    "vocabulary": put("token_ids", 1, 2, VOCABULARY, 4),
    "vocabulary of": put("token_ids", 1, 2, -1, 4),
    "rows beyond": put("token_ids", *([1] * 40)),
    "positions for other": put("positions", 0, 1),
    "negative positions": put("positions", 0, 1, 2, -1),
    "gaps": put("positions", 0, 1, 3, 0),
    "no block": put("positions", 126, 127, 128, 0),
    "do not cover": put("row_offsets", 0, 3, 3),
    "row offsets": put("row_offsets", 0, 5, 4),
    "have no block": put("slots", 0, 2),
    "one slot for two": put("slots", 1, 1),
    "ascending rows": put("logits_rows", 0, 4),
    "not ascending": put("logits_rows", 3, 0),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_bad_batches_are_refused(fault: str) -> None:
    runner = ProgramRunner(ReferenceBackend(), tiny_program(SHAPES["grouped"]), sequences=2, positions=128, max_rows=32)
    batch = StepBatch(ints(1, 2, 3, 4), ints(0, 1, 2, 0), ints(0, 3, 4), ints(0, 1), ints(0, 3))
    runner.executor.step(batch)
    FAULTS[fault](batch)
    with pytest.raises(StepError, match=fault):
        runner.executor.step(batch)
    with pytest.raises(AssertionError, match="did not finish"):
        runner.executor.logits()


def test_a_block_outside_the_pool_is_refused() -> None:
    runner = ProgramRunner(ReferenceBackend(), tiny_program(SHAPES["grouped"]))
    for pool in runner.pools.values():
        pool.block_table[0, 0] = pool.num_blocks
    with pytest.raises(StepError, match="no block"):
        runner.feed(IDS[:3])


def test_cancelling_ends_the_running_step_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    runner = ProgramRunner(ReferenceBackend(), tiny_program(SHAPES["grouped"]))
    want = runner.feed(IDS[:4])
    runner.rewind(0)
    runner.executor.cancel()  # nothing runs
    close(runner.feed(IDS[:4]), want)
    runner.rewind(0)
    write, written = ReferenceKvPool.write, list[int]()

    def cancel_at_first_write(self: ReferenceKvPool, layer: int, *rest: object) -> None:
        runner.executor.cancel()
        written.append(layer)
        write(self, layer, *rest)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(ReferenceKvPool, "write", cancel_at_first_write)
        with pytest.raises(StepCancelled):
            runner.feed(IDS[:4])
    assert written == [0]
    close(runner.feed(IDS[:4]), want)


# --- loading ---


def test_what_cannot_run_is_refused_at_load() -> None:
    program = tiny_program(Shape())
    limits = Limits(8, 8, 1)
    with pytest.raises(ConfigError, match="no pool for KV group full"):
        ReferenceBackend().load(program, {}, limits)

    class Unknown:
        pass

    strange = Program("strange", (*program.ops, Unknown()), program.logits, ())  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="lacks the op Unknown"):
        ReferenceBackend().load(strange, {}, limits)


def test_a_weight_is_expanded_once_and_not_read_again() -> None:
    backend = ReferenceBackend()
    program = tiny_program(SHAPES["grouped"])
    want = ProgramRunner(ReferenceBackend(), program).feed(IDS[:5])
    runner = ProgramRunner(backend, program)
    for op in program.ops:
        for weight in weights_of(op):
            weight.data[:] = 0xFF
    close(runner.feed(IDS[:5]), want)


def weights_of(op: Op) -> list[Weight]:
    return [value for value in vars(op).values() if isinstance(value, Weight)]


def test_programs_may_share_a_pool() -> None:
    """A second program reads keys that the first wrote: the same KvGroup object, bound to the same pool."""
    program = tiny_program(SHAPES["grouped"])
    reader = Program(
        "reader", tuple(op for op in program.ops if not isinstance(op, KvWrite)), program.logits, program.kv_groups
    )
    backend = ReferenceBackend()
    runner = ProgramRunner(backend, program)
    want = runner.feed(IDS[:9])
    second = backend.load(reader, runner.pools, Limits(16, 16, 1))
    second.step(StepBatch(IDS[5:9], np.arange(5, 9, dtype=np.int32), ints(0, 4), ints(0), ints(0, 1, 2, 3)))
    close(second.logits(), want[5:])
