"""Separates reasoning from the answer in a growing text.

An end marker that is quoted is text. It counts as quoted between a pair of quotation marks, and in the middle of a
sentence: behind a word and a space, and before punctuation or a space and a small letter. No model is trained to end
its reasoning like that. Where a grammar holds the answer there are no quotations: the first marker ends the reasoning
there, because the grammar lets the answer begin behind it.
"""

from __future__ import annotations

import re

from ..growing_text import GrowingText, Reader, Stops, Wait, drained
from ..message_events import Content, Event, Reasoning
from .formats import Begin, ReasoningFormat

_SPACE = " \t\r\n"
_ANYTHING = re.compile(r"(?s).*")
_PAIRS = {"\u201c": "\u201d", "\u2018": "\u2019", "\u00ab": "\u00bb", "(": ")", "\u300c": "\u300d"}
_PAIRS.update({mark: mark for mark in "\"'`*"})
_BEFORE_QUOTES = " \t\n([{*'\""
_WORD_AND_SPACE = re.compile(r"[\w,;:] ")
_LOOK = 2  # characters that decide on each side of a marker


class ReasoningParser:
    """Reasoning and content of one answer. Any split of the text into pieces gives the same."""

    def __init__(self, made: ReasoningFormat, begin: Begin, *, may_quote: bool = True) -> None:
        self._format = made
        self._begin = begin
        self._may_quote = may_quote
        self.end_at: int | None = None  # characters up to behind the end marker, 0 without reasoning; None: still open
        self._text = GrowingText()
        self._space = ""  # white space that is reasoning only if more of it follows
        self._steps = self._read()

    def feed(self, piece: str) -> list[Event]:
        """What the new text completes."""
        self._text.append(piece)
        return drained(self._steps)

    def end(self) -> list[Event]:
        """What was held back, now that nothing follows."""
        self._text.end()
        return drained(self._steps)

    def _read(self) -> Reader[Event, None]:
        text, inside = self._text, self._begin is Begin.INSIDE
        if self._begin in (Begin.ANEW, Begin.INSIDE):  # some models open again what the prompt has opened
            inside = bool((yield from text.skip_past(self._format.opener))) or inside
        if inside:
            yield from self._reasoning()
        self.end_at = text.at if inside else 0
        if inside or self._begin is Begin.CLOSED:
            yield from text.skip_space()
        while True:
            piece = text.arrived(_ANYTHING)
            text.forget(text.at)
            if piece:
                yield Content(piece)
            if text.ended:
                return
            yield None

    def _reasoning(self) -> Reader[Event, None]:
        """Everything up to the end marker, which is read. White space at both ends is left out."""
        text, stops = self._text, Stops(self._format.closer)
        yield from text.skip_space()
        last = ""  # the characters before the reading position
        while True:
            piece, found = text.before(stops)
            yield from self._pass_on(piece)
            last = (last + piece)[-_LOOK:]
            if found:
                text.at += len(found)
                if not (self._may_quote and (yield from self._is_quoted(last))):
                    return
                yield from self._pass_on(found)
                last = found[-_LOOK:]
            elif text.ended:
                return
            else:
                text.forget(text.at)
                yield None

    def _pass_on(self, piece: str) -> Reader[Event, None]:
        whole = self._space + piece
        body = whole.rstrip(_SPACE)
        self._space = whole[len(body) :]
        if body:
            yield Reasoning(body)

    def _is_quoted(self, before: str) -> Wait[bool]:
        """Whether the end marker between `before` and the text to come is only talked about."""
        after = yield from self._text.peek(_LOOK)
        opens = before[:-1] in ("", *_BEFORE_QUOTES)
        if after and opens and _PAIRS.get(before[-1:]) == after[0]:
            return True
        goes_on = after[:1] in tuple(".,;:!?)") or (after[:1] == " " and after[1:].islower())
        return goes_on and _WORD_AND_SPACE.fullmatch(before) is not None
