"""Replay: bounds are bounds, decisions never see the future, and the governors against what hindsight would choose."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from surefoot.engine.speculation.ngram_index import NgramIndex
from surefoot.engine.speculation.policy import SpeculationPolicy
from surefoot.engine.speculation.replay import (
    MATCHES,
    WINDOWS,
    Prices,
    Replayer,
    Run,
    Trace,
    best_fixed,
    clairvoyant_units,
    fixed_units,
    opportunities,
    plain_units,
)


def flat(rows: int) -> float:
    return 1.0 if rows == 1 else 1.10 + 0.015 * (rows - 1)


def linear(rows: int) -> float:
    return 1 + 0.17 * (rows - 1)


def floor(rows: int) -> float:
    return 1.0 if rows == 1 else (10.5 + 0.4 * (rows - 1)) / 3.4


PROFILES: list[Callable[[int], float]] = [flat, linear, floor]
tokens = st.lists(st.integers(0, 3), min_size=3, max_size=80)


def quoting(seed: int, size: int = 200, errors: float = 0.03) -> Trace:
    """An answer that copies its prompt, with slips."""
    pick = random.Random(seed)
    prompt = [pick.randrange(5000) for _ in range(size)]
    output = [token if pick.random() > errors else pick.randrange(5000) for token in prompt]
    return Trace("quote", prompt, output)


def prose(seed: int, size: int = 300) -> Trace:
    """Text whose word pairs recur now and then and are followed by anything."""
    pick = random.Random(seed)
    ids = [int(pick.paretovariate(0.6)) % 3000 for _ in range(size + 50)]
    return Trace("prose", ids[:50], ids[50:])


def units(run: Run, prices: Prices) -> float:
    return sum(prices.rows(1 + window) for window in run.windows)


@settings(max_examples=60, deadline=None)
@given(tokens, tokens, st.sampled_from(PROFILES), st.sampled_from(["cost", "probe", "off"]))
def test_a_replay_emits_the_trace_and_no_policy_beats_the_clairvoyant(
    prompt: list[int], output: list[int], profile: Callable[[int], float], governor: str
) -> None:
    trace, prices = Trace("any", prompt, output), Prices(profile)
    run = Replayer(prices, SpeculationPolicy(governor=governor)).run(trace)
    assert sum(hits + 1 for hits in run.accepted) == len(output) - 1
    assert all(b - a == hits + 1 for (a, b), hits in zip(pairwise(run.positions), run.accepted[:-1], strict=True))
    assert run.seconds == pytest.approx(prices.unit * units(run, prices))
    chances = opportunities(trace, NgramIndex)
    least = clairvoyant_units(chances, prices)
    assert units(run, prices) >= least - 1e-9
    assert least <= best_fixed([chances], prices, MATCHES)[0] + 1e-9 <= plain_units(chances, prices) + 2e-9


@settings(max_examples=40, deadline=None)
@given(tokens, tokens, tokens, st.integers(0, 79), st.sampled_from(["cost", "probe", "off"]))
def test_decisions_never_depend_on_the_future(
    prompt: list[int], output: list[int], other: list[int], cut: int, governor: str
) -> None:
    """Two answers that agree up to `cut`: every window chosen before the texts part is the same."""
    cut = min(cut, len(output) - 2, len(other) - 2)
    prices = Prices(linear)
    decisions: list[list[tuple[int, int]]] = []
    for text in (output, output[:cut] + other[cut:] if cut >= 1 else output[:1] + other[1:]):
        replayer = Replayer(prices, SpeculationPolicy(governor=governor, draft_tokens=16))
        text = (text + [9] * 100)[:100]  # of one length, so that limits agree
        run = replayer.run(Trace("any", prompt, text))
        decisions.append([(p, w) for p, w in zip(run.positions, run.windows, strict=True) if p <= max(1, cut)])
    shared = min(len(d) for d in decisions)
    assert decisions[0][:shared] == decisions[1][:shared]


def test_fixed_windows_are_counted_as_the_loop_counts_them() -> None:
    trace, prices = quoting(1), Prices(linear)
    chances = opportunities(trace, NgramIndex)
    for window in (1, 4, 16):
        policy = SpeculationPolicy(governor="off", draft_tokens=window)
        run = Replayer(prices, policy).run(trace)
        assert units(run, prices) == pytest.approx(fixed_units(chances, prices, window, 0))
    assert 63 in WINDOWS


def test_the_same_inputs_give_the_same_run() -> None:
    traces = [quoting(1), prose(2), quoting(3)]

    def runs() -> list[Run]:
        replayer = Replayer(Prices(linear, noise=0.2), SpeculationPolicy(), seed=5)
        return [replayer.run(trace) for trace in traces]

    assert runs() == runs()


@pytest.mark.parametrize("profile", PROFILES)
def test_an_answer_that_starts_with_forty_perfect_tokens_before_free_prose(profile: Callable[[int], float]) -> None:
    prices = Prices(profile)
    replayer = Replayer(prices, SpeculationPolicy())
    for seed in range(6):
        copied, free = quoting(seed, 40, errors=0.0), prose(seed + 100, 200)
        trace = Trace("mixed", [*copied.prompt, *free.prompt], [*copied.output, *free.output])
        cost = units(replayer.run(trace), prices)
        assert cost <= plain_units(opportunities(trace, NgramIndex), prices) / 0.98
