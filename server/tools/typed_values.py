"""Arguments that a dialect writes as bare text: what they are is for the tool's schema to say."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Sequence
from typing import cast

from ..growing_text import GrowingText, Stops, Unreadable, Wait
from .json_text import Pieces, collected, escaped, written

_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_WHOLE = re.compile(r"(-?(?:0|[1-9][0-9]*))(?:\.0+)?")
_STRING = frozenset({"string"})
_MAX_LITERAL = 1 << 16  # characters that Python's own parser is given


def member(key: str, value: Pieces, types: frozenset[str], first: bool) -> Pieces:
    """A key and its value in an open object. Text that is surely a string passes through while it comes."""
    yield ("" if first else ", ") + json.dumps(key, ensure_ascii=False) + ": "
    if types == _STRING:
        yield '"'
        for piece in value:
            yield None if piece is None else escaped(piece)
        yield '"'
    else:
        yield as_json((yield from collected(value)), types)


def up_to(text: GrowingText, closer: str, then: Sequence[str], trim: str = "") -> Pieces:
    """The text before a closer, which counts only where one of `then` follows or nothing does: others are quoted.

    `trim` is left away once at both ends. The closer is read, what follows it is not.
    """
    if trim:
        yield from text.take(trim)
    stops = Stops(trim + closer, closer) if trim else Stops(closer)
    while True:
        piece, found = text.before(stops)
        yield piece
        if found:
            start = text.at
            text.at += len(found)
            if (yield from _follows(text, then)):
                return
            text.at = start + 1
            yield found[0]
        elif text.ended:
            raise Unreadable("the text ended")
        else:
            yield None


def _follows(text: GrowingText, then: Sequence[str]) -> Wait[bool]:
    """Whether, after white space, one of the literals or the end of the text is next. Reads nothing."""
    start = text.at
    yield from text.skip_space()
    found = (yield from text.next_is(*then)) or not (yield from text.peek(1))
    text.at = start
    return bool(found)


def as_json(text: str, types: frozenset[str]) -> str:
    """The JSON text of a value of one of these types (empty: any). What fits none of them stays a string."""
    bare = text.strip()
    if bare in ("null", "None") and (not types or "null" in types):
        return "null"
    if bare.lower() in ("true", "false") and (not types or "boolean" in types):
        return bare.lower()
    if (not types or "number" in types) and _NUMBER.fullmatch(bare):
        return bare
    if "integer" in types and (match := _WHOLE.fullmatch(bare)):
        return match[1]
    if not types or types & {"object", "array"}:
        held = _container(bare)
        if held is not None and (not types or held[0] in types):
            return held[1]
    return json.dumps(text, ensure_ascii=False)


def _container(text: str) -> tuple[str, str] | None:
    """The type of an object or array, given as JSON or as Python writes it, and its JSON."""
    if text[:1] not in ("{", "["):
        return None
    for parse in (json.loads, _python):
        try:
            held: object = parse(text)
            if isinstance(held, dict | list):
                return "object" if isinstance(held, dict) else "array", written(cast("object", held))
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            continue
    return None


def _python(text: str) -> object:
    if len(text) > _MAX_LITERAL:
        raise ValueError("too long for Python's parser")
    return ast.literal_eval(text)
