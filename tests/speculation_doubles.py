"""Stand-ins for speculation tests: a target, a request, a scripted speculator, simple prices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from surefoot.engine.speculation.armed import Tracked
from surefoot.engine.speculation.contract import (
    NO_SCORES,
    Capabilities,
    Committed,
    Draft,
    DraftContext,
    DraftHead,
    Foregone,
    RequestView,
    Scores,
    Verdict,
)
from surefoot.engine.speculation.policy import NO_WISHES, RequestSpeculation
from surefoot.kernels.sampling import SamplingSpec


@dataclass
class FakeTarget:
    name: str = "fake"
    vocab_size: int = 1000
    hidden_size: int = 4
    verdict: Verdict = field(default_factory=Verdict)
    taps: tuple[str, ...] = ()
    hidden_tap: str | None = None
    draft_head: DraftHead | None = None


class FakeSequence:
    """A decoding request: all its tokens but the last are computed."""

    def __init__(self, tokens: Sequence[int], num_prompt: int | None = None, max_tokens: int = 100) -> None:
        self.request_id = "request"
        self.tokens = list(tokens)
        self.num_prompt = len(tokens) - 1 if num_prompt is None else num_prompt
        self.max_length = self.num_prompt + max_tokens
        self.num_computed = len(tokens) - 1
        self.draft_window = 0
        self.speculation: Tracked | None = None
        self.wishes: RequestSpeculation = NO_WISHES
        self.cache_salt = b""
        self.sampling = SamplingSpec(seed=0)
        self.sampler: Any = None
        self.matcher: Any = None

    def emit(self, ids: Sequence[int]) -> int:
        """What a step gives: returns the first position it computed."""
        start = self.num_computed
        self.tokens += ids
        self.num_computed = len(self.tokens) - 1
        return start


@dataclass(frozen=True)
class Rows:
    sequence: Any
    window: int


@dataclass
class Linear:
    """A step of n rows costs 1 + slope * (n - 1) units."""

    slope: float = 0.1
    unit: float = 0.01

    def seconds(self, rows: int, sequences: int, context: int) -> float:
        return self.unit * (1 + self.slope * (rows - 1))


@dataclass
class Scripted:
    """A speculator that proposes what it is told to and remembers what it was told."""

    script: Callable[[DraftContext], Draft] = lambda context: Draft([])
    capabilities: Capabilities = field(default_factory=lambda: Capabilities("scripted", 8, (0.5,)))
    num_gap_errors: int = 0
    opened: list[str] = field(default_factory=list)
    closed: list[str] = field(default_factory=list)
    commits: list[tuple[int, list[int], int | None, int]] = field(default_factory=list)
    contexts: list[DraftContext] = field(default_factory=list)
    lagging: int = 0

    def open(self, request: RequestView) -> str:
        self.opened.append(request.request_id)
        return request.request_id

    def close(self, state: str) -> None:
        self.closed.append(state)

    def lag(self, state: str) -> int:
        return self.lagging

    def catch_up(self, state: str, seconds: float) -> int:
        read, self.lagging = min(self.lagging, 10), max(0, self.lagging - 10)
        return read

    def propose(self, contexts: Sequence[DraftContext]) -> list[Draft]:
        self.contexts += contexts
        return [self.script(context) for context in contexts]

    def commit(self, committed: Sequence[Committed]) -> None:
        self.commits += [(c.position, list(c.token_ids), c.next_id, c.num_drafted) for c in committed]

    def foresees(self, state: str) -> Foregone | None:
        return None

    def take_scores(self, state: str) -> Scores:
        return NO_SCORES


class Clock:
    """Time that passes when told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now
