"""Finds tool calls in a growing text. Knows no dialect.

A call is held back until it is complete or _PATIENCE characters long, so that a short one that breaks off or makes no
sense comes back as the text it is. A longer one passes through while the model writes it; should it break after all,
it stays as far as it went, and the rest is text again.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from ..growing_text import GrowingText, Reader, Stops, Unreadable, drained
from ..message_events import CallArguments, CallEnd, CallStart, Content, Event
from .definitions import ToolSet
from .dialect import Arguments, Dialect, End, Name, Part

_PATIENCE = 256  # characters
_LONGEST_HEAD = 4096  # characters before a call's name
_NAME = re.compile(r"[^\s<>\[\]{}()\"'`,;=]{1,256}")
_SPACE = " \t\r\n"
_ANYTHING = re.compile(r"(?s).*")


class CallParser:
    """Content and calls of one answer. Any split of the text into pieces gives the same ones."""

    def __init__(self, dialect: Dialect, tools: ToolSet, new_id: Callable[[], str], *, parallel: bool = True) -> None:
        self.num_complete = 0
        self._dialect = dialect
        self._tools = tools
        self._new_id = new_id
        self._parallel = parallel
        self._text = GrowingText()
        self._keep: int | None = None  # where text begins that may be read again
        self._num_started = 0
        self._space = ""  # white space that is content if content follows it, and not if a call does
        self._after_call = False
        self._has_content = False
        self._steps = self._read()

    def feed(self, piece: str) -> list[Event]:
        """What the new text completes."""
        self._text.append(piece)
        return self._drain()

    def end(self) -> list[Event]:
        """What was held back, now that nothing follows."""
        self._text.end()
        return self._drain()

    def _drain(self) -> list[Event]:
        events = drained(self._steps)
        self._text.forget(self._text.at if self._keep is None else self._keep)
        return events

    def _read(self) -> Reader[Event, None]:
        yield from self._at_the_beginning()
        text, stops = self._text, Stops(*self._dialect.openers)
        while True:
            piece, opener = text.before(stops)
            yield from self._content(piece)
            if opener:
                start = text.at
                text.at += len(opener)
                if not (yield from self._block(opener, start, known_only=False)):
                    text.at = start + len(opener)
                    yield from self._content(opener)
                if self.num_complete and not self._parallel:
                    yield from self._swallow()
            elif text.ended:
                if self._space and not self._after_call:
                    yield Content(self._space)
                return
            else:
                yield None

    def _at_the_beginning(self) -> Reader[Event, None]:
        """Calls without a marker, which only an answer that begins with them has."""
        text = self._text
        if not self._dialect.first_openers:
            return
        self._keep = text.at
        yield from text.skip_space()
        opener = yield from text.take(*self._dialect.first_openers)
        if not opener or not (yield from self._block(opener, 0, known_only=True)):
            text.at = 0
        self._keep = None
        if self.num_complete and not self._parallel:
            yield from self._swallow()

    def _swallow(self) -> Reader[Event, None]:
        """One call was asked for; what the model writes after it is not shown."""
        while True:
            self._text.arrived(_ANYTHING)
            if self._text.ended:
                self._space = ""
                return
            yield None

    def _content(self, piece: str) -> Reader[Event, None]:
        text = self._space + piece
        if self._after_call and not self._has_content:
            text = text.lstrip(_SPACE)  # it would part the call from nothing
        body = text.rstrip(_SPACE)
        self._space = text[len(body) :]
        if body:
            self._after_call, self._has_content = False, True
            yield Content(body)

    def _block(self, opener: str, start: int, *, known_only: bool) -> Reader[Event, bool]:
        """Reads a block of calls from behind its opener. False, and nothing read, if it holds none."""
        text = self._text
        self._keep = start
        call = _Call(start)
        found = False
        parts = self._dialect.calls(text, opener, self._tools)
        try:
            for part in parts:
                if part is None:
                    call.check_head(text.at)
                    yield None
                    continue
                call.add(part, text.at, self._tools if known_only else None)
                if call.is_complete or text.at - call.origin >= _PATIENCE:
                    found = True
                    self._keep = text.at
                    yield from self._pass_on(call)
                if call.is_complete:
                    call = _Call(text.at)
                    if not self._parallel:
                        break
        except Unreadable:
            if call.index is None:
                text.at = call.origin
            elif text.ended:  # the reader was still waiting: the call was cut off, and half a number is nobody's text
                text.arrived(_ANYTHING)
            else:
                text.at = call.safe
        self._keep = None
        return found

    def _pass_on(self, call: _Call) -> Reader[Event, None]:
        """The parts of a call that were held back. From the first time on it is a call whatever happens."""
        if call.index is None:
            call.index = self._num_started
            self._num_started += 1
            self._space, self._after_call = "", True
            yield CallStart(call.index, self._new_id(), call.name)
        arguments = "".join(call.held)
        call.held.clear()
        call.safe = self._text.at
        if arguments:
            yield CallArguments(call.index, arguments)
        if call.is_complete:
            self.num_complete += 1
            yield CallEnd(call.index)


class _Call:
    """A call while it is read."""

    def __init__(self, origin: int) -> None:
        self.origin = origin  # where its text begins
        self.safe = origin  # up to where its text was passed on
        self.name = ""
        self.held: list[str] = []
        self.index: int | None = None  # given when it is passed on
        self.is_complete = False

    def check_head(self, at: int) -> None:
        """Unreadable if a call goes on and on without a name."""
        if not self.name and at - self.origin > _LONGEST_HEAD:
            raise Unreadable("no name")

    def add(self, part: Part, at: int, known: ToolSet | None) -> None:
        """Takes a part. Unreadable if it is no usable name."""
        match part:
            case Name(name):
                self.check_head(at)
                if not _NAME.fullmatch(name) or (known is not None and name not in known):
                    raise Unreadable("not a tool's name")
                self.name = name
            case Arguments(text):
                self.held.append(text)
            case End():
                self.is_complete = True
