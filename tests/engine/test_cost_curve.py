"""The cost curve follows what was measured and what is served, and is never silly in between."""

from __future__ import annotations

import pytest
from engine_drive import Drive
from fake_backend import FakeBackend, FakeModel
from hypothesis import given
from hypothesis import strategies as st

from surefoot.engine.cost_curve import CostCurve, CostTable
from surefoot.engine.cost_probe import CostProbe, num_layers, shallow, suspicious
from surefoot.kernels.program import Buffer, Embed, KvGroup, KvWrite, Linear, Op, Program, Rows, Weight


@given(
    st.lists(st.tuples(st.integers(1, 200), st.floats(0.1, 10)), max_size=30),
    st.dictionaries(st.sampled_from([1, 2, 8, 64]), st.floats(1e-4, 1), min_size=1),
    st.floats(1e-4, 3),
)
def test_more_rows_never_cost_less(served: list[tuple[int, float]], measured: dict[int, float], seconds: float) -> None:
    table = CostTable([1, 2, 4, 8, 16, 64, 128], 0.005)
    table.fill(measured)
    for rows, ratio in served:
        table.correct(rows, ratio)
    costs = [table.at(rows) for rows in range(1, 200)]
    assert all(cost > 0 for cost in costs) and costs == sorted(costs)
    fitting = table.rows_within(seconds)
    assert fitting == 0 or table.at(fitting) <= seconds * (1 + 1e-9)
    assert fitting == 128 or table.at(fitting + 1) > seconds * (1 - 1e-9)


def test_measured_points_are_kept_and_the_rest_lies_on_lines() -> None:
    curve = CostCurve(512)
    curve.fill({1: 0.010, 8: 0.017, 2: 0.011}, {64: 0.1, 256: 0.4})
    assert curve.seconds(1) == 0.010 and curve.seconds(8) == 0.017
    assert curve.seconds(5) == pytest.approx(0.014)
    assert curve.seconds(16) == pytest.approx(0.017 + 8 * (0.1 - 0.017) / 56)
    assert curve.mixed_seconds(160, 1) == pytest.approx(0.25)
    assert curve.mixed_seconds(512, 1) == pytest.approx(0.8)
    assert curve.mixed_seconds(8, 1) == 0.017, "no more than eight decodes"


def test_rows_beyond_the_measured_decodes_cost_at_least_what_prefills_do() -> None:
    """Eight rows that wait for memory cost little more than four; thirty wait for arithmetic."""
    curve = CostCurve(512)
    curve.fill({1: 0.034, 4: 0.050, 8: 0.055}, {64: 0.4})
    assert curve.seconds(64) == pytest.approx(0.4)
    assert curve.seconds(32) == pytest.approx(0.055 + 24 * (0.4 - 0.055) / 56)


def test_rows_never_cost_more_than_in_several_steps() -> None:
    """A step that was held up by another program while it was measured does not make large steps look impossible."""
    curve = CostCurve(512)
    curve.fill({1: 0.014, 2: 0.014, 8: 0.02}, {64: 5.0})
    assert curve.mixed_seconds(64, 1) == pytest.approx(0.16)
    for _ in range(5):
        curve.observe(40, 1, 0, 0.05)
    assert curve.mixed_seconds(64, 1) < 0.1


def test_one_point_is_enough_for_a_reasonable_guess() -> None:
    curve = CostCurve(512)
    curve.fill({1: 0.1}, {})
    assert 0.1 < curve.seconds(2) < 0.2 < curve.seconds(16) < 1.6


def test_serving_corrects_what_was_only_inferred_quickly_and_what_was_measured_slowly() -> None:
    curve = CostCurve(512)
    curve.fill({1: 0.01}, {})
    for _ in range(8):
        curve.observe(512, 1, 0, 1.0)
    assert curve.mixed_seconds(512, 1) == pytest.approx(1.0, rel=0.1)
    curve.observe(1, 1, 0, 0.02)
    assert curve.seconds(1) == pytest.approx(0.011)
    curve.observe(1, 1, 0, 100.0)
    assert curve.seconds(1) < 0.02, "one stall is not believed"


def test_long_contexts_have_a_factor_of_their_own() -> None:
    curve = CostCurve(512)
    curve.fill({1: 0.01}, {64: 0.1})
    for _ in range(200):
        curve.observe(64, 1, 4096, 0.3)
    assert curve.mixed_seconds(64, 1, 5000) == pytest.approx(0.3, rel=0.05)
    assert curve.mixed_seconds(64, 1, 9000) == pytest.approx(0.3, rel=0.05), "the nearest shorter one is taken"
    assert curve.mixed_seconds(64, 1, 2000) == pytest.approx(0.1)
    assert curve.rows_within(0.3, 0, 5000) == pytest.approx(64, abs=4)


def test_rows_within_leaves_time_for_the_decodes_beside() -> None:
    curve = CostCurve(512)
    curve.fill({1: 0.01, 8: 0.04}, {8: 0.02, 64: 0.16})
    assert curve.rows_within(0.1, 1, 0) == pytest.approx(39, abs=1)
    assert curve.rows_within(0.1, 8, 0) == pytest.approx(24, abs=1), "the heads of eight decodes take 0.02 s"


def layered(layers: int) -> Program:
    weight = Weight("w", None, (1, 1), None)  # type: ignore[arg-type]
    x, logits = Buffer("x", 1), Buffer("logits", 1, Rows.LOGITS)
    group = KvGroup("all", layers, 1, 1, 1)
    ops: list[Op] = [Embed(x, weight)]
    for layer in range(layers):
        ops += [Linear(x, x, weight), KvWrite(x, x, group, layer), Linear(x, x, weight)]
    return Program("layered", (*ops, Linear(logits, x, weight)), logits, (group,))


def test_a_shallow_program_keeps_first_operations_last_layers_and_head() -> None:
    whole = layered(6)
    assert num_layers(whole) == 6
    part = shallow(whole, 2)
    assert part is not None and num_layers(part) == 2
    assert part.ops == whole.ops[:2] + whole.ops[2 + 4 * 3 :]
    assert shallow(whole, 6) is None
    assert shallow(layered(1), 1) is None


def test_a_point_above_the_line_through_its_neighbours_is_suspicious() -> None:
    assert suspicious({1: 0.033, 8: 0.130, 32: 0.178}) == [8]
    assert suspicious({1: 0.031, 4: 0.031, 8: 0.047, 32: 0.185}) == []
    assert suspicious({1: 1.0, 32: 9.0}) == []


@pytest.mark.parametrize("seconds", [0.0, 0.2])
def test_the_probe_leaves_the_cache_as_it_was(seconds: float) -> None:
    drive = Drive(FakeModel((None, 40)), FakeBackend())
    core = drive.core
    program = drive.backend.executor.program  # type: ignore[attr-defined]
    pools = dict(zip(program.kv_groups, drive.backend.pools, strict=True))  # type: ignore[attr-defined]
    probe = CostProbe(drive.backend, pools, core.cache, core.scheduler.limits)
    decode, prefill = probe.measure(core.runner, program, seconds, 256)
    assert {1, 8, 32} <= decode.keys() and 64 in prefill, "a slow machine still learns what rows cost"
    if seconds:
        assert {1, 2, 4, 8} <= decode.keys() and prefill
    drive.check_idle()
    assert len(core.cache.index) == 0
