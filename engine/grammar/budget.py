"""A limit on the tokens of reasoning: when they are spent, the tokens that end the reasoning are all that is allowed.

A grammar of its own, around another or none. Counts tokens, so it needs markers that are one token each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from .constraint import Constraint
from .matcher import Grammar, Matcher

_FIRST_TOKENS = 2  # of an answer, among which the one that opens the reasoning is looked for
_ALL = np.uint32(0xFFFFFFFF)


class _Phase(Enum):
    BEFORE = 0  # the reasoning may begin
    INSIDE = 1
    ENDING = 2  # the budget is spent
    AFTER = 3


_State = tuple[_Phase, int]  # and how many tokens of the phase are behind


@dataclass(frozen=True, slots=True)
class ReasoningBudget:
    """At most `tokens` tokens of reasoning, then `ending`, whose last token is `closer`. See Grammar."""

    tokens: int
    opener: int | None  # None: the prompt has opened the reasoning
    closer: int
    ending: tuple[int, ...]
    num_words: int  # of a mask
    inner: Grammar | None = None

    @property
    def constraint(self) -> Constraint:
        """What the answer must look like besides: anything, if nothing else was asked for."""
        return (
            Constraint.lark("start: /(?s:.*)/", "thinking_token_budget")
            if self.inner is None
            else self.inner.constraint
        )

    def start(self, *, may_end: bool = True) -> Matcher:
        """See Grammar."""
        return _Spending(self, None if self.inner is None else self.inner.start(may_end=may_end))

    def first(self) -> _State:
        """The state of a new answer."""
        return self._inside(0) if self.opener is None else (_Phase.BEFORE, 0)

    def after(self, state: _State, token: int) -> _State:
        """The state behind one more token."""
        phase, count = state
        match phase:
            case _Phase.BEFORE:
                if token == self.opener:
                    return self._inside(0)
                return (phase, count + 1) if count + 1 < _FIRST_TOKENS else (_Phase.AFTER, 0)
            case _Phase.INSIDE:
                return (_Phase.AFTER, 0) if token == self.closer else self._inside(count + 1)
            case _Phase.ENDING:
                return (phase, count + 1) if count + 1 < len(self.ending) else (_Phase.AFTER, 0)
            case _Phase.AFTER:
                return state

    def _inside(self, count: int) -> _State:
        return (_Phase.INSIDE, count) if count < self.tokens else (_Phase.ENDING, 0)

    def prescribed(self, state: _State) -> int | None:
        """The only token that may come next, if there is but one."""
        phase, count = state
        return self.ending[count] if phase is _Phase.ENDING else None


class _Spending:
    """How much of a budget one answer has spent. A Matcher."""

    def __init__(self, budget: ReasoningBudget, inner: Matcher | None) -> None:
        self._budget = budget
        self._inner = inner
        self._state = budget.first()

    def masks_for(self, drafts: Sequence[int] = ()) -> NDArray[np.uint32]:
        """See Matcher."""
        budget, state = self._budget, self._state
        states = [state]
        for draft in drafts:
            only = budget.prescribed(state)
            if only is not None and draft != only:
                break
            state = budget.after(state, draft)
            states.append(state)
        if self._inner is None:
            masks = np.full((len(states), budget.num_words), _ALL)
        else:
            masks = np.array(self._inner.masks_for(drafts[: len(states) - 1]))  # a copy: the rows are changed below
        for row, at in zip(masks, states, strict=False):
            only = budget.prescribed(at)
            if only is not None:
                _keep(row, only)
        return masks

    def mask_after(self, drafts: Sequence[int]) -> NDArray[np.uint32] | None:
        """See Matcher."""
        state = self._state
        for draft in drafts:
            if self._budget.prescribed(state) not in (None, draft):
                return None
            state = self._budget.after(state, draft)
        inner, only = self._inner, self._budget.prescribed(state)
        mask = np.full(self._budget.num_words, _ALL) if inner is None else inner.mask_after(drafts)
        if mask is not None and only is not None:
            mask = np.array(mask)
            _keep(mask, only)
        return mask

    def forced_drafts(self, limit: int) -> list[int]:
        """See Matcher."""
        phase, count = self._state
        if phase is _Phase.ENDING:
            return list(self._budget.ending[count : count + limit])
        if self._inner is None:
            return []
        room = self._budget.tokens - count if phase is _Phase.INSIDE else limit
        return self._inner.forced_drafts(min(limit, room))

    def commit(self, token_ids: Sequence[int]) -> None:
        """See Matcher."""
        for token in token_ids:
            self._state = self._budget.after(self._state, token)
        if self._inner is not None:
            self._inner.commit(token_ids)

    @property
    def complete(self) -> bool:
        """See Matcher."""
        return self._inner is not None and self._inner.complete


def _keep(mask: NDArray[np.uint32], token: int) -> None:
    """Leaves one token of a mask, if it is there: the inner grammar has the last word."""
    word, bit = token // 32, np.uint32(1 << (token % 32))
    if mask[word] & bit:
        mask[:] = 0
        mask[word] = bit
