"""Calls as Llama 3.2 and 4, LFM2 and others write them: a Python list of function calls with named arguments,
`[f(a=1, b="x"), g()]`, bare as the whole answer or between markers."""

from __future__ import annotations

import ast
import re

from ..growing_text import GrowingText, Unreadable, Wait
from .definitions import ToolSet
from .dialect import END, Arguments, Calls, Name
from .grammar import Grammar, Spell, choice, quoted
from .json_text import Pieces, escaped
from .notation_grammar import PYTHON, ValueRules

_MARKERS = {
    "<|tool_call_start|>": "<|tool_call_end|>",
    "<|python_start|>": "<|python_end|>",
    "<|python_tag|>": "",
}
_NAME = re.compile(r"[\w.\-]*")
_WORD = re.compile(r"[\w+\-.]*")
_CONSTANTS = {"True": "true", "False": "false", "None": "null", "true": "true", "false": "false", "null": "null"}
_NUMBER = re.compile(r"[+-]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")
_PLAIN = re.compile(r"[^'\"\\\x00-\x1f]*")
_CODES = {"x": 2, "u": 4, "U": 8}
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "0": "\0", "a": "\a", "v": "\v", "\n": ""}
_CLOSERS = {"[": "]", "{": "}", "(": ")"}
_MAX_NAME = 256
_MAX_DEPTH = 32


class _Pythonic:
    """What all variants share."""

    openers = tuple(_MARKERS)
    first_openers = ("[",)
    special = (*_MARKERS, *filter(None, _MARKERS.values()))
    id_length = None

    def calls(self, text: GrowingText, opener: str, tools: ToolSet) -> Calls:
        """See Dialect."""
        if opener != "[":
            yield from text.skip_space()
            yield from text.expect("[")
        while True:
            yield from text.skip_space()
            yield from _call(text)
            yield from text.skip_space()
            if not (yield from text.take(",")):
                break
        yield from text.expect("]")
        closer = _MARKERS.get(opener)
        if closer:
            yield from text.skip_past(closer)

    def _calls_rule(self, tools: ToolSet, parallel: bool) -> tuple[str, list[str]]:
        values = ValueRules(PYTHON)
        calls: list[str] = []
        for tool in tools.tools:
            calls.append(f'({quoted(tool.name + "(")} {values.arguments(tool)} ")")')
        again = ' (", " call)*' if parallel else ""
        return f'"[" call{again} "]"', [f"call: {choice(calls)}", *values.rules]


class Pythonic(_Pythonic):
    """Bare: the list is the whole answer."""

    def grammar(self, tools: ToolSet, parallel: bool, spell: Spell) -> Grammar:
        """See Dialect."""
        calls, rules = self._calls_rule(tools, parallel)
        return Grammar("", calls, rules, None)


class Lfm2(_Pythonic):
    """Between LFM2's markers."""

    _opener = "<|tool_call_start|>"

    def grammar(self, tools: ToolSet, parallel: bool, spell: Spell) -> Grammar:
        """See Dialect."""
        calls, rules = self._calls_rule(tools, parallel)
        closer = _MARKERS[self._opener]
        return Grammar(spell(self._opener), f"{calls} {spell(closer) if closer else ''}", rules, None)


class Llama4(Lfm2):
    """Between Llama 4's markers."""

    _opener = "<|python_start|>"


def _call(text: GrowingText) -> Calls:
    name = yield from text.run(_NAME, _MAX_NAME)
    yield from text.skip_space()
    yield from text.expect("(")
    yield Name(name)
    yield Arguments("{")
    first = True
    while True:
        yield from text.skip_space()
        if (yield from text.take(")")):
            break
        key = yield from text.run(_NAME, _MAX_NAME)
        yield from text.skip_space()
        if not key:
            raise Unreadable("expected a named argument")
        yield from text.expect("=")
        yield Arguments(("" if first else ", ") + f'"{key}": ')
        for piece in value(text):
            yield None if piece is None else Arguments(piece)
        first = False
        yield from text.skip_space()
        if not (yield from text.take(",")) and not (yield from text.next_is(")")):
            raise Unreadable("expected a comma")
    yield Arguments("}")
    yield END


def value(text: GrowingText, depth: int = 0) -> Pieces:
    """A Python literal as JSON."""
    yield from text.skip_space()
    start = yield from text.peek(1)
    if start and start in "\"'":
        yield '"'
        yield from _string(text)
        yield '"'
    elif start and start in _CLOSERS:
        if depth == _MAX_DEPTH:
            raise Unreadable("too deep")
        text.at += 1
        yield from _container(text, start, depth)
    else:
        yield _constant((yield from text.run(_WORD, _MAX_NAME)))


def _constant(word: str) -> str:
    if word in _CONSTANTS:
        return _CONSTANTS[word]
    if _NUMBER.fullmatch(word):
        try:
            number = ast.literal_eval(word)
        except (SyntaxError, ValueError):
            raise Unreadable("not a number") from None
        if abs(number) != float("inf"):
            return repr(number)
    raise Unreadable("expected a value")


def _container(text: GrowingText, opener: str, depth: int) -> Pieces:
    """A list, tuple or dictionary, whose bracket was read."""
    closer = _CLOSERS[opener]
    yield "{" if opener == "{" else "["
    first = True
    while True:
        yield from text.skip_space()
        if (yield from text.take(closer)):
            break
        if not first:
            yield ", "
        first = False
        if opener == "{":
            if (yield from text.peek(1)) not in ('"', "'"):
                raise Unreadable("expected a key")
            yield from value(text, depth + 1)
            yield from text.skip_space()
            yield from text.expect(":")
            yield ": "
        yield from value(text, depth + 1)
        yield from text.skip_space()
        if not (yield from text.take(",")) and not (yield from text.next_is(closer)):
            raise Unreadable("expected a comma")
    yield "}" if opener == "{" else "]"


def _string(text: GrowingText) -> Pieces:
    """A string with its quotes, single or triple, as the inside of a JSON string. Adjacent strings are not joined."""
    quote = yield from text.peek(1)
    fence = (yield from text.take(quote * 3)) or (yield from text.take(quote))
    if len(fence) == 1 and (yield from text.take(quote)):
        return  # empty
    while True:
        yield escaped(text.arrived(_PLAIN))
        character = yield from text.peek(1)
        if not character:
            raise Unreadable("the text ended")
        if (yield from text.take(fence)):
            return
        if character == "\\":
            yield escaped((yield from _escape(text)))
        else:
            text.at += 1
            yield escaped(character)


def _escape(text: GrowingText) -> Wait[str]:
    """What a backslash and the characters after it stand for; as in Python, one that escapes nothing for itself."""
    pair = yield from text.peek(2)
    kind = pair[1:]
    if kind in _CODES:
        code = yield from text.peek(2 + _CODES[kind])
        digits = code[2:]
        if len(digits) == _CODES[kind] and re.fullmatch("[0-9A-Fa-f]+", digits):
            number = int(digits, 16)
            text.at += len(code)
            return chr(number) if number < 0x110000 and not 0xD800 <= number < 0xE000 else "\ufffd"
    elif kind in _ESCAPES or (kind and kind in "\"'\\"):
        text.at += 2
        return _ESCAPES.get(kind, kind)
    text.at += 1
    return "\\"
