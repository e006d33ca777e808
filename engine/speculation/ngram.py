"""`ngram`: drafts what followed the last few tokens when they occurred before in the same request. Needs no weights.

Strong where an answer quotes, edits, repeats or lists; on free prose it finds little, and its own scores say so. Each
request has an index of its own and never sees another's tokens.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Protocol

from ...kernels.registry import has_native_module
from ..log_fields import fields
from . import ngram_index
from .contract import Capabilities, Committed, Draft, DraftContext, Foregone, RequestView, Score, Scores, Target
from .ngram_index import MAX_DRAFT, MAX_MATCH, MAX_ORDER, NUM_GRADES, RESUMES, draft_grades
from .registry import Resources

_log = logging.getLogger(__name__)

COLD_START = 256  # prompt tokens whose predictability is scored before the first draft
TOKENS_PER_SECOND = 2_000_000  # the native index's pace, a third of what it does on a quiet core
PYTHON_TOKENS_PER_SECOND = 50_000


NO_MATCH = Draft([], reason="no match")


class Index(Protocol):
    """What the native index and its twin in Python offer; see `ngram_index`."""

    def __len__(self) -> int: ...
    @property
    def room(self) -> int: ...
    def restart(self, capacity: int) -> None: ...
    @property
    def num_bytes(self) -> int: ...
    def extend(self, ids: Sequence[int], start: int, stop: int) -> None: ...
    def advance(self, ids: Sequence[int], start: int, stop: int) -> bool: ...
    def follow(self, ids: Sequence[int], size: int) -> bool: ...
    def draft(self, limit: int) -> tuple[list[int], int, int]: ...
    def take_scores(self) -> list[Score]: ...


@dataclass(slots=True, eq=False)
class State:
    """A request's index. Tokens before `scored` have judged drafts already and are only filed again after an error."""

    request: RequestView
    index: Index
    scored: int
    foregone: Foregone  # what it says where nothing matches
    matches: bool = True  # as far as it is known
    prompt_scores: list[Score] = field(default_factory=list[Score])


def required_match(min_confidence: float) -> int:
    """Tokens that must match before drafting: ceil(8 p) for p > 0, at least 2 and at most 8; by default whatever the
    index offers, which is a match of 2 tokens, or less where a copy resumes."""
    if not min_confidence:
        return 0
    return max(2, min(8, math.ceil(8 * min_confidence)))


class NgramSpeculator:
    """The speculator over an index type, native or Python."""

    def __init__(self, index: Callable[[int], Index], tokens_per_second: int) -> None:
        self.capabilities = Capabilities(
            name="ngram",
            max_draft_tokens=MAX_DRAFT,
            grade_priors=GRADE_PRIORS,
            can_arm_after_gap=True,
            scores_itself=True,
        )
        self.num_gap_errors = 0
        self._new_index = index
        self._spare: Index | None = None  # of a request that has ended: its memory is there already
        self._tokens_per_second = tokens_per_second

    def open(self, request: RequestView) -> State:
        """An empty index with room for all the request can grow to."""
        index, self._spare = self._spare, None
        if index is None or index.room < request.max_length:
            index = self._new_index(request.max_length)
        else:
            index.restart(request.max_length)
        return State(request, index, max(0, request.num_prompt - COLD_START), Foregone(NO_MATCH, index.follow))

    def close(self, state: State) -> None:
        """The next request may have the index's memory."""
        if self._spare is None or self._spare.room < state.index.room:
            self._spare = state.index

    def lag(self, state: State) -> int:
        """Tokens not filed yet."""
        return len(state.request.tokens) - len(state.index)

    def catch_up(self, state: State, seconds: float) -> int:
        """Files what fits in `seconds`; scores the prompt's last tokens and every emitted one on the way."""
        ids, index = state.request.tokens, state.index
        start = len(index)
        stop = min(len(ids), start + max(1, int(seconds * self._tokens_per_second)))
        prompt_end = min(stop, state.request.num_prompt)
        if start < state.scored:
            index.extend(ids, start, min(stop, state.scored))
        if len(index) < prompt_end:
            state.matches = index.advance(ids, len(index), prompt_end)
            state.prompt_scores += index.take_scores()
        if len(index) < stop:
            state.matches = index.advance(ids, len(index), stop)
        return stop - start

    def propose(self, contexts: Sequence[DraftContext]) -> list[Draft]:
        """Copies from the best match of each context."""
        return [self._propose(context) for context in contexts]

    def _propose(self, context: DraftContext) -> Draft:
        state: State = context.state
        if len(state.index) != context.position + 1:
            return Draft([], reason="history not read yet")
        ids, length, vote = state.index.draft(context.max_tokens)
        if not ids:
            return Draft([], reason="no room") if context.max_tokens <= 0 else NO_MATCH
        if length < MAX_ORDER and length < required_match(context.min_confidence):
            return Draft([], reason="match too short")
        return Draft(ids, _GRADES[length][vote])

    def commit(self, committed: Sequence[Committed]) -> None:
        """Files the emitted tokens: accepted drafts and the next input. The first row was filed when it was drawn."""
        for item in committed:
            state: State = item.state
            index, size = state.index, item.position + 1
            if len(index) != size:
                self._start_over(state, item.position)
                continue
            stop = size + len(item.token_ids) - 1 + (item.next_id is not None)
            state.matches = index.advance(state.request.tokens, size, stop)

    def _start_over(self, state: State, position: int) -> None:
        self.num_gap_errors += 1
        _log.warning(
            "request %s: a step committed at position %d, but its n-gram index holds %d tokens; reading it anew",
            state.request.request_id,
            position,
            len(state.index),
            extra=fields(choice_id=state.request.request_id),
        )
        state.scored = max(state.scored, len(state.index))
        state.index.restart(state.request.max_length)
        state.matches = True

    def foresees(self, state: State) -> Foregone | None:
        """Without a match there is no draft."""
        return None if state.matches else state.foregone

    def take_scores(self, state: State) -> Scores:
        """What a draft at each token since the last call would have met."""
        prompt, state.prompt_scores = state.prompt_scores, []
        return Scores(prompt, state.index.take_scores())


# What to expect of each grade before a request or a model was seen: acceptance measured over greedy and sampled answers
# of small chat models to six kinds of prompts. By vote of the occurrence before (none, same, different), then length;
# later tokens by length; tokens of a resumed copy by length.
GRADE_PRIORS: tuple[float, ...] = (
    *(0.45, 0.55, 0.65, 0.72, 0.75, 0.82, 0.85, 0.88, 0.92, 0.96),
    *(0.70, 0.75, 0.82, 0.86, 0.88, 0.92, 0.94, 0.95, 0.97, 0.98),
    *(0.20, 0.20, 0.30, 0.30, 0.25, 0.25, 0.35, 0.35, 0.40, 0.60),
    *(0.50, 0.58, 0.70, 0.77, 0.77, 0.84, 0.87, 0.90, 0.94, 0.97),
    *(0.30, 0.50, 0.75, 0.84, 0.88, 0.94, 0.70, 0.88),
)
assert len(GRADE_PRIORS) == NUM_GRADES

# [match length][vote] -> grades of a draft's tokens.
_GRADES: tuple[tuple[tuple[int, ...], ...], ...] = tuple(
    tuple(draft_grades(length, vote) if length < MAX_ORDER or vote != RESUMES else () for vote in range(4))
    for length in range(MAX_MATCH + 1)
)


def create(target: Target, resources: Resources) -> NgramSpeculator:
    """Serves every target. Takes the native index where it was built."""
    if not has_native_module():
        return NgramSpeculator(ngram_index.NgramIndex, PYTHON_TOKENS_PER_SECOND)
    native = import_module("...kernels.cpu._ops", __package__)
    return NgramSpeculator(native.NgramIndex, TOKENS_PER_SECOND)
