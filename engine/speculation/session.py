"""The one implementation of the speculative loop around a step, for every algorithm, model and governor.

The engine calls, in order: `prepare` before scheduling (arming, catch-up, how wide a window may be), `draft` once rows
are planned and their blocks reserved, `accepted` for each sequence whose draws were taken, and `finish`. All of it
lives on the engine thread. Nothing here changes a token: a draft only says which draws may come from one step.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TypeAlias

from ...kernels.backend import Executor, RowHandle
from .armed import NO_DRAFT, Armed, SpeculativeSequence, Tracked
from .arming import Arming
from .contract import NO_SCORES, Draft, Speculator, Target
from .explain import PlannedRows, kind_of, log_steps_without_draft
from .governor import GOVERNORS
from .governor.contract import CostCurve, Outcome, Situation, StepRecord
from .policy import SpeculationPolicy, patched
from .registry import Registry, Resources

_log = logging.getLogger(__name__)

CATCH_UP_SECONDS = 0.005  # a piece of reading between two steps
PAID_CATCH_UP_SECONDS = 0.05  # where reading is a step of another model, worth nothing in smaller pieces
IDLE_SECONDS = 0.05  # between two steps: the next one runs on a machine that has gone to sleep
PRICED_EVERY = 8  # of steps in a row in which nobody may speculate
NO_DRAFTS: tuple[Sequence[int], ...] = ()

Asked: TypeAlias = tuple[int, SpeculativeSequence, Armed]  # number of the entry, its sequence, whom to ask


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
        self.taps: tuple[str, ...] = ()  # outputs that the coming step must hand out
        self._target = target
        self._clock = clock
        self._executor = executor
        self._situation = Situation(0, 0)
        self.outcomes: list[Outcome] = []  # of the last step: one for each drafter that somebody has
        self._record = StepRecord(0.0, 0, 0, 0, 0, self.outcomes)
        self._eligible = self._verified = False
        self._certain = 0  # tokens that a grammar prescribed, in the running step
        self._tokens, self._began = 0, 0.0
        self._shared = 0  # steps in a row in which nobody had a drafter to ask
        self._finished, self._last_kind = clock(), "plain"

    def apply(self, policy: SpeculationPolicy) -> None:
        """A new policy, between steps."""
        self.arming.apply(policy)

    def change(self, body: object) -> dict[str, object]:
        """PATCH /admin/speculation: the policy then in force, and why a setting has no effect. RequestError 422."""
        arming = self.arming
        self.apply(patched(arming.policy, body, arming.registry.names, GOVERNORS))
        return {"policy": arming.policy.as_dict(), "not_effective": arming.not_effective()}

    def release(self, sequence: SpeculativeSequence) -> Tracked | None:
        """The request has ended. Returns what its speculation did."""
        return self.arming.release(sequence)

    # --- before scheduling -------------------------------------------------------------------------------------------

    def prepare(self, running: Sequence[SpeculativeSequence], crowded: bool) -> None:
        """Sets every sequence's `draft_window`. `crowded`: others wait or prefill, so nobody speculates now."""
        arming = self.arming
        self._began = self._clock()
        self.outcomes.clear()
        self._verified = False
        self._certain = 0
        self._tokens = 0
        self.taps = ()
        self.counts.window = 0
        count = len(running)
        self._situation.sequences = count
        self._situation.context = sum([s.num_computed for s in running]) // count if count else 0
        self._eligible = bool(arming.speculators) and not crowded and 0 < count <= arming.policy.max_batch
        if not self._eligible or not all(len(s.tokens) - s.num_computed == 1 for s in running):
            self._eligible = False
            for sequence in running:
                sequence.draft_window = 0
                if sequence.speculation is not None:
                    self._rest(sequence.speculation)
            if arming.tracked:
                arming.governor.served_elsewhere(1)
            return
        for sequence in running:
            sequence.draft_window = self._plan(sequence)

    @staticmethod
    def _rest(tracked: Tracked) -> None:
        tracked.chosen = None
        for armed in tracked.armed:
            armed.ready = False

    def _plan(self, sequence: SpeculativeSequence) -> int:
        """How many tokens may be drafted for a sequence in this step."""
        tracked = sequence.speculation
        if tracked is None or tracked.generation != self.arming.policy.generation:
            tracked = self.arming.arm(sequence)
        tracked.chosen = None
        remaining = sequence.max_length - len(sequence.tokens)
        widest = 0
        for armed in tuple(tracked.armed):
            limit = min(armed.limit, remaining - 1)
            armed.ready = armed.outcome.asked = False
            armed.outcome.draft, armed.outcome.window, armed.outcome.accepted = None, 0, 0
            self.outcomes.append(armed.outcome)
            if limit <= 0:
                continue
            lag = armed.speculator.lag(armed.state)
            progress = armed.progress
            progress.lag, progress.remaining = lag, remaining
            progress.emitted = len(sequence.tokens) - sequence.num_prompt
            planned = self.arming.governor.plan(armed.ticket, self._situation, limit, progress)
            if not planned or (lag and not self._catch_up(sequence, tracked, armed)):
                continue
            armed.ready = True
            armed.offer.limit = planned
            self._ask_for_taps(armed.speculator)
            widest = max(widest, planned)
        return widest

    def _ask_for_taps(self, speculator: Speculator) -> None:
        needs = speculator.capabilities
        if needs.needs_taps or needs.needs_hidden:
            hidden = (self._target.hidden_tap,) if needs.needs_hidden and self._target.hidden_tap else ()
            self.taps = tuple(dict.fromkeys((*self.taps, *hidden, *needs.needs_taps)))

    def _catch_up(self, sequence: SpeculativeSequence, tracked: Tracked, armed: Armed) -> bool:
        """One bounded piece of reading. True when the drafter knows the whole history."""
        started = self._clock()
        try:
            paid = armed.speculator.capabilities.paid
            tokens = armed.speculator.catch_up(armed.state, PAID_CATCH_UP_SECONDS if paid else CATCH_UP_SECONDS)
            ready = not armed.speculator.lag(armed.state)
        except Exception as fault:  # noqa: BLE001  (an algorithm's fault must not end the request)
            self.arming.disarm(sequence, armed, "raised", f"catch_up raised {fault!r}")
            return False
        seconds = self._clock() - started
        self._began += seconds
        tracked.report.catch_up_seconds += seconds
        self.counts.catch_ups += 1
        self.arming.governor.caught_up(armed.ticket, tokens, seconds)
        armed.context.carry = None
        return ready

    # --- drafting ----------------------------------------------------------------------------------------------------

    def draft(self, entries: Sequence[PlannedRows]) -> Sequence[Sequence[int]]:
        """The tokens to verify, one list per entry; nothing at all when no entry has any."""
        drafts = self._draft(entries) if self._eligible else NO_DRAFTS
        if _log.isEnabledFor(logging.DEBUG):
            log_steps_without_draft(_log, entries, self._eligible)
        return drafts

    def _draft(self, entries: Sequence[PlannedRows]) -> Sequence[Sequence[int]]:
        free: list[Asked] = []
        paid: list[Asked] = []
        for number, rows in enumerate(entries):
            tracked = rows.sequence.speculation
            if rows.window <= 0 or tracked is None:
                continue
            for armed in tracked.armed:
                if armed.ready:
                    armed.offer.limit = min(armed.offer.limit, rows.window)
                    (paid if armed.speculator.capabilities.paid else free).append((number, rows.sequence, armed))
        offered = self._ask(free) if free else []
        if paid:
            offered += self._ask([item for item in paid if self._is_wanted(item[2], offered)])
        return self._choose(len(entries), offered) if offered else NO_DRAFTS

    def _is_wanted(self, armed: Armed, offered: list[Asked]) -> bool:
        """Whether a drafter that costs time is worth asking beside the drafts that cost nothing."""
        others = [other.offer for _, sequence, other in offered if armed.request is sequence]
        return not others or self.arming.governor.beats(armed.ticket, others, self._situation)

    def _ask(self, asked: list[Asked]) -> list[Asked]:
        """Proposals of these; returns those that proposed anything."""
        for _, sequence, armed in asked:
            context, tokens = armed.context, sequence.tokens
            context.max_tokens = armed.offer.limit
            context.token_id = tokens[-1]
            context.position = len(tokens) - 1
            armed.outcome.asked = True
        offered: list[Asked] = []
        for item, draft in zip(asked, self._propose(asked), strict=True):
            _, sequence, armed = item
            assert sequence.speculation is not None
            armed.outcome.draft = armed.offer.draft = draft
            sequence.speculation.report.drafted += len(draft.token_ids)
            sequence.speculation.report.draft_seconds += draft.seconds
            if draft.token_ids:
                offered.append(item)
            else:
                self.counts.no_draft[draft.reason or "no reason given"] += 1
        return offered

    def _choose(self, num_entries: int, offered: list[Asked]) -> Sequence[Sequence[int]]:
        windows = self.arming.governor.choose([armed.offer for _, _, armed in offered], self._situation)
        drafts: list[Sequence[int]] = [()] * num_entries
        for (number, sequence, armed), size in zip(offered, windows, strict=True):
            if size:
                drafts[number] = self._take(sequence, armed, size)
        return drafts if self._verified else NO_DRAFTS

    def _take(self, sequence: SpeculativeSequence, armed: Armed, size: int) -> Sequence[int]:
        tokens = armed.offer.draft.token_ids[:size]
        if not all(type(token) is int and 0 <= token < self._target.vocab_size for token in tokens):
            self.arming.disarm(sequence, armed, "vocabulary", "it proposed an id outside the vocabulary")
            return ()
        tracked = sequence.speculation
        assert tracked is not None
        tracked.chosen = armed
        armed.outcome.window = size
        tracked.report.verified += size
        self._verified = True
        self.counts.window = max(self.counts.window, size)
        return tokens

    def _propose(self, asked: list[Asked]) -> list[Draft]:
        """Drafts in the order of `asked`; one call per algorithm. A faulty algorithm is asked again request by request,
        so that only those it fails for lose it."""
        if len(asked) == 1:
            return [self._propose_one(asked[0][1], asked[0][2])]
        drafts = [NO_DRAFT] * len(asked)
        by_speculator: dict[int, list[int]] = {}
        for i, (_, _, armed) in enumerate(asked):
            by_speculator.setdefault(id(armed.speculator), []).append(i)
        for numbers in by_speculator.values():
            speculator = asked[numbers[0]][2].speculator
            try:
                made = speculator.propose([asked[i][2].context for i in numbers])
                if len(made) != len(numbers):
                    raise ValueError(f"{len(made)} drafts for {len(numbers)} contexts")
            except Exception as fault:  # noqa: BLE001
                _log.error("a batch could not be drafted for, trying one by one: %r", fault)
                made = [self._propose_one(asked[i][1], asked[i][2]) for i in numbers]
            for i, draft in zip(numbers, made, strict=True):
                drafts[i] = self._checked(asked[i][1], asked[i][2], draft)
        return drafts

    def _propose_one(self, sequence: SpeculativeSequence, armed: Armed) -> Draft:
        try:
            (draft,) = armed.speculator.propose((armed.context,))
        except Exception as fault:  # noqa: BLE001
            self.arming.disarm(sequence, armed, "raised", f"propose raised {fault!r}")
            return NO_DRAFT
        return self._checked(sequence, armed, draft)

    def _checked(self, sequence: SpeculativeSequence, armed: Armed, draft: Draft) -> Draft:
        if not isinstance(draft, Draft):  # pyright: ignore[reportUnnecessaryIsInstance]
            self.arming.disarm(sequence, armed, "raised", f"propose gave {draft!r}")
            return NO_DRAFT
        size = len(draft.token_ids)
        if size > armed.context.max_tokens or size > len(draft.grades):
            self.arming.disarm(
                sequence, armed, "window", f"it proposed {size} tokens for a window of {armed.context.max_tokens}"
            )
            return NO_DRAFT
        return draft

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
        self._tokens += len(sequence.tokens) - 1 - start
        self._certain += num_certain
        tracked = sequence.speculation
        if tracked is None:
            return
        chosen, drafted = tracked.chosen, 0
        kind = "plain"
        if self._eligible:
            kind = "verify" if chosen is not None else kind_of([armed.outcome for armed in tracked.armed])
        if num_certain and kind != "verify":
            kind = "prescribed"
        tracked.report.note_step(kind, self._clock() - self._began, num_certain)
        if not self._eligible:
            return
        if chosen is not None:
            drafted = chosen.outcome.window
            chosen.outcome.accepted = num_accepted
            self._note_accepted(tracked, chosen, num_accepted, num_certain)
        for armed in tracked.armed:
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
        committed, speculator = armed.committed, armed.speculator
        tokens, kept = sequence.tokens, sequence.num_computed
        committed.position = start
        committed.token_ids = tokens[start:kept]
        committed.next_id = tokens[kept] if kept < len(tokens) else None
        committed.num_drafted = drafted
        capabilities = speculator.capabilities
        if self.taps:
            self._hand_out(armed, first_row, kept - start)
        scores = NO_SCORES
        try:
            speculator.commit((committed,))
            if capabilities.scores_itself:
                scores = speculator.take_scores(armed.state)
        except Exception as fault:  # noqa: BLE001
            self.arming.disarm(sequence, armed, "raised", f"commit raised {fault!r}")
            return
        if capabilities.scores_itself:
            self.arming.governor.observe(armed.ticket, scores)
            for _, trials, hits in scores.output:
                self.counts.shadow_hits += hits
                self.counts.shadow_misses += trials - hits

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
        if not self._tokens and not prefill_rows:
            self._finished = now
            return  # the step failed or was cancelled: nothing came of it
        record = self._record
        record.seconds = now - self._began
        record.sequences, record.rows, record.prefill_rows = sequences, rows, prefill_rows
        record.context = self._situation.context
        record.tokens = self._tokens
        record.after_idle = self._began - self._finished > IDLE_SECONDS
        self._finished = now
        kind = "verify" if self._verified else "prescribed" if self._certain else kind_of(self.outcomes)
        self._shared = 0 if self.outcomes else self._shared + 1
        if kind != "prescribed" and (prefill_rows or self._shared % PRICED_EVERY == 0):
            self.arming.governor.record(record)  # of shared steps, only prices; prescribed ones have no draft's merit
        if not prefill_rows:
            self.counts.parks += kind == "parked" and self._last_kind == "verify"
            self._last_kind = kind
            self.counts.steps[kind] += 1
            self.counts.seconds[kind] += record.seconds

    # --- looking in --------------------------------------------------------------------------------------------------

    def snapshot(self) -> dict[str, object]:
        """The body of GET /admin/speculation."""
        arming = self.arming
        return {
            "policy": arming.policy.as_dict(),
            "not_effective": arming.not_effective(),
            "declined": arming.declined,
            "algorithms": [speculator.capabilities.name for speculator in arming.speculators],
            **self.counts.as_dict(),
            "gap_errors": sum(speculator.num_gap_errors for speculator in arming.speculators),
            "governor": {"name": arming.governor.name, **arming.governor.snapshot()},
        }
