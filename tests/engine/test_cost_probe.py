"""The probe at load: what it times, how long it takes, how near its prices are, and that it leaves nothing behind."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest
from engine_drive import Drive
from fake_backend import FakeBackend, FakeExecutor, FakeModel

from surefoot.engine.cost_probe import ESSENTIAL, WANTED, CostProbe, Measured, few_layers, num_layers, product_bytes
from surefoot.kernels.backend import StepBatch
from surefoot.kernels.formats import WEIGHT_TYPES
from surefoot.kernels.program import Buffer, Embed, KvGroup, KvWrite, Linear, Op, Program, Rows, Weight

F32 = next(kind for kind in WEIGHT_TYPES.values() if kind.name == "F32")
HEAD_ROWS = 1024


def weight(out: int, width: int) -> Weight:
    return Weight("w", F32, (out, width), None)  # type: ignore[arg-type]


def layered(layers: int, width: int = 64) -> Program:
    """Layers of two products, of which the first stands before the write of keys and values, and a head."""
    x, logits = Buffer("x", width), Buffer("logits", HEAD_ROWS, Rows.LOGITS)
    group = KvGroup("all", layers, 1, 1, 1)
    ops: list[Op] = [Embed(x, weight(HEAD_ROWS, width))]
    for layer in range(layers):
        ops += [Linear(x, x, weight(width, width)), KvWrite(x, x, group, layer), Linear(x, x, weight(width, width))]
    return Program("layered", (*ops, Linear(logits, x, weight(HEAD_ROWS, width))), logits, (group,))


def test_a_copy_of_few_layers_keeps_first_operations_last_layer_and_head() -> None:
    whole = layered(6)
    part = few_layers(whole, 1)
    assert part is not None and num_layers(part) == 1
    assert part.ops == whole.ops[:2] + whole.ops[2 + 5 * 3 :]
    part = few_layers(whole, 3)
    assert part is not None and num_layers(part) == 3
    assert [op.layer for op in part.ops if isinstance(op, KvWrite)] == [0, 2, 5], "spread evenly, with the last"
    assert few_layers(whole, 6) is None
    assert few_layers(layered(1), 1) is None


def test_bytes_are_those_of_products_with_and_without_the_head() -> None:
    program = layered(3, width=16)
    assert product_bytes(program, head=False) == 3 * 2 * 16 * 16 * 4
    assert product_bytes(program) == 3 * 2 * 16 * 16 * 4 + HEAD_ROWS * 16 * 4


class Machine:
    """Steps that take a time of our own: so much per layer and for the head, by rows, on a clock of our own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, per_layer: Callable[[int], float], head: float) -> None:
        self.now = 100.0
        self.per_layer, self.head = per_layer, head
        self.slowness: Callable[[int], float] = lambda step: 1.0
        self.num_steps = 0
        monkeypatch.setattr(time, "perf_counter", lambda: self.now)

    def seconds(self, program: Program, rows: int, num_logits: int) -> float:
        return num_layers(program) * self.per_layer(rows) + self.head * num_logits**0.5

    def measure(self, program: Program, seconds: float) -> Measured:
        backend = FakeBackend()
        drive = Drive(FakeModel((None,)), backend)
        core, pool = drive.core, backend.pools[0]
        pools = {program.kv_groups[0]: pool}

        def loaded(loading: Program, *_: object) -> FakeExecutor:
            executor = FakeExecutor(loading, [], core.scheduler.limits)  # type: ignore[arg-type]

            def step(batch: StepBatch) -> None:
                self.num_steps += 1
                took = self.seconds(loading, len(batch.token_ids), len(batch.logits_rows))
                self.now += took * self.slowness(self.num_steps)

            executor.step = step  # type: ignore[method-assign]
            return executor

        backend.load = loaded  # type: ignore[method-assign]
        core.runner.executor = loaded(program)
        probe = CostProbe(backend, pools, core.cache, core.scheduler.limits)  # type: ignore[arg-type]
        result = probe.measure(core.runner, program, seconds, 512)
        drive.check_idle()
        return result

    def check(self, program: Program, measured: Measured, tolerance: float) -> None:
        for rows, cost in measured.decode.items():
            assert cost == pytest.approx(self.seconds(program, rows, rows), rel=tolerance), rows
        for rows, cost in measured.prefill.items():
            assert cost == pytest.approx(self.seconds(program, rows, 1), rel=tolerance), rows


def memory_bound(unit: float) -> Callable[[int], float]:
    return lambda rows: unit * max(1.0, rows / 8)


WANTED_DECODES = {point.rows for point in WANTED if point.all_logits}


def test_a_large_model_is_priced_on_few_layers_within_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    machine, program = Machine(monkeypatch, memory_bound(0.001), head=0.004), layered(40, width=1024)
    measured = machine.measure(program, 0.3)
    assert measured.seconds <= 0.3 and measured.seconds == pytest.approx(machine.now - 100)
    assert measured.layers is not None and measured.layers < 20
    assert measured.decode.keys() >= WANTED_DECODES and 64 in measured.prefill
    machine.check(program, measured, 0.01)


def test_a_small_model_is_priced_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    machine, program = Machine(monkeypatch, memory_bound(0.0001), head=0.0001), layered(10, width=1024)
    measured = machine.measure(program, 0.3)
    assert measured.layers is None and measured.seconds <= 0.3
    assert {1, 2, 3, 4, 6, 8, 12, 16, 32} <= measured.decode.keys() and {16, 64} <= measured.prefill.keys()
    machine.check(program, measured, 1e-6)


@pytest.mark.parametrize("seconds", [0.0, 0.3])
def test_a_slow_backend_is_asked_for_the_essential_points_and_no_more(
    monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    machine, program = Machine(monkeypatch, lambda rows: 0.1 * rows, head=0.2), layered(40, width=1024)
    measured = machine.measure(program, seconds)
    assert measured.decode.keys() == {point.rows for point in ESSENTIAL} and not measured.prefill
    assert measured.seconds < sum(machine.seconds(program, rows, rows) for rows in (1, 8, 32)) / 4, "on few layers"
    machine.check(program, measured, 0.01)


def test_where_there_is_noise_there_are_more_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of the steps are held up by another program."""
    program = layered(10, width=1024)
    calm = Machine(monkeypatch, memory_bound(0.0002), head=0.0002)
    calm_steps = calm.measure(program, 1.0).num_steps
    noisy = Machine(monkeypatch, memory_bound(0.0002), head=0.0002)
    dice = Random(11)
    noisy.slowness = lambda step: max(1.0, dice.uniform(0.0, 2.0))
    measured = noisy.measure(program, 1.0)
    assert measured.num_steps > calm_steps and measured.seconds <= 1.2
    wanted = {rows: cost for rows, cost in measured.decode.items() if rows in WANTED_DECODES}
    noisy.check(program, replace(measured, decode=wanted, prefill={}), 0.05)


def test_it_stops_early_when_every_time_is_confirmed(monkeypatch: pytest.MonkeyPatch) -> None:
    machine, program = Machine(monkeypatch, memory_bound(0.00001), head=0.00001), layered(10, width=1024)
    assert machine.measure(program, 5.0).seconds < 0.1


@pytest.mark.parametrize("seconds", [0.0, 0.2])
def test_the_probe_leaves_the_cache_as_it_was(seconds: float) -> None:
    drive = Drive(FakeModel((None, 40)), FakeBackend())
    core = drive.core
    program = drive.backend.executor.program  # type: ignore[attr-defined]
    pools = dict(zip(program.kv_groups, drive.backend.pools, strict=True))  # type: ignore[attr-defined]
    probe = CostProbe(drive.backend, pools, core.cache, core.scheduler.limits)
    measured = probe.measure(core.runner, program, seconds, 256)
    assert {1, 8, 32} <= measured.decode.keys(), "a slow machine still learns what rows cost"
    if seconds:
        assert measured.decode.keys() >= WANTED_DECODES and measured.prefill
    drive.check_idle()
    assert len(core.cache.index) == 0
