"""Splits text at the tokens that are never made by merging: control and user-defined ones. Leftmost, then longest."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator


class SpecialSplitter:
    """Finds any of a set of texts. The cost follows the text and the lengths that share a beginning, not the set."""

    def __init__(self, specials: Iterable[tuple[str, int]]) -> None:
        self._ids: dict[str, int] = {}
        for text, token_id in specials:
            self._ids.setdefault(text, token_id)
        lengths: dict[str, set[int]] = {}  # first two characters (or the only one) -> lengths of the texts they begin
        for text in self._ids:
            lengths.setdefault(text[:2], set()).add(len(text))
        self._lengths = {start: sorted(found, reverse=True) for start, found in lengths.items()}
        first = sorted({start[0] for start in lengths})
        self._first = re.compile(f"[{''.join(map(re.escape, first))}]") if first else None

    def split(self, text: str) -> Iterator[str | int]:
        """The text's pieces in order: str for plain text (never empty), int for a special token."""
        plain_from = 0
        for start, end in self.matches(text):
            if start > plain_from:
                yield text[plain_from:start]
            yield self._ids[text[start:end]]
            plain_from = end
        if plain_from < len(text):
            yield text[plain_from:]

    def matches(self, text: str) -> Iterator[tuple[int, int]]:
        """Where special tokens stand in a text: begin and end of each."""
        at = 0
        while self._first is not None and (match := self._first.search(text, at)) is not None:
            at = match.start()
            length = self._match(text, at)
            if length:
                yield at, at + length
            at += length or 1

    def _match(self, text: str, at: int) -> int:
        """Length of the longest special text at a place, or 0."""
        for start in (text[at : at + 2], text[at]):
            for length in self._lengths.get(start, ()):
                if text[at : at + length] in self._ids:
                    return length
        return 0
