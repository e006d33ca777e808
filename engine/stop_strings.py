"""Finds stop strings in text that arrives in pieces. Pure: knows text and characters, no tokens.

The rule, whatever the pieces: text ends at the stop string that is complete first; of those that are complete at the
same character the longest counts, so the one that begins first. (Not "the one that begins first" without this: with
the stops `b` and `abc` that would mean reading on after a complete stop, for one that may never come.)

An Aho-Corasick automaton: one state per beginning of a stop string. Its state is the longest suffix of the text that
could still become a stop, and that suffix is held back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class StopMatch:
    """A stop string that was found. `begin` counts characters from the start of the whole text."""

    begin: int
    stop: str


@dataclass(slots=True)
class _State:
    depth: int  # characters of the beginning that this state stands for
    following: dict[str, _State] = field(default_factory=dict[str, "_State"])
    shorter: _State | None = None  # the longest proper suffix that is a beginning too; None for the root
    complete: str | None = None  # the longest stop that ends here


class StopStrings:
    """Watches one text. Work is linear in the text, whatever the number of stops."""

    def __init__(self, stops: Sequence[str]) -> None:
        """`stops` are not empty texts."""
        self.match: StopMatch | None = None
        self._root = _automaton(stops)
        self._state = self._root
        self._held = ""
        self._read = 0  # characters of the text so far

    @property
    def num_held(self) -> int:
        """Characters at the end of the text that `feed` has not returned yet."""
        return len(self._held)

    def feed(self, text: str) -> str:
        """Takes the next piece; returns what is now known to come before any stop. After a match, always nothing."""
        if self.match is not None:
            return ""
        pending = self._held + text
        state = self._state
        for index, character in enumerate(text):
            state = self._step(state, character)
            if state.complete is not None:
                self.match = StopMatch(self._read + index + 1 - len(state.complete), state.complete)
                before = self.match.begin - (self._read - len(self._held))
                self._held = ""
                return pending[:before]
        self._state = state
        self._read += len(text)
        certain = len(pending) - state.depth
        self._held = pending[certain:]
        return pending[:certain]

    def flush(self) -> str:
        """The text's end: what was held back and did not become a stop."""
        held, self._held = self._held, ""
        return held

    def _step(self, state: _State, character: str) -> _State:
        at: _State | None = state
        while at is not None:
            found = at.following.get(character)
            if found is not None:
                return found
            at = at.shorter
        return self._root


def _automaton(stops: Sequence[str]) -> _State:
    root = _State(0)
    for stop in stops:
        assert stop, "a stop string must not be empty"
        state = root
        for character in stop:
            state = state.following.setdefault(character, _State(state.depth + 1))
        state.complete = stop
    queue = deque(root.following.values())
    for state in queue:
        state.shorter = root
    while queue:  # shallower states first, so that their links are complete
        state = queue.popleft()
        for character, child in state.following.items():
            at = state.shorter
            while at is not None and character not in at.following:
                at = at.shorter
            child.shorter = root if at is None else at.following[character]
            if child.complete is None:
                child.complete = child.shorter.complete
            queue.append(child)
    return root
