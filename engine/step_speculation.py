"""What the core's steps need of the speculative loop, as a protocol: tests put loops of their own in its place."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from typing import Protocol

from .active_request import ActiveRequest
from .sequence import Rows
from .speculation.armed import Tracked


class StepSpeculation(Protocol):
    """Called once per step each, in this order. It changes how many draws come from a step, never which."""

    @property
    def taps(self) -> tuple[str, ...]:
        """Outputs that the coming step must hand out."""
        ...

    def prepare(self, running: SequenceOf[ActiveRequest], crowded: bool) -> None:
        """Before scheduling: sets every sequence's `draft_window`. `crowded`: somebody waits."""
        ...

    def draft(self, entries: SequenceOf[Rows[ActiveRequest]]) -> SequenceOf[SequenceOf[int]]:
        """Tokens to verify, at most each entry's window: one list per entry, or nothing at all."""
        ...

    def accepted(
        self, sequence: ActiveRequest, start: int, num_accepted: int, first_row: int, num_certain: int
    ) -> None:
        """Draws were taken and committed. Its rows start at position `start`, which was row `first_row` of the step;
        so many of the loop's drafts equalled their draws (perhaps more than were kept, if a stop came between). The
        step's first `num_certain` drafts were prescribed by a grammar: no merit of whoever proposed them too."""
        ...

    def finish(self, sequences: int, rows: int, prefill_rows: int) -> None:
        """The step is over; drafts count as rows."""
        ...

    def release(self, sequence: ActiveRequest) -> Tracked | None:
        """The request ended. Returns what its speculation did, if it was considered for any."""
        ...
