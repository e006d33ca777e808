"""What speculation's parts promise each other: target, speculator (an algorithm), draft head (trained drafter weights).

Three things with three lifetimes, never merged. A target is a loaded model. A speculator guesses what its requests emit
next. A draft head is a checkpoint bound to one target, behind a speculator that knows how to drive it.

Correctness is not an algorithm's business: a drafted token is emitted only if the target's own draw at that position,
a function of its logits and the request's seed, is that token. So nothing a speculator or a governor does, not even
looking at the draft before choosing how much of it to verify, can change a token. It may be wrong; it must not be slow.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple, Protocol, TypeAlias

from ...kernels.backend import RowHandle, Sampler
from ...kernels.program import Program
from ...kernels.sampling import SamplingSpec
from ..grammar.matcher import Matcher

MAX_WINDOW = 64  # the most tokens that are ever drafted for one step


# --- target ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a target says of speculation as such. Reasons are sentences for the operator."""

    refusal: str | None = None  # a verify cannot reproduce its decode: declined for every algorithm
    unprofitable: str | None = None  # drafting without weights does not pay on it: declined for weight-free algorithms
    preferred_window: int | None = None  # narrows the default window; the operator's number wins


class HeadKind(Enum):
    """How a draft head guesses: one token per pass of its program, or a block of tokens in one pass."""

    PER_TOKEN = "per_token"
    BLOCK = "block"


@dataclass(frozen=True, eq=False)
class DraftHead:
    """Drafter weights bound to one target. `taps` are the target's outputs it reads, in order, per row."""

    kind: HeadKind
    program: Program
    taps: tuple[str, ...]
    block_size: int = 0  # BLOCK: rows of a block, the anchor included
    survives_gap: bool = False  # it may resume after positions whose rows it never saw


class Target(Protocol):
    """A loaded model, as far as speculation is concerned."""

    @property
    def name(self) -> str: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def hidden_size(self) -> int: ...
    @property
    def verdict(self) -> Verdict: ...
    @property
    def taps(self) -> tuple[str, ...]:
        """Outputs a step can be asked for (DESIGN: final hidden state, residual entering layer i)."""
        ...

    @property
    def hidden_tap(self) -> str | None:
        """The output that holds the final hidden state, if a step can hand it out."""
        ...

    @property
    def draft_head(self) -> DraftHead | None: ...


# --- speculator ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What an algorithm needs and can do. Nothing outside a speculator ever asks for its name to decide something.

    A grade is a class of drafted tokens that are about equally likely to be accepted: it stands for a match length, a
    confidence, a position in the draft, a rejection just before, or whatever the algorithm knows. The governor learns
    the acceptance of each grade; `grade_priors` is what it believes before it has seen any.
    """

    name: str
    max_draft_tokens: int
    grade_priors: tuple[float, ...]
    default_min_confidence: float = 0.0
    needs_hidden: bool = False  # commits carry the target's final hidden rows
    needs_taps: tuple[str, ...] = ()  # commits carry these outputs of the target's rows
    can_arm_after_gap: bool = False  # drafts although it never saw some positions' rows
    handles_own_prefill: bool = False  # the prompt's rows must pass through it (commit), chunk by chunk
    paid: bool = False  # drafting takes device time: each step asks `keep_going` first
    draft_cost: float = 0.0  # paid: of a drafted token, in plain steps of the target, before it was measured
    read_cost: float = 0.0  # the same of a token of history read by `catch_up`
    expected_acceptance: float = 0.6  # paid: of a drafted token whatever its grade, where drafting pays, before any
    scores_itself: bool = False  # `take_scores` reports what it would have drafted, at every token, drafting or not
    patience: int = 1  # tokens that a request has emitted before arming it can pay


class RequestView(Protocol):
    """A request as a speculator sees it. Live: the engine appends to `tokens` as they are emitted, then commits."""

    @property
    def request_id(self) -> str: ...
    @property
    def tokens(self) -> list[int]:
        """Prompt and emitted tokens; not to be changed. All but the last are in the target's cache."""
        ...

    @property
    def num_prompt(self) -> int: ...
    @property
    def max_length(self) -> int:
        """What `tokens` can grow to."""
        ...

    @property
    def cache_salt(self) -> bytes:
        """Whose cached prefixes it may share."""
        ...

    @property
    def sampling(self) -> SamplingSpec: ...
    @property
    def sampler(self) -> Sampler: ...
    @property
    def matcher(self) -> Matcher | None:
        """How far its answer has come in the grammar that it must match; None: any text will do."""
        ...


@dataclass(slots=True)
class DraftContext:
    """One request's turn to draft: guess what follows `token_id`, the last emitted token, which no model has read yet.

    `max_tokens` is what may be drafted; a speculator never exceeds it. A paid speculator calls
    keep_going(position, grade) after each drafted token (position 0 is the first) and stops when it says no: the next
    step would cost more than it is worth.
    """

    state: Any  # what `open` returned
    token_id: int
    position: int  # of token_id in the request
    max_tokens: int
    min_confidence: float
    keep_going: Callable[[int, int], bool]
    carry: RowHandle | None = None  # needs_hidden: hidden row of the token before token_id; None after a gap


@dataclass(slots=True)
class Draft:
    """Guessed tokens, the first one following the context's token_id, and a grade for each (at least as many)."""

    token_ids: list[int]
    grades: Sequence[int] = ()
    seconds: float = 0.0  # device time that drafting took
    reason: str | None = None  # no tokens: why, in a few words for logs and metrics

    def __len__(self) -> int:
        return len(self.token_ids)


@dataclass(slots=True)
class Committed:
    """What a step added to one request's cache: the rows that were kept, at `position` and following positions.

    token_ids[0] is the token the step was asked to continue, the others are accepted drafts; next_id was drawn from the
    last row and is the next step's input (None: the request ended). Row handles are those of the kept rows, and None
    for rows that were computed without being tapped: a gap, for an algorithm that needs them.
    """

    state: Any
    position: int
    token_ids: Sequence[int]
    next_id: int | None
    num_drafted: int = 0
    hidden: RowHandle | None = None
    taps: Mapping[str, RowHandle] = field(default_factory=dict[str, RowHandle])


Follow: TypeAlias = Callable[[Sequence[int], int], bool]


class Foregone(NamedTuple):
    """An algorithm knows that it will propose nothing next: the empty draft that it would give. It is not asked.

    With a `follow`, steps that draw one token are committed by follow(tokens, size), tokens[size] being the new one,
    until that says that there is something to propose, or something else than such steps comes.
    """

    draft: Draft
    follow: Follow | None = None


Score = tuple[int, int, int]  # (grade, trials, hits)


class Scores(NamedTuple):
    """What drafts would have met, by what judged them: tokens of the prompt, or emitted ones."""

    prompt: Sequence[Score]
    output: Sequence[Score]


NO_SCORES = Scores((), ())


class Speculator(Protocol):
    """An algorithm, serving many requests. Called on the engine thread only.

    A speculator that raises, exceeds its window, or proposes an id outside the vocabulary is disarmed for the request
    concerned, counted and logged; the request goes on without it.
    """

    @property
    def capabilities(self) -> Capabilities: ...

    @property
    def num_gap_errors(self) -> int:
        """Commits that did not continue the history, each logged and answered by seeding anew from the request."""
        ...

    def open(self, request: RequestView) -> Any:
        """Arms a request and returns its state. Cheap: whatever takes time is left to `catch_up`."""
        ...

    def close(self, state: Any) -> None:
        """The request left or is disarmed. Frees what `open` and `catch_up` took."""
        ...

    def lag(self, state: Any) -> int:
        """Tokens of the request's history that it still has to read before it can draft; 0 when ready."""
        ...

    def catch_up(self, state: Any, seconds: float) -> int:
        """Reads some of them, as many as fit in about `seconds` and at least one, and returns how many."""
        ...

    def propose(self, contexts: Sequence[DraftContext]) -> list[Draft]:
        """One draft per context, in order; an empty draft says why."""
        ...

    def commit(self, committed: Sequence[Committed]) -> None:
        """Learns what landed. A request whose commits were skipped for a while (steps served without it) lags."""
        ...

    def foresees(self, state: Any) -> Foregone | None:
        """That it will propose nothing next, if it knows. Asked when it has read all there is, and after commits."""
        ...

    def take_scores(self, state: Any) -> Scores:
        """scores_itself: outcomes since the last call, each judged only by tokens already known. Else empty."""
        ...
