"""Text that arrives in pieces, and the ways to read it that do not depend on where the pieces end.

A reader is a generator. It yields what it has read, and None when it cannot go on without more text; whoever drives it
comes back when there is some. Because a reader only ever waits for the characters that decide its next move, the same
text gives the same result in any pieces.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from typing import TypeVar

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")

Reader = Generator[ItemT | None, None, ResultT]


def drained(steps: Reader[ItemT, None]) -> list[ItemT]:
    """What a reader gives until it waits for more text, or ends."""
    items: list[ItemT] = []
    for item in steps:
        if item is None:
            break
        items.append(item)
    return items


Wait = Generator[None, None, ResultT]  # a reader that yields nothing but the wish for more text

_SPACE = re.compile(r"[ \t\r\n]*")


class Unreadable(Exception):
    """The text is not what the reader reads."""


class Stops:
    """Texts that end another. None may lie in another but at its end: pieces could end where the whole does not."""

    def __init__(self, *texts: str) -> None:
        assert not any(one in other[:-1] for one in texts for other in texts if one != other), texts
        self._pattern = re.compile("|".join(map(re.escape, texts)))
        self._texts = texts
        self._longest = max(map(len, texts))

    def search(self, text: str, at: int) -> re.Match[str] | None:
        """The first of them from `at` on."""
        return self._pattern.search(text, at)

    def open_end(self, text: str, at: int) -> int:
        """Where text from `at` on ends that cannot become a part of a stop, whatever follows."""
        for start in range(max(at, len(text) - self._longest + 1), len(text)):
            if any(stop.startswith(text[start:]) for stop in self._texts):
                return start
        return len(text)


class GrowingText:
    """A text with a reading position."""

    def __init__(self) -> None:
        self._text = ""
        self._offset = 0  # of _text[0] in the whole text
        self.at = 0
        self.ended = False

    def append(self, piece: str) -> None:
        """Adds text at the end."""
        self._text += piece

    def end(self) -> None:
        """No more text will come."""
        self.ended = True

    def forget(self, end: int) -> None:
        """Drops the text before `end`, which nobody will look at again."""
        self._text = self._text[end - self._offset :]
        self._offset = end

    def since(self, start: int) -> str:
        """The text from `start` to the reading position."""
        return self._text[start - self._offset : self.at - self._offset]

    def peek(self, count: int) -> Wait[str]:
        """The next `count` characters, fewer only at the end of the text."""
        while True:
            here = self.at - self._offset
            if self.ended or len(self._text) - here >= count:
                return self._text[here : here + count]
            yield None

    def next_is(self, *literals: str) -> Wait[str]:
        """Which of the literals comes next, the longest that does; '' if none. Waits no longer than it must."""
        while True:
            here = self.at - self._offset
            there = len(self._text) - here
            rest = self._text[here : here + max(map(len, literals))]
            if self.ended or not any(len(literal) > there and literal.startswith(rest) for literal in literals):
                return max((literal for literal in literals if rest.startswith(literal)), key=len, default="")
            yield None

    def take(self, *literals: str) -> Wait[str]:
        """Reads over one of the literals if one comes next. Returns it, or ''."""
        found = yield from self.next_is(*literals)
        self.at += len(found)
        return found

    def expect(self, *literals: str) -> Wait[str]:
        """Reads over one of the literals, which has to come next."""
        found = yield from self.take(*literals)
        if not found:
            raise Unreadable(f"expected {' or '.join(literals)}")
        return found

    def skip_space(self) -> Wait[None]:
        """Reads over white space."""
        yield from self.run(_SPACE)

    def skip_past(self, *literals: str) -> Wait[str]:
        """Reads over white space and one of the literals if it follows; else reads nothing. Returns it, or ''."""
        start = self.at
        yield from self.skip_space()
        found = yield from self.take(*literals)
        if not found:
            self.at = start
        return found

    def run(self, characters: re.Pattern[str], most: int | None = None) -> Wait[str]:
        """The longest run of characters; the pattern is a starred set. Unreadable if it is longer than `most`."""
        start = self.at
        while True:
            self.arrived(characters)
            if most is not None and self.at - start > most:
                raise Unreadable("too long")
            if self.ended or self.at - self._offset < len(self._text):
                return self.since(start)
            yield None

    def arrived(self, characters: re.Pattern[str]) -> str:
        """Reads the run of characters as far as it has arrived. Does not wait."""
        here = self.at - self._offset
        match = characters.match(self._text, here)
        assert match is not None, "the pattern matches nothing too"
        self.at += match.end() - here
        return match[0]

    def before(self, stops: Stops) -> tuple[str, str]:
        """Reads what certainly comes before the first stop: that text, and the stop if it is there. Does not wait.

        The stop itself is not read.
        """
        here = self.at - self._offset
        match = stops.search(self._text, here)
        if match is not None:
            end, found = match.start(), match[0]
        else:
            end, found = len(self._text) if self.ended else stops.open_end(self._text, here), ""
        self.at += end - here
        return self._text[here:end], found

    def until(self, stops: Stops, most: int) -> Wait[str]:
        """A short text up to a stop, which is not read. Unreadable without one, or if it is longer than `most`."""
        start = self.at
        while True:
            _, found = self.before(stops)
            if self.at - start > most:
                raise Unreadable("too long")
            if found:
                return self.since(start)
            if self.ended:
                raise Unreadable("the text ended")
            yield None
