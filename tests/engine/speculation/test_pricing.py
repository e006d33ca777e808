"""Prices: level x shape, what steps teach and what they must not."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from speculation_doubles import Linear

from surefoot.engine.speculation.governor.contract import StepRecord
from surefoot.engine.speculation.governor.pricing import CELL_MEMORY, REFRESH, PriceList, Pricing
from surefoot.engine.speculation.governor.shape import FixedShape


def step(rows: int, seconds: float, sequences: int = 1, **rest: object) -> StepRecord:
    return StepRecord(seconds, sequences, rows, 100, rows, (), **rest)  # type: ignore[arg-type]


def feed(pricing: Pricing, rows: int, seconds: float, times: int, sequences: int = 1) -> None:
    for _ in range(times):
        pricing.record(step(rows, seconds, sequences), seconds)


def price(pricing: Pricing, extra: int, sequences: int = 1) -> float:
    pricing._lists.clear()
    return pricing.list(sequences, 100).prices[extra]


def test_before_any_step_prices_are_the_curve() -> None:
    pricing = Pricing(Linear(0.1))
    assert pricing.list(1, 100).prices[:4] == pytest.approx([1.0, 1.1, 1.2, 1.3])
    assert pricing.list(4, 100).prices[0] == pytest.approx(1.3)


def test_a_slower_machine_moves_the_level_and_no_price() -> None:
    pricing = Pricing(Linear(0.1))
    feed(pricing, 1, 0.02, 20)
    assert pricing.unit(100) == pytest.approx(0.02, rel=0.02)
    assert price(pricing, 7) == pytest.approx(1.7)


def test_a_dearer_verify_moves_its_cell() -> None:
    pricing = Pricing(Linear(0.1))
    for _ in range(40):
        feed(pricing, 1, 0.01, 3)
        feed(pricing, 8, 0.03, 3)
    assert price(pricing, 7) == pytest.approx(3.0, rel=0.1)
    assert pricing.unit(100) == pytest.approx(0.01, rel=0.1)


def test_drift_during_a_long_spell_of_verifies_is_the_machine() -> None:
    pricing = Pricing(Linear(0.1))
    feed(pricing, 1, 0.01, 50)
    for i in range(400):
        seconds = 0.017 * (1 + i / 400)
        pricing.record(step(8, seconds), seconds)
    assert price(pricing, 7) < 2.1, "the machine has become twice as slow"
    assert pricing.unit(100) > 0.016


def test_steps_that_teach_nothing() -> None:
    pricing = Pricing(Linear(0.1))
    feed(pricing, 1, 0.01, 10)
    level = pricing.unit(100)
    for record in (step(1, 9.0, prefill_rows=5), step(1, 9.0, after_idle=True)):
        assert not pricing.record(record, record.seconds)
    assert not pricing.record(step(8, 9.0), 9.0), "the first after a change of kind"
    assert pricing.record(step(8, 0.017), 0.017)
    assert pricing.unit(100) == pytest.approx(level, rel=0.05)


def test_kinds_that_alternate_at_every_step_still_teach() -> None:
    pricing = Pricing(Linear(0.1))
    taught = sum(pricing.record(step(rows, 0.01 * rows), 0.01 * rows) for rows in (1, 8) * 50)
    assert taught >= 10


def test_a_curve_measured_on_a_busy_machine_is_put_right_within_a_few_verifies() -> None:
    pricing = Pricing(FixedShape((1, 8, 32), (0.033, 0.130, 0.178)))  # eight rows really take 0.050
    feed(pricing, 1, 0.033, 20)
    assert pricing.list(1, 300).prices[7] == pytest.approx(3.9, rel=0.05)
    for _ in range(4):
        feed(pricing, 8, 0.050, 3)
        feed(pricing, 1, 0.033, 2)
    assert pricing.list(1, 700).prices[7] < 2.1, "and at once, at any short context"


def test_one_hiccup_changes_little() -> None:
    pricing = Pricing(Linear(0.1))
    feed(pricing, 1, 0.01, 50)
    pricing.record(step(8, 4.0), 4.0)
    pricing.record(step(8, 4.0), 4.0)
    assert price(pricing, 7) < 1.7 * 1.25
    feed(pricing, 1, 0.01, 10)
    assert pricing.unit(100) == pytest.approx(0.01, rel=0.15)


def test_an_unused_cell_goes_back_to_the_curve() -> None:
    pricing = Pricing(Linear(0.1))
    for _ in range(30):
        feed(pricing, 1, 0.01, 2)
        feed(pricing, 8, 0.05, 2)
    high = price(pricing, 7)
    feed(pricing, 1, 0.01, 6 * CELL_MEMORY)
    assert high > 3.0
    assert price(pricing, 7) == pytest.approx(1.7, rel=0.05)


def test_a_price_list_is_kept_for_a_while() -> None:
    pricing = Pricing(Linear(0.1))
    first = pricing.list(1, 100)
    feed(pricing, 1, 0.01, REFRESH - 1)
    assert pricing.list(1, 120) is first
    feed(pricing, 1, 0.01, 1)
    assert pricing.list(1, 100) is not first


@given(st.lists(st.floats(0.0, 2.0), min_size=1, max_size=30))
def test_slopes_are_the_least_cost_of_going_on(steps: list[float]) -> None:
    prices = [1.0]
    for rise in steps:
        prices.append(prices[-1] + rise)
    slopes = PriceList(prices, 0).slopes
    for k in range(len(prices) - 1):
        assert slopes[k] == pytest.approx(min((prices[j] - prices[k]) / (j - k) for j in range(k + 1, len(prices))))
    assert slopes[-1] == math.inf


def test_noise_averages_out() -> None:
    pricing, noise = Pricing(Linear(0.1)), random.Random(1)
    for i in range(3000):
        rows = 8 if i % 10 > 5 else 1
        seconds = 0.01 * (1 + 0.1 * (rows - 1)) * noise.lognormvariate(0, 0.2)
        pricing.record(step(rows, seconds), seconds)
    assert price(pricing, 7) == pytest.approx(1.7, rel=0.12)


def test_the_shape_at_load() -> None:
    shape = FixedShape((1, 2, 4), (1.0, 0.9, 2.0))
    assert [shape.seconds(n, 1, 0) for n in (1, 2, 3, 4)] == pytest.approx([1.0, 1.0, 1.5, 2.0])
    assert shape.seconds(8, 1, 0) == pytest.approx(4.0)
    assert FixedShape((1, 2, 4), (1.0, 1.0, 1.0)).seconds(14, 1, 0) == pytest.approx(1.2), "rows never become free"
    for rows, seconds in (((2,), (1.0,)), ((1, 1), (1.0, 1.0)), ((1,), (0.0,)), ((), ())):
        with pytest.raises(ValueError, match=r"shape|takes time"):
            FixedShape(rows, seconds)
