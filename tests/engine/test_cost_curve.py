"""The cost curve follows what was measured and what is served, and is never silly in between."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from surefoot.engine.cost_curve import CostCurve, CostTable


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
