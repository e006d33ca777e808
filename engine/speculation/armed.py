"""One speculator armed for one request, and what a request's speculation has done so far."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from .contract import MAX_WINDOW, Committed, Draft, DraftContext, Foregone, RequestView, Speculator
from .governor.contract import Governor, Offer, Outcome, Progress
from .policy import RequestSpeculation

NO_DRAFT = Draft([])
NO_REASON = "no reason given"


class Report:
    """Counters of one request; the `speculation` object of its response and its log line."""

    __slots__ = (
        "accepted",
        "accepted_by_position",
        "algorithms",
        "catch_up_seconds",
        "draft_seconds",
        "drafted",
        "prescribed",
        "seconds",
        "steps",
        "verified",
    )

    def __init__(self) -> None:
        self.drafted = 0  # tokens proposed
        self.verified = 0  # tokens that the governor let be verified
        self.accepted = 0
        self.prescribed = 0  # tokens that a grammar prescribed: nobody's merit
        self.accepted_by_position = [0] * MAX_WINDOW
        self.algorithms: list[str] = []  # that it was armed with
        self.steps: dict[str, int] = {}  # by kind
        self.seconds: dict[str, float] = {}  # wall time of those steps, drafting included; neighbours share it
        self.draft_seconds = 0.0
        self.catch_up_seconds = 0.0

    def note_steps(self, kind: str, steps: int, seconds: float) -> None:
        """So many steps of a kind gave the request tokens, and took so long together."""
        self.steps[kind] = self.steps.get(kind, 0) + steps
        self.seconds[kind] = self.seconds.get(kind, 0.0) + seconds

    def line(self) -> str:
        """For the log."""
        steps = ", ".join(f"{kind} {n} ({1000 * self.seconds[kind]:.1f} ms)" for kind, n in self.steps.items())
        return (
            f"{'+'.join(self.algorithms)}: drafted {self.drafted}, verified {self.verified}, accepted {self.accepted}; "
            f"steps: {steps or 'none'}; drafting took {1000 * self.draft_seconds:.1f} ms of them, "
            f"reading {1000 * self.catch_up_seconds:.1f} ms between them"
        )

    def as_dict(self) -> dict[str, object]:
        """For the response. Positions beyond the last accepted one are left out."""
        last = max((i + 1 for i, count in enumerate(self.accepted_by_position) if count), default=0)
        return {
            "drafted_tokens": self.drafted,
            "verified_tokens": self.verified,
            "accepted_tokens": self.accepted,
            "prescribed_tokens": self.prescribed,
            "accepted_per_position": self.accepted_by_position[:last],
            "algorithms": list(self.algorithms),
            "steps": dict(self.steps),
            "step_ms": {kind: round(1000 * seconds, 3) for kind, seconds in self.seconds.items()},
            "draft_ms": round(1000 * self.draft_seconds, 3),
            "catch_up_ms": round(1000 * self.catch_up_seconds, 3),
        }


class Armed:
    """A speculator's and the governor's state of a request, and the messages that go between them, made once."""

    __slots__ = (
        "committed",
        "context",
        "foregone",
        "known",
        "limit",
        "offer",
        "outcome",
        "progress",
        "ready",
        "request",
        "speculator",
        "state",
        "ticket",
    )

    def __init__(self, speculator: Speculator, governor: Governor, request: RequestView) -> None:
        self.speculator = speculator
        self.request = request
        self.state: Any = speculator.open(request)
        self.ticket: Any = governor.open(speculator.capabilities, request.request_id)
        self.foregone: Foregone | None = None  # it will propose nothing next,
        self.known = 0  # if the request has so many tokens
        self.limit = 0  # the window that policy and request allow
        self.ready = False  # in this step: it knows the whole history and may draft
        keep_going = partial(governor.keep_going, self.ticket)
        self.context = DraftContext(self.state, 0, 0, 0, 0.0, keep_going)
        self.committed = Committed(self.state, 0, (), None)
        self.offer = Offer(self.ticket, NO_DRAFT, 0)
        self.outcome = Outcome(self.ticket, asked=False)
        self.progress = Progress(0, 0, 0)


class SpeculativeSequence(RequestView, Protocol):
    """What the session needs of the engine's sequences, beside what speculators see."""

    num_computed: int
    draft_window: int
    speculation: Tracked | None

    @property
    def wishes(self) -> RequestSpeculation: ...


@dataclass(slots=True, eq=False)
class Tracked:
    """A request that was armed, or will not be. `declined`: why it drafts nothing, for its report."""

    wishes: RequestSpeculation
    armed: list[Armed] = field(default_factory=list[Armed])
    report: Report = field(default_factory=Report)
    generation: int = -1  # of the policy it was armed under
    declined: str | None = None
    disarmed: set[str] = field(default_factory=set[str])  # algorithms that broke their contract for it
    chosen: Armed | None = None  # whose draft the running step verifies
