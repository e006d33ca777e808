"""Notices that an answer has fallen into a loop. Pure: knows token ids only, and only those of the answer.

A loop is a block of at most `period` tokens that stands `repeats` times in a row at the answer's end. For every
distance d up to `period` the guard keeps how many tokens in a row, up to the last one, equal the token d before them:

    x a b a b a b      d = 2: the last 4 tokens equal the one 2 before, so `ab` stands (4 + 2) / 2 = 3 times
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RepetitionLimit:
    """What counts as a loop: a block of 1 .. `period` tokens, `repeats` (at least 2) times in a row."""

    period: int
    repeats: int


class RepetitionGuard:
    """Watches one answer. Work per token is linear in the period, memory too."""

    def __init__(self, limit: RepetitionLimit) -> None:
        self._further = limit.repeats - 1  # copies that must equal the first one
        self._recent: deque[int] = deque(maxlen=limit.period)  # the last tokens, the latest first
        self._runs: dict[int, int] = {}  # by distance; distances without a run are left out

    def feed(self, token_id: int) -> bool:
        """Takes the next token. True if the answer now ends in a loop."""
        runs: dict[int, int] = {}
        found = False
        for distance, earlier in enumerate(self._recent, 1):
            if earlier == token_id:
                run = runs[distance] = self._runs.get(distance, 0) + 1
                found = found or run >= distance * self._further
        self._runs = runs
        self._recent.appendleft(token_id)
        return found
