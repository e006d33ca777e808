"""Steps in which nobody has anything to propose: what they leave undone makes no difference to anybody."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from speculation_doubles import Clock, FakeSequence, FakeTarget, Linear, Rows, Scripted

from surefoot.engine.speculation.contract import Capabilities, Committed, Draft, Foregone
from surefoot.engine.speculation.governor.contract import Outcome, StepRecord
from surefoot.engine.speculation.governor.pricing import Pricing
from surefoot.engine.speculation.governor.probe import ProbeGovernor
from surefoot.engine.speculation.policy import NO_WISHES, SpeculationPolicy
from surefoot.engine.speculation.quiet import LONGEST
from surefoot.engine.speculation.registry import Entry, Registry
from surefoot.engine.speculation.session import SpeculationSession

OFF = SpeculationPolicy(governor="off", type="following")


class Following(Scripted):
    """Has a draft to propose after every token 7, and nothing else; remembers what it was told and how."""

    def __init__(self) -> None:
        super().__init__(lambda context: Draft([1], [0]) if context.token_id == 7 else Draft([], reason="no match"))
        self.capabilities = Capabilities("following", 8, (0.9,))
        self.followed: list[int] = []
        self.last: int | None = 7
        self.broken = False

    def commit(self, committed: Sequence[Committed]) -> None:
        super().commit(committed)
        self.last = committed[-1].next_id

    def foresees(self, state: str) -> Foregone | None:
        return None if self.last == 7 else Foregone(Draft([], reason="no match"), self.follow)

    def follow(self, tokens: Sequence[int], size: int) -> bool:
        if self.broken:
            raise RuntimeError("boom")
        self.last = tokens[size]
        self.followed.append(tokens[size])
        return tokens[size] == 7


class Rig:
    """A session over it, and steps whose draws are given."""

    def __init__(self, policy: SpeculationPolicy = OFF) -> None:
        self.speculator = Following()
        self.clock = Clock()
        self.session = SpeculationSession(
            FakeTarget(),
            Linear(),
            self.clock,
            policy,
            Registry().extended("following", Entry(lambda t, r: self.speculator)),
        )
        self.sequence = FakeSequence([5, 6, 7], max_tokens=1000)
        self.step(1, 9)  # verified: 1; drawn: 9

    def step(self, *ids: int, crowded: bool = False, others: tuple[FakeSequence, ...] = ()) -> list[list[int]]:
        """The drafts of a step that then gives these tokens."""
        drafts = self.plan(crowded, others)
        self.clock.now += 0.01
        self.session.accepted(self.sequence, self.sequence.emit(ids), len(ids) - 1)
        self.session.finish(1, 1 + sum(map(len, drafts)), 0)
        return drafts

    def plan(self, crowded: bool = False, others: tuple[FakeSequence, ...] = ()) -> list[list[int]]:
        self.session.prepare((self.sequence, *others), crowded)
        return [list(draft) for draft in self.session.draft([Rows(self.sequence, self.sequence.draft_window)])]

    @property
    def steps(self) -> dict[str, int]:
        """By kind, those that there were, as an operator sees them."""
        shown: Any = self.session.snapshot()["steps"]
        return {kind: count for kind, count in shown.items() if count}


@pytest.mark.parametrize("length", [1, 2, LONGEST, 3 * LONGEST + 2])
def test_every_token_is_heard_of_and_every_step_is_booked(length: int) -> None:
    rig = Rig()
    quiet = [10 + i for i in range(length)]
    for token in quiet:
        assert rig.step(token) == [] and rig.sequence.draft_window == 0
    assert rig.speculator.followed == quiet and len(rig.speculator.commits) == 1, "one call each, and no other"
    assert rig.steps == {"verify": 1, "no_draft": length}
    assert rig.session.counts.no_draft == {"no match": length}
    assert rig.session.counts.seconds["no_draft"] == pytest.approx(0.01 * length)


def test_who_finds_something_is_asked_in_the_very_next_step() -> None:
    rig = Rig()
    assert rig.step(8) == [] and rig.step(7) == []
    assert rig.step(1, 9) == [[1]] and rig.step(8) == []
    assert rig.speculator.followed == [8, 7, 8]
    assert rig.speculator.commits[-1] == (6, [7, 1], 9, 1)
    assert rig.steps == {"verify": 2, "no_draft": 3}


def test_a_request_without_drafters_is_served_quietly_too() -> None:
    rig = Rig()
    rig.sequence.wishes = replace(NO_WISHES, enabled=False)
    rig.session.apply(replace(OFF, generation=1))
    for _ in range(LONGEST + 1):
        assert rig.step(7) == []
    assert rig.speculator.closed == ["request"] and rig.speculator.followed == []
    assert rig.steps == {"verify": 1, "plain": LONGEST + 1}


def test_a_report_has_all_steps_the_last_one_too() -> None:
    """A request ends between `accepted` and `finish`, or between two steps."""
    rig = Rig()
    rig.step(8)
    rig.step(8)
    rig.plan()
    rig.clock.now += 0.01
    rig.session.accepted(rig.sequence, rig.sequence.emit([8]), 0)
    tracked = rig.session.release(rig.sequence)
    rig.session.finish(1, 1, 0)
    assert tracked is not None and tracked.report.steps == {"verify": 1, "no_draft": 3}
    assert tracked.report.seconds == pytest.approx({"verify": 0.01, "no_draft": 0.03})
    assert rig.steps == {"verify": 1, "no_draft": 3} and rig.session.counts.armed == 0
    rig = Rig()
    rig.step(8)
    tracked = rig.session.release(rig.sequence)
    assert tracked is not None and tracked.report.steps == {"verify": 1, "no_draft": 1}
    assert rig.steps == {"verify": 1, "no_draft": 1}


def test_company_ends_a_run_and_what_was_missed_is_a_lag() -> None:
    rig, other = Rig(), FakeSequence([1, 2])
    other.request_id = "other"
    rig.step(8)
    rig.step(8, others=(other,))
    rig.speculator.lagging = 1
    assert rig.step(7) == [] and rig.speculator.lagging == 0, "a run begins as soon as everything is read"
    assert rig.step(1, 9) == [[1]] and rig.step(8) == []
    rig.step(8, crowded=True)
    assert rig.speculator.followed == [8, 7, 8] and len(rig.speculator.commits) == 2
    assert rig.steps["plain"] == 2


def test_a_run_goes_on_where_it_was_if_nobody_was_served_meanwhile() -> None:
    rig = Rig()
    rig.step(8)
    rig.plan(crowded=True)  # a step that gave nothing
    rig.session.finish(1, 1, 0)
    assert rig.step(8) == [] and rig.speculator.followed == [8, 8]


def test_a_step_that_gave_nothing_is_none() -> None:
    rig = Rig()
    rig.step(8)
    rig.plan()
    rig.clock.now += 5
    rig.session.finish(1, 1, 0)
    rig.step(8)
    assert rig.steps == {"verify": 1, "no_draft": 2}
    assert rig.session.counts.seconds["no_draft"] == pytest.approx(0.02)


def test_a_sequence_that_computes_its_tokens_anew_is_in_no_run() -> None:
    rig = Rig()
    rig.step(8)
    computed, rig.sequence.num_computed = rig.sequence.num_computed, 0  # preempted
    rig.plan()
    rig.session.finish(1, 4, 4)
    rig.sequence.num_computed = computed
    assert rig.step(8) == [] and rig.steps["no_draft"] == 2


def test_a_policy_takes_effect_in_the_middle_of_a_run() -> None:
    rig = Rig()
    rig.step(8)
    rig.session.apply(replace(OFF, enabled=False, generation=1))
    assert rig.step(7) == [] and rig.speculator.closed == ["request"]
    assert rig.step(7) == []
    assert rig.steps == {"verify": 1, "no_draft": 1, "plain": 2}


def test_a_follower_that_raises_loses_the_request_and_nothing_else_happens(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    rig.step(8)
    rig.speculator.broken = True
    with caplog.at_level(logging.ERROR):
        assert rig.step(8) == []
    assert "follow raised RuntimeError" in caplog.text and rig.session.counts.disarmed == {"raised": 1}
    assert rig.step(7) == [] and rig.step(7) == []
    assert rig.speculator.closed == ["request"]
    assert rig.steps == {"verify": 1, "no_draft": 2, "plain": 2}


def test_idling_between_two_steps_ends_a_run() -> None:
    rig = Rig(replace(OFF, governor="cost"))
    records = watched(rig)
    rig.step(8)
    rig.clock.now += 1
    rig.step(8)
    rig.session.snapshot()
    assert [record.after_idle for record in records] == [False, True]


def watched(rig: Rig) -> list[StepRecord]:
    """What the governor is told from now on."""
    records: list[StepRecord] = []
    governor: Any = rig.session.arming.governor
    record = governor.record

    def told(step: StepRecord) -> None:
        records.append(replace(step))
        record(step)

    governor.record = told
    return records


def test_the_governor_knows_all_before_it_is_asked() -> None:
    rig = Rig()
    records = watched(rig)
    for token in (8, 8, 7):
        rig.step(token)
    assert [(len(record.times), record.tokens, record.verified) for record in records] == [(3, 3, False)]
    for _ in range(LONGEST + 1):
        rig.step(8)
    assert len(records) == 3 and len(records[2].times) == LONGEST


def test_whoever_reads_the_debug_log_reads_of_every_step(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    rig = Rig()
    for _ in range(3):
        rig.step(8)
    assert [record.getMessage().partition("no draft: ")[2] for record in caplog.records] == ["following: no match"] * 3


def test_whoever_takes_time_makes_steps_slow_as_long_as_the_policy_has_it() -> None:
    rig = Rig()
    assert not rig.session.slow
    rig.speculator.capabilities = replace(rig.speculator.capabilities, paid=True)
    rig.session.apply(replace(OFF, generation=1))
    assert rig.session.slow
    rig.session.apply(replace(OFF, enabled=False, generation=2))
    assert not rig.session.slow


# --- several steps in one record -------------------------------------------------------------------------------------


def plain(seconds: float, *times: float) -> StepRecord:
    return StepRecord(seconds, 1, 1, 100, max(1, len(times)), (), times=times)


@pytest.mark.parametrize("size", [1, 3, 8, 20])
@pytest.mark.parametrize("after", [None, "verify"])
def test_prices_learn_the_same_from_steps_together_and_one_by_one(size: int, after: str | None) -> None:
    times = [0.01 * (1 + 0.03 * (i * 7 % 5)) for i in range(60)]
    together, single = Pricing(Linear()), Pricing(Linear())
    for begin in range(0, len(times), size):
        if after == "verify":
            for pricing in (together, single):
                pricing.record(StepRecord(0.02, 1, 5, 100, 2, ()), 0.02)
        chunk = times[begin : begin + size]
        together.record(plain(sum(chunk), *chunk), sum(chunk))
        for seconds in chunk:
            single.record(plain(seconds), seconds)
    assert together.unit(100) == pytest.approx(single.unit(100), rel=1e-12)
    assert together.list(1, 100).prices == pytest.approx(single.list(1, 100).prices, rel=1e-12)


def test_the_classical_rule_counts_steps_together_as_one_by_one() -> None:
    def lose(governor: ProbeGovernor) -> None:
        for _ in range(9):
            governor.record(StepRecord(1.0, 1, 9, 100, 1, [Outcome("a", asked=True)]))
        assert governor.snapshot()["state"] == "parked"

    together, single = ProbeGovernor(), ProbeGovernor()
    outcomes = [Outcome("a", asked=True)]
    times = [0.5 + 0.01 * i for i in range(50)]
    for governor in (together, single):
        lose(governor)
    together.record(StepRecord(sum(times), 1, 1, 100, len(times), outcomes, times=times))
    for seconds in times:
        single.record(StepRecord(seconds, 1, 1, 100, 1, outcomes))
    assert together.snapshot() == single.snapshot()
