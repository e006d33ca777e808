"""`draft-model`: a second, smaller model with the same vocabulary guesses by decoding.

It draws its tokens as the target will: with the request's own bias, penalties, grammar and filters, and with the
target's noise at the same output positions. So where the two models agree about the likely candidates they also agree
about the draw, and acceptance survives temperature.

The drafter's cache of a request always starts at position 0 and holds [0, valid) of what was committed. Rows it drafted
lie behind that and are overwritten:

    committed   ........................... t | next
    cache       ....... valid | d1 d2 (of the last draft, right as far as they were accepted)
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, replace
from math import exp

import numpy as np
from numpy.typing import NDArray

from ...kernels.backend import DrawRequest, Sampler
from ...kernels.sampling import DrawFault
from ..kv_cache import Holding
from ..log_fields import fields
from ..sequence import Rows, Sequence
from .contract import (
    MAX_WINDOW,
    NO_SCORES,
    Capabilities,
    Committed,
    Draft,
    DraftContext,
    Foregone,
    RequestView,
    Scores,
    Target,
)
from .draft_resources import FOLDED_ROWS, READ_ROWS, DraftChoice
from .registry import Declined, Resources

_log = logging.getLogger(__name__)

CONFIDENCES = 8  # grades of the drafter's own probability of its token, in eighths
PACE_MEMORY = 0.7  # of the mean time per row of reading, per piece
EXPECTED_ACCEPTANCE = 0.8  # models of one family, the smaller a third of the larger's size
# Acceptance to expect by confidence, and again for drafts right after a rejection.
GRADE_PRIORS = (0.30, 0.40, 0.50, 0.60, 0.70, 0.78, 0.86, 0.95, 0.25, 0.35, 0.45, 0.55, 0.65, 0.74, 0.83, 0.93)


class State(Sequence):
    """A request at the drafter: `tokens` is what the drafter was told and, for the moment, what it is drafting;
    `num_computed` positions of its cache hold committed tokens."""

    __slots__ = ("after_rejection", "drafted", "opened", "own_sampler", "request", "sampler")

    def __init__(self, request: RequestView, holding: Holding, sampler: Sampler, own_sampler: bool = False) -> None:
        super().__init__((), 0, holding)
        self.request = request
        self.sampler = sampler
        self.own_sampler = own_sampler  # the target's counts tokens of a vocabulary of another width
        self.drafted: list[int] = []
        self.after_rejection = False
        self.opened = False


@dataclass(slots=True)
class _Turn:
    """One context's draft in the making."""

    context: DraftContext
    state: State
    draft: Draft
    grades: list[int]
    emitted: int  # output position of the first drafted token


class DraftModelSpeculator:
    """The speculator over a draft model's runtime."""

    def __init__(self, choice: DraftChoice, target_vocab: int, clock: Callable[[], float] = time.perf_counter) -> None:
        self.capabilities = Capabilities(
            name="draft-model",
            max_draft_tokens=MAX_WINDOW,
            grade_priors=GRADE_PRIORS,
            can_arm_after_gap=True,
            paid=True,
            draft_cost=choice.draft_cost,
            read_cost=choice.read_cost,
            expected_acceptance=EXPECTED_ACCEPTANCE,
        )
        self.num_gap_errors = 0
        self._runtime = choice.runtime
        self._target_vocab = target_vocab
        self._clock = clock
        self._seconds_per_row: float | None = None

    def open(self, request: RequestView) -> State:
        """Takes no cache yet: a request that never pays for a draft never occupies any."""
        holding = self._runtime.cache.holding(request.cache_salt)
        if self._runtime.vocab_size == self._target_vocab:
            return State(request, holding, request.sampler)
        return State(request, holding, self._narrow_sampler(request), own_sampler=True)

    def _narrow_sampler(self, request: RequestView) -> Sampler:
        """The request's sampler over the drafter's vocabulary, up to date. Padding is in neither."""
        size, spec = self._runtime.vocab_size, request.sampling
        spec = replace(
            spec,
            logit_bias=tuple((token, bias) for token, bias in spec.logit_bias if token < size),
            suppress_ids=tuple(token for token in spec.suppress_ids if token < size),
        )
        known = [token for token in request.tokens[: request.num_prompt] if token < size]
        sampler = self._runtime.backend.sampler(spec, known, size)
        sampler.commit([token for token in request.tokens[request.num_prompt :] if token < size])
        return sampler

    def close(self, state: State) -> None:
        """Gives the cache back; what it holds of the request stays findable for its next turn."""
        if state.opened:
            self._runtime.cache.close(state.holding)
            state.opened = False

    def lag(self, state: State) -> int:
        """Unread tokens, if they are too many to be read with the first draft."""
        unread = len(state.request.tokens) - 1 - state.num_computed
        return unread if unread > FOLDED_ROWS else 0

    def catch_up(self, state: State, seconds: float) -> int:
        """Reads history: adopts what an earlier turn left, then as many rows as fit in `seconds`."""
        tokens = state.request.tokens
        before = state.num_computed
        self._begin(state)
        count = min(len(tokens) - 1 - state.num_computed, self._rows_within(seconds))
        if count > 0 and self._runtime.cache.reserve(state.holding, state.num_computed + count):
            started = self._clock()
            self._runtime.runner.forward([Rows(state, state.num_computed, count, 0)])
            self._note_pace(count, self._clock() - started)
            self._advance(state, state.num_computed + count)
        return state.num_computed - before

    def _rows_within(self, seconds: float) -> int:
        if self._seconds_per_row is None:
            return 16
        return max(1, min(READ_ROWS, int(seconds / self._seconds_per_row)))

    def _note_pace(self, rows: int, seconds: float) -> None:
        pace, known = seconds / rows, self._seconds_per_row
        self._seconds_per_row = pace if known is None else PACE_MEMORY * known + (1 - PACE_MEMORY) * pace

    def _begin(self, state: State) -> None:
        """Makes the drafter's tokens the request's, and gives it a cache."""
        tokens, cache = state.request.tokens, self._runtime.cache
        state.tokens += tokens[len(state.tokens) :]
        if not state.opened:
            match = cache.match(state.holding, tokens)
            cache.open(state.holding, match)
            state.opened = True
            state.num_computed = match.num_tokens

    def _advance(self, state: State, valid: int) -> None:
        state.num_computed = valid
        self._runtime.cache.commit(state.holding, state.tokens, valid)

    # --- drafting ----------------------------------------------------------------------------------------------------

    def propose(self, contexts: SequenceOf[DraftContext]) -> list[Draft]:
        """All contexts draft in step: one row each per drafted token."""
        started = self._clock()
        turns = [self._turn(context) for context in contexts]
        active = [turn for turn in turns if turn.draft.reason is None]
        try:
            while active:
                active = self._draft_one_more(active)
        finally:
            seconds = (self._clock() - started) / max(1, len(turns))
            for turn in turns:
                turn.draft.seconds = seconds
                del turn.state.tokens[len(turn.state.request.tokens) :]
        return [turn.draft for turn in turns]

    def _turn(self, context: DraftContext) -> _Turn:
        state: State = context.state
        grades: list[int] = []
        turn = _Turn(context, state, Draft([], grades), grades, context.position + 1 - state.request.num_prompt)
        self._begin(state)
        state.drafted = turn.draft.token_ids
        last = context.position + context.max_tokens  # positions that will be written
        if self.lag(state):
            turn.draft.reason = "history not read yet"
        elif last > self._runtime.context_length:
            turn.draft.reason = "beyond the draft model's context"
        elif not self._runtime.cache.reserve(state.holding, last):
            turn.draft.reason = "no blocks for the draft model"
        return turn

    def _draft_one_more(self, turns: list[_Turn]) -> list[_Turn]:
        """One step of the draft model, a draw for each; returns the turns that go on."""
        entries: list[Rows[State]] = []
        for turn in turns:
            state = turn.state
            start = len(state.tokens) - 1  # whose logits are wanted, though a step that failed may have computed it
            if not state.drafted:
                start = min(start, state.num_computed)
            entries.append(Rows(state, start, len(state.tokens) - start, 1))
        runner = self._runtime.runner
        first_logits = runner.forward(entries)
        for turn in turns:
            if not turn.state.drafted:
                self._advance(turn.state, turn.context.position + 1)
        masks = [self._mask(turn) for turn in turns]
        requests = [
            DrawRequest(
                turn.state.sampler,
                row,
                turn.emitted + len(turn.state.drafted),
                masks=mask,
                history=turn.state.drafted,
            )
            for turn, row, mask in zip(turns, first_logits, masks, strict=True)
        ]
        results = runner.draw(requests)
        going_on: list[_Turn] = []
        for turn, row, mask, result in zip(turns, first_logits, masks, results, strict=True):
            if isinstance(result, DrawFault):
                turn.draft.reason = turn.draft.reason or "the draft model gave no numbers"
            elif self._add(turn, result[0].token_id, row, mask):
                going_on.append(turn)
        return going_on

    def _mask(self, turn: _Turn) -> NDArray[np.uint32] | None:
        """What the request's grammar allows next, over the drafter's vocabulary: [1, ceil(vocabulary / 32)]."""
        matcher = turn.state.request.matcher
        if matcher is None:
            return None
        allowed = np.zeros((1, -(-self._runtime.vocab_size // 32)), np.uint32)
        mask = matcher.mask_after(turn.state.drafted)
        if mask is not None:
            size = min(mask.shape[0], allowed.shape[1])
            allowed[0, :size] = mask[:size]
        return allowed

    def _add(self, turn: _Turn, token_id: int, row: int, mask: NDArray[np.uint32] | None) -> bool:
        """Takes a drawn token into the draft; whether to go on."""
        state, context = turn.state, turn.context
        logprob = self._runtime.runner.score(row, token_id, 0).logprob
        assert logprob is not None
        confidence = 1.0 if mask is not None and _is_single(mask) else min(1.0, exp(logprob))
        if token_id >= self._target_vocab:  # padding of the drafter's own
            return False
        if confidence < context.min_confidence:
            if not state.drafted:
                turn.draft.reason = "below the confidence gate"
            return False
        grade = min(CONFIDENCES - 1, int(confidence * CONFIDENCES)) + CONFIDENCES * state.after_rejection
        position = len(state.drafted)
        state.drafted.append(token_id)
        state.tokens.append(token_id)
        turn.grades.append(grade)
        return len(state.drafted) < context.max_tokens and context.keep_going(position, grade)

    # --- after the step ----------------------------------------------------------------------------------------------

    def commit(self, committed: SequenceOf[Committed]) -> None:
        """What was accepted of the draft is right in the cache already, all but its last token, which was never fed."""
        for item in committed:
            state: State = item.state
            size, tokens = item.position + 1, state.request.tokens
            if len(state.tokens) > size or (state.drafted and len(state.tokens) < size):
                self._start_over(state, item.position)
                continue
            drafted, matched = state.drafted, 0
            for guess, token in zip(drafted, tokens[size:], strict=False):
                if guess != token:
                    break
                matched += 1
            if state.own_sampler:
                state.sampler.commit([token for token in tokens[size:] if token < self._runtime.vocab_size])
            state.tokens += tokens[len(state.tokens) :]
            if drafted:
                self._advance(state, size + min(matched, len(drafted) - 1))
            state.after_rejection = matched < item.num_drafted
            state.drafted = []

    def _start_over(self, state: State, position: int) -> None:
        self.num_gap_errors += 1
        _log.warning(
            "request %s: a step committed at position %d, but the draft model knows %d tokens; reading it anew",
            state.request.request_id,
            position,
            len(state.tokens),
            extra=fields(choice_id=state.request.request_id),
        )
        self.close(state)
        state.tokens.clear()
        state.drafted = []
        state.num_computed = 0

    def foresees(self, state: State) -> Foregone | None:
        """It always has an opinion."""
        return None

    def take_scores(self, state: State) -> Scores:
        """What it did not draft, nobody can score."""
        return NO_SCORES


def _is_single(mask: NDArray[np.uint32]) -> bool:
    """Whether one token only is allowed."""
    words = mask[mask != 0]
    return len(words) == 1 and not int(words[0]) & (int(words[0]) - 1)


def create(target: Target, resources: Resources) -> DraftModelSpeculator | Declined:
    """Serves targets for which the operator named a draft model that fits."""
    if resources.draft_model is None:
        return Declined("no draft model was given (--draft-model)")
    choice = resources.draft_model
    return choice if isinstance(choice, Declined) else DraftModelSpeculator(choice, target.vocab_size)
