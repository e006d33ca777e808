"""JSON as models write it, read in pieces and passed on as valid JSON.

Forgiven are the faults whose meaning is certain: bare control characters and wrong escapes in strings, Python's words
for the constants, a comma before a closing bracket. Everything else that is not JSON is Unreadable.
"""

from __future__ import annotations

import json
import re
from typing import cast

from ..growing_text import GrowingText, Reader, Unreadable, Wait

Pieces = Reader[str, None]

_PLAIN = re.compile(r'[^"\\\x00-\x1f]*')
_WORD = re.compile(r"[A-Za-z0-9+\-.]*")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_SURROGATE = re.compile("[\ud800-\udfff]")
_HEX = re.compile(r"[0-9A-Fa-f]{4}")
_WORDS = {"true": "true", "false": "false", "null": "null", "True": "true", "False": "false", "None": "null"}
_CLOSERS = {"{": "}", "[": "]"}
_MAX_DEPTH = 64
_MAX_WORD = 400  # characters of a number


def escaped(text: str) -> str:
    """A text as the inside of a JSON string."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def value(text: GrowingText) -> Pieces:
    """Passes on one JSON value, spaced as `json.dumps` does."""
    open_brackets: list[str] = []
    comma = ""  # owed before the next element
    while True:
        yield from text.skip_space()
        start = yield from text.peek(1)
        if open_brackets and start == _CLOSERS[open_brackets[-1]]:
            text.at += 1
            open_brackets.pop()
            yield start
        else:
            if open_brackets and open_brackets[-1] == "{":
                yield comma
                yield from key(text)
                comma = ""
                start = yield from text.peek(1)
            if start in _CLOSERS:
                text.at += 1
                if len(open_brackets) == _MAX_DEPTH:
                    raise Unreadable("too deep")
                open_brackets.append(start)
                yield comma + start
                comma = ""
                continue
            yield comma
            yield from _scalar(text, start)
        if not open_brackets:
            return
        comma = yield from _comma(text, _CLOSERS[open_brackets[-1]])


def _comma(text: GrowingText, closer: str) -> Wait[str]:
    """Reads the comma after an element; none is needed before the closing bracket."""
    yield from text.skip_space()
    found = yield from text.next_is(",", closer)
    if not found:
        raise Unreadable("expected a comma")
    if found == closer:
        return ""
    text.at += 1
    return ", "


def key(text: GrowingText) -> Pieces:
    """A key of an object and the colon after it."""
    if (yield from text.peek(1)) != '"':
        raise Unreadable("expected a key")
    text.at += 1
    yield '"'
    yield from string_rest(text)
    yield from text.skip_space()
    yield from text.expect(":")
    yield from text.skip_space()
    yield ": "


def _scalar(text: GrowingText, start: str) -> Pieces:
    if start == '"':
        text.at += 1
        yield '"'
        yield from string_rest(text)
        return
    word = yield from text.run(_WORD, _MAX_WORD)
    if _NUMBER.fullmatch(word):
        yield word
    elif word in _WORDS:
        yield _WORDS[word]
    else:
        raise Unreadable("expected a value")


def string_rest(text: GrowingText) -> Pieces:
    """The inside of a string, whose quote was read, and the quote that ends it."""
    while True:
        character = yield from text.peek(1)
        match character:
            case '"':
                text.at += 1
                yield '"'
                return
            case "\\":
                yield (yield from _escape(text))
            case "":
                raise Unreadable("the text ended")
            case _ if character < " ":
                text.at += 1
                yield escaped(character)
            case _:
                yield text.arrived(_PLAIN)


def _escape(text: GrowingText) -> Wait[str]:
    """A backslash and what belongs to it. One that escapes nothing stands for itself."""
    pair = yield from text.peek(2)
    if len(pair) < 2:
        raise Unreadable("the text ended")
    if pair == "\\u":
        code = yield from text.peek(6)
        if _HEX.fullmatch(code[2:]):
            text.at += 6
            return code
    elif pair[1] in '"\\/bfnrt':
        text.at += 2
        return pair
    elif pair[1] == "'":
        text.at += 2
        return "'"
    text.at += 1
    return "\\\\"


def collected(pieces: Pieces) -> Wait[str]:
    """All pieces as one text."""
    whole: list[str] = []
    for piece in pieces:
        if piece is None:
            yield None
        else:
            whole.append(piece)
    return "".join(whole)


def string(text: GrowingText) -> Wait[str]:
    """What a JSON string stands for."""
    yield from text.expect('"')
    held: str = json.loads('"' + (yield from collected(string_rest(text))))
    return _SURROGATE.sub("\ufffd", held)


def written(held: object) -> str:
    """A value as JSON. ValueError or TypeError for what JSON cannot say."""
    text = json.dumps(held, ensure_ascii=False, allow_nan=False)
    return json.dumps(held) if _SURROGATE.search(text) else text


def as_object(text: str) -> str:
    """The object that a JSON text holds, rewritten. Unreadable if it holds none."""
    try:
        held: object = json.loads(text)
        if isinstance(held, dict):
            return written(cast("dict[str, object]", held))
    except (ValueError, RecursionError):
        pass
    raise Unreadable("not an object")
