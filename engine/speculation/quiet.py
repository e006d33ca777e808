"""Runs of steps in which a request's drafters have nothing to propose and have said so: most steps of free text.

A pass over the weights leaves nothing of the loop around it in any cache, so what such a step touches is what it costs.
It files its token and takes its time; the books are kept for several steps at once.
"""

from __future__ import annotations

from .armed import NO_REASON, SpeculativeSequence, Tracked
from .contract import Follow
from .counts import SpeculationCounts
from .governor.contract import Governor, StepRecord

LONGEST = 8  # steps until the books are kept, if nothing happens before


class QuietRun:
    """Plain steps of one request, alone in the engine; its drafters, perhaps none, all know that they draft nothing."""

    __slots__ = ("follows", "kind", "over", "position", "reasons", "sequence", "times", "tracked")

    def __init__(
        self,
        sequence: SpeculativeSequence,
        tracked: Tracked,
        follows: list[Follow],
        reasons: list[str],
    ) -> None:
        self.sequence = sequence
        self.tracked: Tracked | None = tracked  # None: it has ended, and its report is made
        self.follows = follows
        self.reasons = reasons  # why there is nothing to draft, of each drafter
        self.kind = "no_draft" if reasons else "plain"  # what its steps are booked under
        self.position = sequence.num_computed  # where the next step starts
        self.times: list[float] = []  # seconds of its steps that no book knows of yet
        self.over = False  # the running step is the last: somebody has found something, or failed

    def book(self, record: StepRecord, governor: Governor, counts: SpeculationCounts) -> None:
        """What its steps since the last time took goes into the books."""
        times, self.times = self.times, []
        steps, seconds, kind = len(times), sum(times), self.kind
        record.times, record.seconds, record.tokens = times, seconds, steps
        record.sequences = record.rows = 1
        record.prefill_rows, record.after_idle = 0, False
        record.context = self.position
        governor.record(record)
        counts.steps[kind] += steps
        counts.seconds[kind] += seconds
        for reason in self.reasons:
            counts.no_draft[reason] += steps
        if self.tracked is not None:
            self.tracked.report.note_steps(kind, steps, seconds)

    def end_with(self, seconds: float) -> None:
        """Its request ends with the running step, which has taken so long by now."""
        assert self.tracked is not None
        self.tracked.report.note_steps(self.kind, 1, seconds)
        self.tracked, self.over = None, True

    def leave(self) -> None:
        """Its drafters have heard of all tokens. Whether they go on having nothing to propose has to be asked."""
        if self.tracked is not None:
            for armed in self.tracked.armed:
                armed.known = len(self.sequence.tokens)
                if self.over:
                    armed.foregone = None


def quiet_run(sequence: SpeculativeSequence) -> QuietRun | None:
    """The run that begins with the step being prepared, if one does. A request under a grammar has none: its steps may
    verify tokens that nobody here proposed."""
    tracked = sequence.speculation
    if tracked is None or sequence.matcher is not None:
        return None
    follows: list[Follow] = []
    reasons: list[str] = []
    for armed in tracked.armed:
        foregone = armed.foregone
        if foregone is None or foregone.follow is None or armed.known != len(sequence.tokens):
            return None
        follows.append(foregone.follow)
        reasons.append(foregone.draft.reason or NO_REASON)
    return QuietRun(sequence, tracked, follows, reasons)
