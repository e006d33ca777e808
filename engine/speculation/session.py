"""The one implementation of the speculative loop around a step, for every algorithm, model and governor.

The engine calls, in order: `prepare` before scheduling (arming, catch-up, how wide a window may be), `draft` once rows
are planned and their blocks reserved, `accepted` for each sequence whose draws were taken, and `finish`. All of it
lives on the engine thread. Nothing here changes a token: a draft only says which draws may come from one step.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from ...kernels.backend import Executor, RowHandle
from .armed import NO_REASON, Armed, SpeculativeSequence, Tracked
from .arming import Arming
from .contract import Capabilities, Follow, Target
from .drafting import NO_DRAFTS, Drafting
from .explain import PlannedRows, kind_of, log_steps_without_draft
from .governor import GOVERNORS
from .governor.contract import CostCurve, Outcome, Situation, StepRecord
from .policy import SpeculationPolicy, patched
from .quiet import LONGEST, QuietRun, quiet_run
from .registry import Registry, Resources

_log = logging.getLogger(__name__)

CATCH_UP_SECONDS = 0.005  # a piece of reading between two steps
PAID_CATCH_UP_SECONDS = 0.05  # where reading is a step of another model, worth nothing in smaller pieces
IDLE_SECONDS = 0.05  # between two steps: the next one runs on a machine that has gone to sleep
PRICED_EVERY = 8  # of steps in a row in which nobody may speculate


class SpeculationSession:
    """Policy, speculators, governor and armed requests of one target."""

    def __init__(
        self,
        target: Target,
        curve: CostCurve,
        clock: Callable[[], float],
        policy: SpeculationPolicy | None = None,
        registry: Registry | None = None,
        resources: Resources | None = None,
        executor: Executor | None = None,
        max_running: int = 1 << 30,
    ) -> None:
        self.arming = Arming(
            target,
            curve,
            policy or SpeculationPolicy(),
            registry or Registry(),
            resources or Resources(),
            max_running,
        )
        self.counts = self.arming.counts
        self._drafting = Drafting(self.arming, target.vocab_size)
        self.taps: tuple[str, ...] = ()  # outputs that the coming step must hand out
        self._run: QuietRun | None = None  # steps that nobody has anything to do in, the coming one being the next
        self._target = target
        self._clock = clock
        self._executor = executor
        self._situation = Situation(0, 0)
        self.outcomes: list[Outcome] = []  # of the last step: one for each drafter that somebody has
        self._record = StepRecord(0.0, 0, 0, 0, 0, self.outcomes)
        self._eligible = False
        self._widest = 0  # the widest window planned for the coming step
        self._kind = "plain"  # what the step was for the sequence accepted last
        self._certain = 0  # tokens that a grammar prescribed, in the running step
        self._tokens, self._began = 0, 0.0
        self._shared = 0  # steps in a row in which nobody had a drafter to ask
        self._finished, self._last_kind = clock(), "plain"

    def apply(self, policy: SpeculationPolicy) -> None:
        """A new policy, between steps."""
        self._end_run()
        self.arming.apply(policy)

    @property
    def slow(self) -> bool:
        """Whether drafters may take their time before the coming step: reading a prompt, then drafting."""
        return self.arming.paid

    def change(self, body: object) -> dict[str, object]:
        """PATCH /admin/speculation: the policy then in force, and why a setting has no effect. RequestError 422."""
        arming = self.arming
        self.apply(patched(arming.policy, body, arming.registry.names, GOVERNORS))
        return {"policy": arming.policy.as_dict(), "not_effective": arming.not_effective()}

    def release(self, sequence: SpeculativeSequence) -> Tracked | None:
        """The request has ended. Returns what its speculation did."""
        run = self._run
        if run is not None and run.sequence is sequence:
            self._book_run(run)
            if self._tokens:
                run.end_with(self._clock() - self._began)
            else:
                self._end_run()
        return self.arming.release(sequence)

    # --- before scheduling -------------------------------------------------------------------------------------------

    def prepare(self, running: Sequence[SpeculativeSequence], crowded: bool) -> None:
        """Sets every sequence's `draft_window`. `crowded`: others wait or prefill, so nobody speculates now."""
        began = self._began = self._clock()
        self._tokens = 0
        after_idle = began - self._finished > IDLE_SECONDS
        run = self._run
        if run is not None:
            if (
                len(running) == 1
                and running[0] is run.sequence
                and not crowded
                and run.sequence.num_computed == run.position
                and not after_idle
            ):
                return
            self._end_run()
        arming, situation = self.arming, self._situation
        self.outcomes.clear()
        self._drafting.verified = False
        self._certain = self._widest = 0
        self._kind = "plain"
        self.taps = ()
        self.counts.window = 0
        count = situation.sequences = len(running)
        situation.context = sum([s.num_computed for s in running]) // count if count else 0
        self._eligible = (
            0 < count <= arming.policy.max_batch
            and not crowded
            and bool(arming.speculators)
            and all(len(s.tokens) - s.num_computed == 1 for s in running)
        )
        if not self._eligible:
            self._rest(running)
            return
        for sequence in running:
            window = sequence.draft_window = self._plan(sequence)
            self._widest = max(self._widest, window)
        if count == 1 and not self._widest and not after_idle and not _log.isEnabledFor(logging.DEBUG):
            self._run = quiet_run(running[0])
        if self._run is None:
            for outcome in self.outcomes:
                if outcome.draft is not None:
                    self.counts.no_draft[outcome.draft.reason or NO_REASON] += 1

    def _rest(self, running: Sequence[SpeculativeSequence]) -> None:
        """Nobody speculates in this step."""
        for sequence in running:
            sequence.draft_window = 0
            tracked = sequence.speculation
            if tracked is not None:
                tracked.chosen = None
                for armed in tracked.armed:
                    armed.ready = False
        if self.arming.tracked:
            self.arming.governor.served_elsewhere(1)

    def _plan(self, sequence: SpeculativeSequence) -> int:
        """How many tokens may be drafted for a sequence in this step."""
        tracked, size = sequence.speculation, len(sequence.tokens)
        if tracked is None and size - sequence.num_prompt < self.arming.patience:
            return 0
        if tracked is None or tracked.generation != self.arming.policy.generation:
            tracked = self.arming.arm(sequence)
        tracked.chosen = None
        remaining = sequence.max_length - size
        widest = 0
        for armed in tuple(tracked.armed):
            outcome = armed.outcome
            self.outcomes.append(outcome)
            outcome.draft, outcome.window, outcome.accepted = None, 0, 0
            armed.ready = outcome.asked = False
            armed.offer.limit = 0
            limit = min(armed.limit, remaining - 1)
            if limit <= 0:
                continue
            if armed.foregone is None or armed.known != size:
                widest = max(widest, self._plan_for(sequence, tracked, armed, limit))
            if armed.foregone is not None and armed.known == size:
                armed.ready = outcome.asked = True
                outcome.draft = armed.foregone.draft
        return widest

    def _plan_for(self, sequence: SpeculativeSequence, tracked: Tracked, armed: Armed, limit: int) -> int:
        """How many of `limit` tokens an algorithm may draft; it reads what it has not read yet, if that is worth it."""
        size, progress = len(sequence.tokens), armed.progress
        lag = progress.lag = armed.speculator.lag(armed.state)
        progress.remaining, progress.emitted = sequence.max_length - size, size - sequence.num_prompt
        planned = self.arming.governor.plan(armed.ticket, self._situation, limit, progress)
        if not planned or (lag and not self._catch_up(sequence, tracked, armed)):
            return 0
        armed.ready = True
        armed.offer.limit = planned
        needs = armed.speculator.capabilities
        if needs.needs_taps or needs.needs_hidden:
            self._ask_for_taps(needs)
        return planned

    def _ask_for_taps(self, needs: Capabilities) -> None:
        hidden = (self._target.hidden_tap,) if needs.needs_hidden and self._target.hidden_tap else ()
        self.taps = tuple(dict.fromkeys((*self.taps, *hidden, *needs.needs_taps)))

    def _catch_up(self, sequence: SpeculativeSequence, tracked: Tracked, armed: Armed) -> bool:
        """One bounded piece of reading. True when the drafter knows the whole history, and may have a draft."""
        started = self._clock()
        try:
            paid = armed.speculator.capabilities.paid
            tokens = armed.speculator.catch_up(armed.state, PAID_CATCH_UP_SECONDS if paid else CATCH_UP_SECONDS)
            ready = not armed.speculator.lag(armed.state)
            armed.foregone = armed.speculator.foresees(armed.state) if ready else None
        except Exception as fault:  # noqa: BLE001  (an algorithm's fault must not end the request)
            self.arming.disarm(sequence, armed, "raised", f"catch_up raised {fault!r}")
            return False
        seconds = self._clock() - started
        self._began += seconds
        tracked.report.catch_up_seconds += seconds
        self.counts.catch_ups += 1
        self.arming.governor.caught_up(armed.ticket, tokens, seconds)
        armed.context.carry = None
        armed.known = len(sequence.tokens)
        return ready and armed.foregone is None

    # --- the draws' turn ---------------------------------------------------------------------------------------------

    def draft(self, entries: Sequence[PlannedRows]) -> Sequence[Sequence[int]]:
        """The tokens to verify, one list per entry; nothing at all when no entry has any."""
        if self._run is not None:
            return NO_DRAFTS
        drafts = self._drafting.draft(entries, self._situation) if self._widest else NO_DRAFTS
        if _log.isEnabledFor(logging.DEBUG):
            log_steps_without_draft(_log, entries, self._eligible)
        return drafts

    # --- after the draws ---------------------------------------------------------------------------------------------

    def accepted(
        self,
        sequence: SpeculativeSequence,
        start: int,
        num_accepted: int,
        first_row: int = 0,
        num_certain: int = 0,
    ) -> None:
        """A sequence's draws were taken: `tokens` and `num_computed` are as they will stay. See StepSpeculation."""
        run = self._run
        if run is not None:
            self._tokens = 1
            for follow in run.follows:
                try:
                    if follow(sequence.tokens, start + 1):
                        run.over = True
                except Exception as fault:  # noqa: BLE001  (an algorithm's fault must not end the request)
                    self._end_following(run, follow, fault)
            return
        self._tokens += len(sequence.tokens) - 1 - start
        self._certain += num_certain
        tracked = sequence.speculation
        if tracked is None:
            return
        chosen = tracked.chosen
        kind = "plain"
        if self._eligible:
            kind = "verify" if chosen is not None else kind_of([armed.outcome for armed in tracked.armed])
        self._kind = kind
        if num_certain and kind != "verify":
            kind = "prescribed"
        tracked.report.prescribed += num_certain
        tracked.report.note_steps(kind, 1, self._clock() - self._began)
        if not self._eligible:
            return
        drafted = 0
        if chosen is not None:
            drafted = chosen.outcome.window
            chosen.outcome.accepted = num_accepted
            self._note_accepted(tracked, chosen, num_accepted, num_certain)
        for armed in tuple(tracked.armed):
            if armed.ready:
                self._commit(sequence, armed, start, drafted, first_row)

    def _note_accepted(self, tracked: Tracked, armed: Armed, num_accepted: int, num_certain: int) -> None:
        name = armed.speculator.capabilities.name
        counts, report = self.counts, tracked.report
        counts.drafted[name] += max(armed.outcome.window - num_certain, 0)
        counts.accepted[name] += max(num_accepted - num_certain, 0)
        report.accepted += max(num_accepted - num_certain, 0)
        for position in range(num_certain, num_accepted):
            counts.accepted_by_position[position] += 1
            report.accepted_by_position[position] += 1

    def _commit(self, sequence: SpeculativeSequence, armed: Armed, start: int, drafted: int, first_row: int) -> None:
        committed = armed.committed
        tokens, kept = sequence.tokens, sequence.num_computed
        committed.position = start
        committed.token_ids = tokens[start:kept]
        committed.next_id = tokens[kept] if kept < len(tokens) else None
        committed.num_drafted = drafted
        if self.taps:
            self._hand_out(armed, first_row, kept - start)
        try:
            armed.speculator.commit((committed,))
            armed.foregone = armed.speculator.foresees(armed.state)
        except Exception as fault:  # noqa: BLE001
            self.arming.disarm(sequence, armed, "raised", f"commit raised {fault!r}")
        armed.known = len(tokens)

    def _hand_out(self, armed: Armed, first_row: int, count: int) -> None:
        """Row handles of the kept rows, and the last hidden row for the next draft."""
        assert self._executor is not None, "taps need an executor"
        needs, committed = armed.speculator.capabilities, armed.committed
        handles = {name: RowHandle(self._executor, name, first_row, count) for name in needs.needs_taps}
        committed.taps = handles
        if needs.needs_hidden and self._target.hidden_tap is not None:
            committed.hidden = RowHandle(self._executor, self._target.hidden_tap, first_row, count)
            armed.context.carry = RowHandle(self._executor, self._target.hidden_tap, first_row + count - 1, 1)

    def finish(self, sequences: int, rows: int, prefill_rows: int) -> None:
        """The step is over: its time, its rows (drafts included) and, by what was accepted, its tokens are known."""
        now = self._clock()
        run = self._run
        if run is not None and self._tokens:
            run.position += 1
            run.times.append(now - self._began)
            self._finished, self._tokens = now, 0
            if run.over:
                self._end_run()
            elif len(run.times) >= LONGEST:
                self._book_run(run)
            return
        if not self._tokens and not prefill_rows:
            self._finished = now
            return  # the step failed or was cancelled: nothing came of it
        record = self._record
        record.seconds = now - self._began
        record.sequences, record.rows, record.prefill_rows = sequences, rows, prefill_rows
        record.context = self._situation.context
        record.tokens, record.times = self._tokens, ()
        record.after_idle = self._began - self._finished > IDLE_SECONDS
        self._finished = now
        if self._drafting.verified:
            kind = "verify"
        elif self._certain:
            kind = "prescribed"
        else:
            kind = self._kind if self._situation.sequences == 1 else kind_of(self.outcomes)
        self._shared = 0 if self.outcomes else self._shared + 1
        if kind != "prescribed" and (prefill_rows or self._shared % PRICED_EVERY == 0):
            self.arming.governor.record(record)  # of shared steps, only prices; prescribed ones have no draft's merit
        if not prefill_rows:
            self.counts.parks += kind == "parked" and self._last_kind == "verify"
            self._last_kind = kind
            self.counts.steps[kind] += 1
            self.counts.seconds[kind] += record.seconds

    # --- steps in which nobody has anything to propose ---------------------------------------------------------------

    def _book_run(self, run: QuietRun) -> None:
        """Before anybody is asked what its steps have taught."""
        if run.times:
            run.book(self._record, self.arming.governor, self.counts)
            self._last_kind = run.kind

    def _end_run(self) -> None:
        """The next step is none of the run's."""
        run, self._run = self._run, None
        if run is not None:
            self._book_run(run)
            run.leave()

    def _end_following(self, run: QuietRun, follow: Follow, fault: Exception) -> None:
        """A drafter broke its contract. The request goes on without it."""
        assert run.tracked is not None
        armed = next(armed for armed in run.tracked.armed if armed.foregone and armed.foregone.follow is follow)
        self.arming.disarm(run.sequence, armed, "raised", f"follow raised {fault!r}")
        run.over = True

    # --- looking in --------------------------------------------------------------------------------------------------

    def snapshot(self) -> dict[str, object]:
        """The body of GET /admin/speculation."""
        arming = self.arming
        if self._run is not None:
            self._book_run(self._run)
        return {
            "policy": arming.policy.as_dict(),
            "not_effective": arming.not_effective(),
            "declined": arming.declined,
            "algorithms": [speculator.capabilities.name for speculator in arming.speculators],
            **self.counts.as_dict(),
            "gap_errors": sum(speculator.num_gap_errors for speculator in arming.speculators),
            "governor": {"name": arming.governor.name, **arming.governor.snapshot()},
        }
