"""Calls as Gemma 4 writes them, `<|tool_call>call:NAME{key:<|"|>text<|"|>,other:3}<tool_call|>`, and FunctionGemma with
markers of its own. Keys are bare, strings stand between quote tokens without escapes, the rest is as in JSON."""

from __future__ import annotations

import json
import re

from ..growing_text import GrowingText, Stops, Unreadable, Wait
from . import json_text
from .definitions import ToolSet
from .dialect import END, Arguments, Calls, Name
from .grammar import Grammar, Spell, choice, quoted
from .json_text import Pieces, escaped
from .notation_grammar import Notation, ValueRules
from .typed_values import as_json

_MARKERS = {"<|tool_call>": "<tool_call|>", "<start_function_call>": "<end_function_call>"}
_QUOTES = ('<|"|>', "<escape>")
_NAME_END, _KEY_END = Stops("{"), Stops(":")
_WORD = re.compile(r"[^,{}\[\]\s]*")
_MAX_NAME = 256
_MAX_WORD = 400
_MAX_DEPTH = 32


class Gemma:
    """Gemma 4."""

    openers = tuple(_MARKERS)
    first_openers = ()
    special = (*_MARKERS, *_MARKERS.values(), *_QUOTES)
    id_length = None

    _opener, _quote = "<|tool_call>", _QUOTES[0]

    def calls(self, text: GrowingText, opener: str, tools: ToolSet) -> Calls:
        """See Dialect."""
        yield from text.skip_space()
        yield from text.expect("call:")
        name = (yield from text.until(_NAME_END, _MAX_NAME)).strip()
        yield from text.expect("{")
        yield Name(name)
        for piece in _object(text, 0):
            yield None if piece is None else Arguments(piece)
        yield END
        yield from text.skip_past(_MARKERS[opener])

    def grammar(self, tools: ToolSet, parallel: bool, spell: Spell) -> Grammar:
        """See Dialect."""
        quote = spell(self._quote)
        values = ValueRules(Notation(key="{key}:", argument="{key}:", separator=",", quote=quote))
        calls: list[str] = []
        for tool in tools.tools:
            calls.append(f'({quoted(f"call:{tool.name}{{")} {values.arguments(tool)} "}}")')
        rules = [f"call: {choice(calls)}", *values.rules]
        return Grammar(spell(self._opener), f"call {spell(_MARKERS[self._opener])}", rules, "" if parallel else None)


class FunctionGemma(Gemma):
    """FunctionGemma."""

    _opener, _quote = "<start_function_call>", _QUOTES[1]


def _object(text: GrowingText, depth: int) -> Pieces:
    """An object, whose bracket was read."""
    yield "{"
    first = True
    while True:
        yield from text.skip_space()
        if (yield from text.take("}")):
            break
        yield ("" if first else ", ") + json.dumps((yield from _key(text)), ensure_ascii=False) + ": "
        first = False
        yield from _value(text, depth + 1)
        yield from _comma(text, "}")
    yield "}"


def _array(text: GrowingText, depth: int) -> Pieces:
    yield "["
    first = True
    while True:
        yield from text.skip_space()
        if (yield from text.take("]")):
            break
        if not first:
            yield ", "
        first = False
        yield from _value(text, depth + 1)
        yield from _comma(text, "]")
    yield "]"


def _comma(text: GrowingText, closer: str) -> Wait[None]:
    yield from text.skip_space()
    if not (yield from text.take(",")) and not (yield from text.next_is(closer)):
        raise Unreadable("expected a comma")


def _key(text: GrowingText) -> Wait[str]:
    quote = yield from text.take(*_QUOTES)
    if quote:
        key = yield from text.until(Stops(quote), _MAX_NAME)
        yield from text.expect(quote)
    elif (yield from text.next_is('"')):
        key = yield from json_text.string(text)
    else:
        key = (yield from text.until(_KEY_END, _MAX_NAME)).strip()
    yield from text.skip_space()
    yield from text.expect(":")
    return key


def _value(text: GrowingText, depth: int) -> Pieces:
    if depth > _MAX_DEPTH:
        raise Unreadable("too deep")
    yield from text.skip_space()
    start = yield from text.take(*_QUOTES, '"', "{", "[")
    if start in _QUOTES:
        yield '"'
        yield from _text(text, start)
        yield '"'
    elif start == '"':
        yield '"'
        yield from json_text.string_rest(text)
    elif start == "{":
        yield from _object(text, depth)
    elif start == "[":
        yield from _array(text, depth)
    else:
        word = yield from text.run(_WORD, _MAX_WORD)
        if not word:
            raise Unreadable("expected a value")
        yield as_json(word, frozenset())


def _text(text: GrowingText, quote: str) -> Pieces:
    """A string up to its quote token, which is read."""
    stops = Stops(quote)
    while True:
        piece, found = text.before(stops)
        yield escaped(piece)
        if found:
            text.at += len(found)
            return
        if text.ended:
            raise Unreadable("the text ended")
        yield None
