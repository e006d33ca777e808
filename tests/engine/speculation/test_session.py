"""The loop around a step: arming, windows, faults of algorithms, commits, policy changes. No model, no scheduler."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast

import pytest
from speculation_doubles import Clock, FakeSequence, FakeTarget, Linear, Rows, Scripted

from surefoot.engine.speculation.contract import Capabilities, Committed, Draft, DraftContext, Foregone, Verdict
from surefoot.engine.speculation.policy import RequestSpeculation, SpeculationPolicy
from surefoot.engine.speculation.registry import Declined, Entry, Registry
from surefoot.engine.speculation.session import SpeculationSession

OFF = SpeculationPolicy(governor="off", type="scripted")


class Rig:
    """A session over one scripted algorithm, and steps whose draws are given."""

    def __init__(
        self,
        script: Callable[[DraftContext], Any] = lambda context: draft([1, 2, 3][: context.max_tokens]),
        policy: SpeculationPolicy = OFF,
        target: FakeTarget | None = None,
        speculator: type[Scripted] = Scripted,
        **capabilities: Any,
    ) -> None:
        self.speculator = speculator(script)
        self.speculator.capabilities = Capabilities("scripted", 8, (0.9,), **capabilities)
        self.clock = Clock()
        self.session = SpeculationSession(
            target or FakeTarget(),
            Linear(),
            self.clock,
            policy,
            Registry().extended("scripted", Entry(lambda t, r: self.speculator)),
        )

    def plan(self, *sequences: FakeSequence, crowded: bool = False, room: int = 99) -> list[list[int]]:
        """The drafts of a step."""
        self.session.prepare(sequences, crowded)
        drafts = self.session.draft([Rows(s, min(s.draft_window, room)) for s in sequences])
        return [list(d) for d in drafts]

    def emit(self, sequence: FakeSequence, ids: Sequence[int], rows: int = 1) -> None:
        """The step's draws: all but the last were drafted."""
        self.clock.now += 0.01
        start = sequence.emit(ids)
        self.session.accepted(sequence, start, len(ids) - 1)
        self.session.finish(1, rows, 0)


def draft(ids: list[int]) -> Draft:
    return Draft(ids, [0] * len(ids))


def test_late_arming_at_the_first_decode_step() -> None:
    rig, sequence = Rig(), FakeSequence([5, 6, 7])
    rig.session.prepare([], crowded=True)
    assert rig.speculator.opened == []
    assert rig.plan(sequence) == [[1, 2, 3]]
    assert rig.speculator.opened == ["request"] and rig.session.counts.armed == 1
    context = rig.speculator.contexts[0]
    assert (context.token_id, context.position, context.max_tokens) == (7, 2, 8)


def test_a_step_commits_its_kept_rows_and_the_next_input() -> None:
    rig, sequence = Rig(), FakeSequence([5, 6, 7])
    rig.plan(sequence)
    rig.emit(sequence, [1, 2, 9], rows=4)
    assert rig.speculator.commits == [(2, [7, 1, 2], 9, 3)]
    assert rig.session.counts.drafted == {"scripted": 3} and rig.session.counts.accepted == {"scripted": 2}
    assert rig.session.counts.accepted_by_position[:3] == [1, 1, 0]
    assert rig.session.counts.steps["verify"] == 1
    assert sequence.speculation is not None
    assert sequence.speculation.report.as_dict()["accepted_per_position"] == [1, 1]


@pytest.mark.parametrize(("remaining", "expected"), [(1, []), (2, [1]), (3, [1, 2]), (9, [1, 2, 3])])
def test_no_draft_exceeds_what_may_be_emitted(remaining: int, expected: list[int]) -> None:
    rig, sequence = Rig(), FakeSequence([5, 6, 7], max_tokens=1 + remaining)
    assert rig.plan(sequence) == ([expected] if expected else [])


def test_blocks_and_rows_bound_a_draft() -> None:
    rig, sequence = Rig(), FakeSequence([5, 6, 7])
    assert rig.plan(sequence, room=2) == [[1, 2]]
    assert rig.plan(sequence, room=0) == []


def test_a_request_of_one_token_is_never_armed() -> None:
    rig, sequence = Rig(), FakeSequence([5, 6, 7, 8], num_prompt=3, max_tokens=1)
    rig.plan(sequence)
    assert rig.speculator.opened == []
    assert rig.session.counts.declined == {"the request cannot emit two tokens": 1}


def test_a_request_speculates_only_alone_unless_the_policy_says_otherwise() -> None:
    rig, one, two = Rig(), FakeSequence([5, 6, 7]), FakeSequence([8, 9])
    two.request_id = "two"
    assert rig.plan(one, two) == [] and rig.plan(one, crowded=True) == []
    prefilling = FakeSequence([1, 2, 3, 4])
    prefilling.num_computed = 1
    assert rig.plan(prefilling) == []
    rig.session.apply(replace(OFF, max_batch=2, generation=1))
    assert rig.plan(one, two) == [[1, 2, 3], [1, 2, 3]]


def test_a_context_survives_a_busy_spell() -> None:
    rig, sequence, other = Rig(), FakeSequence([5, 6, 7]), FakeSequence([1, 2])
    rig.plan(sequence)
    rig.emit(sequence, [1, 9], rows=4)
    rig.plan(sequence, other)
    rig.emit(sequence, [4])
    assert len(rig.speculator.commits) == 1, "nothing is committed to it meanwhile"
    rig.speculator.lagging = 1
    assert rig.plan(sequence) == [[1, 2, 3]]
    assert rig.speculator.opened == ["request"] and rig.speculator.lagging == 0


def test_reading_goes_in_pieces_between_plain_steps_and_costs_no_step_time() -> None:
    rig, sequence = Rig(), FakeSequence([5, 6, 7])
    rig.speculator.lagging = 25
    for _ in range(2):
        assert rig.plan(sequence) == []
        rig.emit(sequence, [4])
    assert rig.speculator.commits == []
    assert rig.plan(sequence) == [[1, 2, 3]]
    assert rig.session.counts.catch_ups == 3
    assert rig.session.counts.seconds["parked"] == pytest.approx(0.02)


@pytest.mark.parametrize(
    ("wishes", "policy", "reason"),
    [
        (RequestSpeculation(enabled=False), OFF, "the request switched it off"),
        (RequestSpeculation(draft_tokens=0), OFF, "draft_tokens is 0"),
        (RequestSpeculation(), replace(OFF, draft_tokens=0), "draft_tokens is 0"),
    ],
)
def test_who_wants_none_gets_none(wishes: RequestSpeculation, policy: SpeculationPolicy, reason: str) -> None:
    rig, sequence = Rig(policy=policy), FakeSequence([5, 6, 7])
    sequence.wishes = wishes
    assert rig.plan(sequence) == [] and rig.speculator.opened == []
    assert sequence.speculation is not None and sequence.speculation.declined == reason


def test_windows_of_policy_and_request() -> None:
    rig, sequence = Rig(lambda context: draft(list(range(context.max_tokens)))), FakeSequence([5, 6, 7])
    sequence.wishes = RequestSpeculation(draft_tokens=5)
    assert rig.plan(sequence) == [[0, 1, 2, 3, 4]]
    rig.session.apply(replace(OFF, draft_tokens=2, generation=1))
    assert rig.plan(sequence) == [[0, 1]]
    assert rig.speculator.opened == ["request"], "a narrower window re-arms nothing"


# --- algorithms that break their contract ----------------------------------------------------------------------------


def boom(*_: Any) -> Any:
    raise RuntimeError("boom")


@pytest.mark.parametrize(
    ("script", "fault"),
    [
        (boom, "propose raised RuntimeError"),
        (lambda context: draft(list(range(context.max_tokens + 1))), "it proposed 9 tokens for a window of 8"),
        (lambda context: draft([1, 1000]), "outside the vocabulary"),
        (lambda context: draft([-1]), "outside the vocabulary"),
        (lambda context: Draft([1, 2], [0]), "it proposed 2 tokens"),
        (lambda context: None, "propose gave None"),
        (lambda context: Draft(cast("list[int]", ["1"]), [0]), "outside the vocabulary"),
    ],
)
def test_a_hostile_algorithm_loses_the_request_and_nothing_else_happens(
    script: Callable[[DraftContext], Any], fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    rig, sequence = Rig(script), FakeSequence([5, 6, 7])
    with caplog.at_level(logging.ERROR):
        assert rig.plan(sequence) == []
    rig.emit(sequence, [4])
    assert fault in caplog.text
    assert rig.speculator.closed == ["request"] and rig.session.counts.armed == 0
    assert sum(rig.session.counts.disarmed.values()) == 1
    assert sequence.speculation is not None and fault in str(sequence.speculation.declined)
    assert rig.plan(sequence) == [] and rig.speculator.opened == ["request"], "it is not armed again"


@pytest.mark.parametrize("method", ["open", "catch_up", "commit"])
def test_whatever_raises_is_disarmed(method: str) -> None:
    rig, sequence = Rig(), FakeSequence([5, 6, 7])
    rig.speculator.lagging = 5
    setattr(rig.speculator, method, boom)
    for _ in range(3):
        rig.plan(sequence)
        rig.emit(sequence, [4])
    assert sum(rig.session.counts.disarmed.values()) == 1
    assert rig.plan(sequence) == []


def test_in_a_batch_only_the_requests_it_fails_for_lose_it() -> None:
    def script(context: DraftContext) -> Draft:
        return boom() if context.token_id == 7 else draft([1])

    rig = Rig(script, replace(OFF, max_batch=2))
    bad, good = FakeSequence([5, 6, 7]), FakeSequence([5, 6, 8])
    good.request_id = "good"
    assert rig.plan(bad, good) == [[], [1]]
    assert bad.speculation is not None and not bad.speculation.armed
    assert rig.plan(bad, good) == [[], [1]]


# --- policy and endings ----------------------------------------------------------------------------------------------


def test_switching_off_disarms_and_on_arms_anew() -> None:
    rig, sequence = Rig(), FakeSequence([5, 6, 7])
    rig.plan(sequence)
    rig.session.apply(replace(OFF, enabled=False, generation=1))
    assert rig.speculator.closed == ["request"]
    assert rig.plan(sequence) == [] and rig.session.arming.declined == "speculation is switched off"
    rig.session.apply(replace(OFF, generation=2))
    assert rig.plan(sequence) == [[1, 2, 3]]
    assert rig.speculator.opened == ["request"] * 2


def test_a_governor_keeps_what_it_knows_while_another_serves() -> None:
    rig = Rig()
    off = rig.session.arming.governor
    rig.session.apply(replace(OFF, governor="cost", generation=1))
    assert rig.session.arming.governor.name == "cost"
    rig.session.apply(replace(OFF, generation=2))
    assert rig.session.arming.governor is off


def test_ending_closes_everything() -> None:
    rig, sequence = Rig(), FakeSequence([5, 6, 7])
    rig.plan(sequence)
    rig.session.release(sequence)
    assert rig.speculator.closed == ["request"] and rig.session.counts.armed == 0
    assert not rig.session.arming.tracked and sequence.speculation is None and sequence.draft_window == 0
    assert rig.session.release(sequence) is None


def test_what_cannot_serve_is_logged_once_and_shown(caplog: pytest.LogCaptureFixture) -> None:
    target = FakeTarget(verdict=Verdict(refusal="its verify cannot reproduce its decode"))
    with caplog.at_level(logging.WARNING):
        rig = Rig(target=target)
        rig.session.apply(replace(OFF, generation=1))
    assert caplog.text.count("its verify cannot reproduce its decode") == 1
    assert rig.session.snapshot()["declined"] == "its verify cannot reproduce its decode"
    assert rig.plan(FakeSequence([5, 6, 7])) == []


def test_an_algorithm_that_must_see_the_prompt_is_not_armed_late() -> None:
    for rig in (Rig(handles_own_prefill=True), Rig(needs_hidden=True)):
        sequence = FakeSequence([5, 6, 7])
        assert rig.plan(sequence) == []
        assert sequence.speculation is not None
        assert sequence.speculation.declined == "the algorithm needs the prompt's hidden rows"


def test_kinds_of_steps() -> None:
    scripts = iter([draft([1]), Draft([], reason="no match"), draft([1])])
    rig, sequence = Rig(lambda context: next(scripts)), FakeSequence([5, 6, 7])
    for rows in (2, 1):
        rig.plan(sequence)
        rig.emit(sequence, [1, 9][: 3 - rows] if rows == 2 else [9], rows)
    rig.plan(sequence, crowded=True)
    rig.emit(sequence, [9])
    assert rig.session.counts.steps == {"plain": 1, "verify": 1, "no_draft": 1, "parked": 0, "prescribed": 0}
    assert rig.session.counts.no_draft == {"no match": 1}
    assert rig.session.snapshot()["steps"] == rig.session.counts.steps


def session_over(**entries: Entry) -> SpeculationSession:
    return SpeculationSession(FakeTarget(), Linear(), Clock(), SpeculationPolicy(), Registry(entries))


def test_auto_arms_the_first_with_weights_and_what_costs_nothing() -> None:
    def serving(name: str, weight_free: bool, paid: bool) -> Entry:
        made = Scripted(capabilities=Capabilities(name, 8, (0.5,), paid=paid))
        return Entry(lambda target, resources: made, weight_free)

    session = session_over(
        a=Entry(lambda t, r: Declined("no file")),
        b=serving("b", False, True),
        c=serving("c", False, True),
        d=serving("d", True, False),
    )
    assert session.snapshot()["algorithms"] == ["d", "b"]
    session = session_over(a=Entry(lambda t, r: Declined("no file")), b=Entry(lambda t, r: Declined("no head")))
    assert session.arming.declined == "a: no file; b: no head"


def test_a_paid_drafter_is_asked_only_if_it_should_beat_the_free_draft() -> None:
    free = Scripted(lambda context: draft([1, 2, 3]), Capabilities("free", 8, (0.9,)))
    paid = Scripted(lambda context: draft([4, 5, 6]), Capabilities("paid", 8, (0.95,), paid=True, draft_cost=0.2))
    sequence = FakeSequence([5, 6, 7])
    for prior, expected in (((0.9,), [1, 2, 3]), ((0.05,), [4, 5, 6])):
        free.capabilities = replace(free.capabilities, grade_priors=prior, name=f"free {prior}")
        session = session_over(
            free=Entry(lambda t, r: free, weight_free=True), paid=Entry(lambda t, r: paid, weight_free=False)
        )
        sequence.speculation = None
        session.prepare((sequence,), crowded=False)
        assert list(session.draft((Rows(sequence, sequence.draft_window),))[0]) == expected
    assert len(paid.contexts) == 1


# --- what is said about it -------------------------------------------------------------------------------------------


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The debug lines since the last call, without their heads."""
    texts = [record.getMessage().partition("no draft: ")[2] for record in caplog.records]
    caplog.clear()
    return [text for text in texts if text]


def test_every_armed_step_without_a_draft_is_explained(caplog: pytest.LogCaptureFixture) -> None:
    scripts = iter([draft([1]), Draft([], reason="no match"), Draft([])])
    rig, sequence = Rig(lambda context: next(scripts)), FakeSequence([5, 6, 7], max_tokens=20)
    caplog.set_level(logging.DEBUG)
    rig.plan(sequence)
    assert lines(caplog) == [], "a step with a draft needs no explanation"
    rig.emit(sequence, [1, 9], rows=2)
    for expected in ("no match", "no reason given"):
        rig.plan(sequence)
        rig.emit(sequence, [9])
        assert lines(caplog) == [f"scripted: {expected}"]
    rig.plan(sequence, room=0)
    assert lines(caplog) == ["scripted: no rows or blocks are left"]
    rig.plan(sequence, crowded=True)
    assert lines(caplog) == ["others run, wait or prefill"]
    rig.speculator.lagging = 25
    rig.plan(sequence)
    assert lines(caplog) == ["scripted: 25 tokens of history are unread"]
    rig.speculator.lagging = 0
    sequence.max_length = len(sequence.tokens) + 1
    rig.plan(sequence)
    assert lines(caplog) == ["scripted: only one token may follow"]


def test_a_governors_refusals_are_explained(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    bad = Scripted(lambda context: draft([1, 2, 3]), Capabilities("bad", 8, (0.01,)))
    session = session_over(bad=Entry(lambda t, r: bad, weight_free=True))
    sequence = FakeSequence([5, 6, 7])
    session.prepare((sequence,), crowded=False)
    assert session.draft((Rows(sequence, sequence.draft_window),)) == ()
    assert lines(caplog) == ["bad: its draft is not worth the rows"]
    paid = Scripted(lambda context: draft([4]), Capabilities("paid", 8, (0.01,), paid=True, draft_cost=0.5))
    session = session_over(paid=Entry(lambda t, r: paid, weight_free=False))
    sequence = FakeSequence([5, 6, 7])
    session.prepare((sequence,), crowded=False)
    assert session.draft((Rows(sequence, sequence.draft_window),)) == ()
    assert lines(caplog) == ["paid: the governor has parked it"]


def test_nothing_is_explained_where_nobody_listens(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    rig, sequence = Rig(lambda context: Draft([])), FakeSequence([5, 6, 7])
    rig.plan(sequence)
    assert caplog.records == []


def test_a_report_adds_up_steps_and_milliseconds_by_kind() -> None:
    scripts = iter([Draft([1, 2], [0, 0], seconds=0.002), Draft([], reason="no match")])
    rig, sequence = Rig(lambda context: next(scripts)), FakeSequence([5, 6, 7])
    rig.plan(sequence)
    rig.emit(sequence, [1, 9], rows=3)
    rig.plan(sequence)
    rig.emit(sequence, [9])
    rig.plan(sequence, crowded=True)
    rig.emit(sequence, [9])
    assert sequence.speculation is not None
    report = sequence.speculation.report
    body = report.as_dict()
    assert body["algorithms"] == ["scripted"]
    assert body["steps"] == {"verify": 1, "no_draft": 1, "plain": 1}
    assert body["step_ms"] == pytest.approx({"verify": 10.0, "no_draft": 10.0, "plain": 10.0})
    assert report.line() == (
        "scripted: drafted 2, verified 2, accepted 1; steps: verify 1 (10.0 ms), no_draft 1 (10.0 ms), "
        "plain 1 (10.0 ms); drafting took 2.0 ms of them, reading 0.0 ms between them"
    )


# --- steps in which nothing can be drafted cost next to nothing ------------------------------------------------------


class Foregoing(Scripted):
    """Knows after every commit that it will propose nothing next. What it reads may make it think again."""

    heard = False

    def commit(self, committed: Sequence[Committed]) -> None:
        super().commit(committed)
        self.heard = True

    def catch_up(self, state: str, seconds: float) -> int:
        self.heard = False
        return super().catch_up(state, seconds)

    def foresees(self, state: str) -> Foregone | None:
        return Foregone(Draft([], reason="no match")) if self.heard else None


def test_who_has_nothing_to_propose_is_not_asked_and_reserves_no_rows() -> None:
    rig, sequence = Rig(speculator=Foregoing), FakeSequence([5, 6, 7])
    assert rig.plan(sequence) == [[1, 2, 3]]
    rig.emit(sequence, [1, 9], rows=4)
    for _ in range(2):
        assert rig.plan(sequence) == [] and sequence.draft_window == 0
        rig.emit(sequence, [4])
    assert len(rig.speculator.contexts) == 1 and len(rig.speculator.commits) == 3
    assert rig.session.counts.no_draft == {"no match": 2} and rig.session.counts.steps["no_draft"] == 2
    rig.plan(sequence, crowded=True)
    rig.emit(sequence, [4])
    rig.speculator.lagging = 1
    assert rig.plan(sequence) == [[1, 2, 3]], "what it knew is out of date"


def test_nobody_is_armed_before_it_can_pay_but_a_report_says_so() -> None:
    rig, sequence = Rig(patience=3), FakeSequence([5, 6, 7])
    sequence.wishes = RequestSpeculation(report=True)
    for _ in range(2):
        assert rig.plan(sequence) == [] and rig.speculator.opened == []
        rig.emit(sequence, [4])
    short = rig.session.release(sequence)
    assert short is not None and "before a draft could have paid" in str(short.declined) and not short.report.steps
    assert rig.plan(sequence) == [[1, 2, 3]] and rig.speculator.opened == ["request"]
