"""The cost governor: what it picks, what it learns, what it never does."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from speculation_doubles import Linear

from surefoot.engine.speculation.contract import Capabilities, Draft, Scores
from surefoot.engine.speculation.governor.acceptance import GLOBAL_TRIALS, PRIOR_TRIALS, Acceptance, Posterior
from surefoot.engine.speculation.governor.contract import Offer, Outcome, Progress, Situation, StepRecord
from surefoot.engine.speculation.governor.cost import MARGIN, CostGovernor, Ticket, graded
from surefoot.engine.speculation.governor.pricing import COMPANY

SCORING = Capabilities("scoring", 64, tuple(i / 10 for i in range(11)), scores_itself=True)
BLIND = Capabilities("blind", 64, tuple(i / 10 for i in range(11)))
PAID = Capabilities("paid", 64, (0.9,) * 64, paid=True, draft_cost=0.03, expected_acceptance=0.95)
SOLO = Situation(1, 100)


def offer(ticket: Ticket, grades: Sequence[int], limit: int = 64) -> Offer:
    return Offer(ticket, Draft([7] * len(grades), grades), limit)


def window(grades: Sequence[int], slope: float, limit: int = 64) -> int:
    """What a fresh governor takes of a draft whose tokens have acceptance grade / 10."""
    governor = CostGovernor(Linear(slope))
    return governor.choose([offer(governor.open(SCORING, "r"), grades, limit)], SOLO)[0]


def test_a_hopeless_draft_is_left_alone_and_a_sure_one_taken_whole() -> None:
    assert window([1] * 8, slope=0.2) == 0
    assert window([10] * 8, slope=0.2) == 8
    assert window([10] * 8, slope=0.2, limit=3) == 3
    assert window([], slope=0.2) == 0


def test_the_tail_of_a_draft_is_trimmed_where_it_stops_paying() -> None:
    assert window([9, 9, 9, 2, 9, 9], slope=0.3) == 3


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 10), max_size=12), st.sampled_from([0.02, 0.1, 0.3, 0.7, 1.2]))
def test_no_other_window_is_expected_to_be_better(grades: list[int], slope: float) -> None:
    def rate(size: int) -> float:
        expected = 1 + sum(itertools.accumulate((g / 10 for g in grades[:size]), lambda a, b: a * b))
        return expected / (1 + slope * size)

    chosen = window(grades, slope)
    assert rate(chosen) >= max(rate(size) for size in range(len(grades) + 1)) / (MARGIN + 1e-4)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.lists(st.integers(0, 10), max_size=5), min_size=2, max_size=3), st.sampled_from([0.05, 0.3, 0.8]))
def test_a_batch_shares_its_rows_as_well_as_any_other_split(drafts: list[list[int]], slope: float) -> None:
    governor = CostGovernor(Linear(slope))
    offers = [offer(governor.open(SCORING, f"r{i}"), grades) for i, grades in enumerate(drafts)]
    count = len(offers)

    def rate(sizes: Sequence[int]) -> float:
        expected = float(count)
        for grades, size in zip(drafts, sizes, strict=True):
            expected += sum(itertools.accumulate((g / 10 for g in grades[:size]), lambda a, b: a * b))
        return expected / (1 + slope * (count - 1 + sum(sizes)))

    chosen = governor.choose(offers, Situation(count, 100))
    splits = itertools.product(*(range(len(grades) + 1) for grades in drafts))
    plain = 1 + slope * (count - 1)
    best = max(rate(sizes) for sizes in splits if plain + slope * sum(sizes) <= COMPANY * plain)
    assert plain + slope * sum(chosen) <= COMPANY * plain + 1e-9, "neighbours wait for every row"
    assert rate(chosen) >= best / (MARGIN + 1e-4)


def test_in_company_nothing_is_planned_asked_or_verified_that_neighbours_would_wait_for() -> None:
    pair, progress = Situation(2, 100), Progress(0, 10, 100)
    nearly_free, dear = CostGovernor(Linear(0.01)), CostGovernor(Linear(0.2))
    ticket = nearly_free.open(SCORING, "r")
    assert nearly_free.plan(ticket, pair, 64, progress) == 5  # 5 percent of a plain step of two
    assert nearly_free.choose([offer(ticket, [10] * 64)], pair) == [5]
    ticket = dear.open(SCORING, "r")
    assert dear.plan(ticket, SOLO, 64, progress) == 64
    assert dear.plan(ticket, pair, 64, progress) == 0
    assert dear.choose([offer(ticket, [10] * 64)], pair) == [0]


def test_in_company_a_paid_drafters_own_time_counts_and_free_rows_are_compared_as_far_as_they_may_go() -> None:
    governor = CostGovernor(Linear(0.01))
    paid = governor.open(PAID, "r")
    assert governor.plan(paid, SOLO, 64, Progress(0, 10, 1000)) > 8
    assert governor.plan(paid, Situation(2, 100), 64, Progress(0, 10, 1000)) == 1  # a row and its drafting: 0.04
    # Five free rows beat one paid one, however long the free draft is; none beat it where rows are dear to neighbours.
    free = offer(governor.open(SCORING, "r"), [10] * 64)
    assert not governor.beats(paid, [free], Situation(2, 100))
    assert governor.beats(paid, [offer(free.ticket, [0] * 64)], Situation(2, 100))


def test_of_two_offers_of_a_request_the_better_is_used() -> None:
    governor = CostGovernor(Linear(0.1))
    poor, good = governor.open(SCORING, "r"), governor.open(BLIND, "r")
    assert governor.choose([offer(poor, [3] * 4), offer(good, [9] * 4)], SOLO) == [0, 4]


def test_shadow_scores_move_the_choice_both_ways() -> None:
    governor = CostGovernor(Linear(0.3))
    ticket = governor.open(SCORING, "r")
    assert governor.choose([offer(ticket, [9] * 4)], SOLO) == [4]
    governor.observe(ticket, Scores((), [(9, 40, 0)]))
    assert governor.choose([offer(ticket, [9] * 4)], SOLO) == [0]
    governor.observe(ticket, Scores((), [(1, 60, 60)]))
    assert governor.choose([offer(ticket, [1] * 4)], SOLO) == [4]


def test_a_request_learns_faster_than_the_process_and_does_not_bind_the_next() -> None:
    governor = CostGovernor(Linear(0.3))
    prose = governor.open(SCORING, "prose")
    governor.observe(prose, Scores((), [(9, 60, 0)]))
    quote = governor.open(SCORING, "quote")
    assert governor.choose([offer(prose, [9] * 4)], SOLO) == [0]
    governor.observe(quote, Scores((), [(9, 60, 60)]))
    assert governor.choose([offer(quote, [9] * 4)], SOLO) == [4]


def test_prompt_scores_teach_the_request_only() -> None:
    governor = CostGovernor(Linear(0.4))
    ticket = governor.open(SCORING, "r")
    governor.observe(ticket, Scores([(9, 60, 0)], ()))
    assert governor.choose([offer(ticket, [9] * 4)], SOLO) == [0]
    assert governor.choose([offer(governor.open(SCORING, "next"), [9] * 4)], SOLO) == [4]


def verify(governor: CostGovernor, ticket: Ticket, draft: Draft, size: int, accepted: int) -> None:
    outcome = Outcome(ticket, True, draft, size, accepted)
    governor.record(StepRecord(0.01, 1, 1 + size, 100, 1 + accepted, [outcome]))


def test_an_algorithm_that_does_not_score_itself_is_judged_by_its_verifies() -> None:
    draft = Draft([1] * 4, [9, 8, 7, 6])
    assert graded(Outcome(None, True, draft, 4, 2)) == [(9, 1, 1), (8, 1, 1), (7, 1, 0)]
    assert graded(Outcome(None, True, draft, 4, 4)) == [(9, 1, 1), (8, 1, 1), (7, 1, 1), (6, 1, 1)]
    assert graded(Outcome(None, True, draft, 2, 2)) == [(9, 1, 1), (8, 1, 1)], "what was not verified is unknown"
    governor = CostGovernor(Linear(0.3))
    blind, scoring = governor.open(BLIND, "r"), governor.open(SCORING, "r")
    for _ in range(40):
        verify(governor, blind, draft, 1, 0)
        verify(governor, scoring, draft, 1, 0)
    assert blind.posterior.mean(9) < 0.4
    assert scoring.posterior.mean(9) == pytest.approx(0.9)


def test_losses_on_a_request_raise_its_bar_for_a_while() -> None:
    governor = CostGovernor(Linear(0.3))
    ticket = governor.open(SCORING, "r")
    marginal = [4]  # 1.4 tokens for 1.3 steps
    assert governor.choose([offer(ticket, marginal)], SOLO) == [1]
    for _ in range(8):
        verify(governor, ticket, Draft([1], marginal), 1, 0)
    assert governor.choose([offer(ticket, marginal)], SOLO) == [0]
    assert governor.choose([offer(ticket, [9] * 4)], SOLO) == [4], "a good draft clears any bar"
    assert governor.choose([offer(governor.open(SCORING, "next"), marginal)], SOLO) == [1]
    for _ in range(300):
        governor.record(StepRecord(0.01, 1, 1, 100, 1, [Outcome(ticket, True)]))
    assert governor.choose([offer(ticket, marginal)], SOLO) == [1]


def test_acceptance_levels() -> None:
    process = Acceptance([0.5, 0.2])
    request = Posterior(process)
    assert request.mean(0) == 0.5
    request.observe([(0, 1, 1)])
    process_mean = (1 + PRIOR_TRIALS * 0.5) / (1 + PRIOR_TRIALS)
    assert process.means[0] == pytest.approx(process_mean, rel=0.01)
    own = (1 + GLOBAL_TRIALS * process.means[0]) / (1 + GLOBAL_TRIALS)
    assert own < request.mean(0) < own + 0.03, "its own trial, and the tilt"
    assert 0.2 < request.mean(1) < 0.22, "the tilt is shared by all grades"
    for _ in range(400):
        request.observe([(0, 1, 1)])
    assert request.mean(0) > 0.95
    assert process.means[0] < 0.95, "one long loop does not speak for all"
    for _ in range(60):
        request.observe([(0, 1, 0)])
    assert request.mean(0) < 0.4, "a request forgets"


def test_the_snapshot_has_prices_and_posterior() -> None:
    governor = CostGovernor(Linear(0.1))
    ticket = governor.open(SCORING, "r")
    governor.observe(ticket, Scores((), [(3, 5, 2)]))
    verify(governor, ticket, Draft([1] * 3, [9] * 3), 3, 2)
    shown = governor.snapshot()
    assert shown["acceptance"]["scoring"][0]["grade"] == 3  # type: ignore[index]
    assert shown["cost"]["prices"][3] == pytest.approx(1.3, rel=0.2)  # type: ignore[index]
    assert governor.rates == (shown["plain_seconds_per_token"], pytest.approx(0.01 / 3))
    assert 0 < shown["plain_seconds_per_token"] < 0.02  # type: ignore[operator]


# --- drafters that take device time ---------------------------------------------------------------------------------


def paid(draft_cost: float, prior: float = 0.8, read_cost: float = 0.05) -> Capabilities:
    return Capabilities(
        "paid",
        16,
        (prior,) * 11,
        paid=True,
        draft_cost=draft_cost,
        read_cost=read_cost,
        expected_acceptance=prior,
    )


def plan(governor: CostGovernor, ticket: Ticket, lag: int = 0, emitted: int = 100, remaining: int = 500) -> int:
    return governor.plan(ticket, SOLO, 8, Progress(lag, emitted, remaining))


def test_a_paid_drafter_runs_when_it_should_pay() -> None:
    for cost, expected in ((0.1, 8), (2.0, 0)):
        governor = CostGovernor(Linear(0.05))
        assert plan(governor, governor.open(paid(cost), "r")) == expected


def test_catching_up_must_be_worth_it_over_what_remains() -> None:
    governor = CostGovernor(Linear(0.05))
    ticket = governor.open(paid(0.1, read_cost=0.2), "r")
    assert plan(governor, ticket, lag=300, remaining=500) == 8
    assert plan(governor, ticket, lag=300, remaining=20) == 0
    assert plan(governor, ticket, lag=3000, remaining=500) == 0


def test_a_draft_stops_growing_when_the_next_step_costs_more_than_it_brings() -> None:
    governor = CostGovernor(Linear(0.05))
    ticket = governor.open(Capabilities("paid", 16, tuple(i / 10 for i in range(11)), paid=True, draft_cost=0.2), "r")
    for position in range(16):  # the process has seen that about half are accepted, at any position
        ticket.paid.positions.observe([(position, 40, 22)])  # type: ignore[union-attr]
    assert plan(governor, ticket) == 8
    assert governor.keep_going(ticket, 0, 10)
    assert not governor.keep_going(ticket, 1, 1), "a token that is nearly always wrong"
    assert plan(governor, ticket) == 8
    assert all(governor.keep_going(ticket, position, 10) for position in range(2))
    assert not governor.keep_going(ticket, 7, 10), "the window is full"


def test_a_losing_paid_drafter_is_parked_and_tried_again_within_one_percent() -> None:
    governor = CostGovernor(Linear(0.05))
    ticket = governor.open(paid(0.4), "r")
    lost = total = 0.0
    trials = 0
    for i in range(6000):
        size = plan(governor, ticket, emitted=i, remaining=6000 - i)
        if size:
            cost = 0.4 * size + 0.05 * size
            outcome = Outcome(ticket, True, Draft([1] * size, [5] * size, 0.004 * size), size, 0)
            governor.record(StepRecord(0.01 + 0.01 * cost, 1, 1 + size, 100, 1, [outcome]))
            lost += cost
            trials += 1
        else:
            governor.record(StepRecord(0.01, 1, 1, 100, 1, [Outcome(ticket, False)]))
        total += 1.0
    assert trials > 10, "it is tried again"
    assert lost < 0.012 * total + 40, f"{lost:.0f} of {total:.0f} units were lost"


def test_a_paid_drafter_that_has_become_good_comes_back() -> None:
    governor = CostGovernor(Linear(0.05))
    ticket = governor.open(paid(0.1), "r")
    good = 0
    for i in range(3000):
        size = plan(governor, ticket, emitted=i, remaining=3000 - i)
        hits = size if i > 1000 else 0
        draft = Draft([1] * size, [5] * size, 0.001 * size)
        cost = 0.01 * (1 + 0.15 * size)
        governor.record(StepRecord(cost, 1, 1 + size, 100, 1 + hits, [Outcome(ticket, size > 0, draft, size, hits)]))
        good += hits > 0 and i > 2500
    assert good > 400
