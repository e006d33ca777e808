"""What the loop asks a governor and what it tells it. A governor knows no tokens' text, no clock and no tensors:
times are handed to it, so the same inputs always give the same decisions. A ticket is what its `open` returned for
one speculator armed for one request: opened and closed with the speculator's state, opaque to everybody else.

One governor serves all requests of a process. Each step, for every armed speculator of every request that may
speculate: `plan` (how many tokens may be drafted; 0: do not even ask), then the speculator proposes (a paid one asking
`keep_going` after each token), then one `choose` over all drafts, the step, `observe` and `record`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ..contract import Capabilities, Draft, Scores


class CostCurve(Protocol):
    """Seconds of a decode-only step as measured at load. Only ratios matter: machine speed is learned while serving."""

    def seconds(self, rows: int, sequences: int, context: int) -> float:
        """A step of `rows` rows, all wanting logits, of `sequences` sequences with `context` positions each."""
        ...


@dataclass(slots=True)
class Situation:
    """The step about to be taken, before any draft: the sequences that decode and their mean context."""

    sequences: int
    context: int


@dataclass(slots=True)
class Progress:
    """How far a request is: tokens its drafter would have to read first, tokens emitted, tokens it may still emit."""

    lag: int
    emitted: int
    remaining: int


@dataclass(slots=True)
class Offer:
    """A draft in hand. Offers of one request stand together; at most one of them is used."""

    ticket: Any
    draft: Draft
    limit: int  # tokens of the draft that may be verified: the request's budget, blocks, context, policy


@dataclass(slots=True)
class Outcome:
    """What became of one ticket in a step."""

    ticket: Any
    asked: bool  # its speculator was asked to draft
    draft: Draft | None = None
    window: int = 0  # drafted tokens that were verified
    accepted: int = 0


@dataclass(slots=True)
class StepRecord:
    """A finished step. `seconds` is its wall time, drafting included; `tokens` what it emitted over all sequences.

    Or several in a row, alike and without drafts; then `times` are the seconds of each.
    """

    seconds: float
    sequences: int
    rows: int
    context: int
    tokens: int
    outcomes: Sequence[Outcome]
    prefill_rows: int = 0
    after_idle: bool = False
    times: Sequence[float] = ()

    @property
    def verified(self) -> bool:
        """Whether any drafted token was in the step."""
        return self.rows > self.sequences


class Governor(Protocol):
    """See the module. `adaptive`: a window that the operator did not set is the governor's to choose, up to the
    algorithm's maximum; otherwise the loop offers the default window and the governor takes all of it or none."""

    @property
    def name(self) -> str: ...
    @property
    def adaptive(self) -> bool: ...

    @property
    def rates(self) -> tuple[float | None, float | None]:
        """Seconds per token of plain and of speculative steps, as it sees them now."""
        ...

    def open(self, capabilities: Capabilities, request: str) -> Any:
        """A request was armed with a speculator."""
        ...

    def close(self, ticket: Any) -> None:
        """It left, or was disarmed."""
        ...

    def plan(self, ticket: Any, situation: Situation, limit: int, progress: Progress) -> int:
        """How many tokens may be drafted now, at most `limit`; 0: parked. With a lag, whether to read on instead."""
        ...

    def beats(self, ticket: Any, offers: Sequence[Offer], situation: Situation) -> bool:
        """Whether running a paid drafter is expected to beat the drafts that its request has for nothing."""
        ...

    def keep_going(self, ticket: Any, position: int, grade: int) -> bool:
        """A paid drafter has drafted the token at `position` (0 is the first) with `grade`: is one more worth it?"""
        ...

    def choose(self, offers: Sequence[Offer], situation: Situation) -> list[int]:
        """How many tokens of each offer to verify; at most one offer of a request gets any."""
        ...

    def observe(self, ticket: Any, scores: Scores) -> None:
        """What shadow scoring found."""
        ...

    def caught_up(self, ticket: Any, tokens: int, seconds: float) -> None:
        """A drafter read `tokens` of history in `seconds`, outside the step's own time."""
        ...

    def served_elsewhere(self, steps: int) -> None:
        """Steps were served that no ticket could take part in (a batch too large to speculate)."""
        ...

    def record(self, step: StepRecord) -> None:
        """A step has finished, or several alike: all that there were are known before anything is asked."""
        ...

    def snapshot(self) -> dict[str, object]:
        """State for people: /admin/speculation and logs."""
        ...
