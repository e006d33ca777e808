"""Calls written as JSON objects with a name and arguments, alone or in a list. Shared by several dialects."""

from __future__ import annotations

from ..growing_text import GrowingText, Unreadable, Wait
from . import json_text
from .dialect import END, Arguments, Calls, Name

_NAMES = frozenset({"name", "tool", "tool_name"})
_ARGUMENTS = frozenset({"arguments", "parameters", "args"})
_OTHERS = frozenset({"id", "type", "index"})


def calls(text: GrowingText) -> Calls:
    """One object, or a list of them. What follows the last bracket is not read."""
    yield from text.skip_space()
    if not (yield from text.take("[")):
        yield from one_call(text)
        return
    while True:
        yield from text.skip_space()
        yield from one_call(text)
        yield from text.skip_space()
        if not (yield from text.take(",")):
            break
    yield from text.expect("]")


def one_call(text: GrowingText) -> Calls:
    """One object. Its keys may come in any order; arguments are passed on once the name is known.

    The templates of Qwen 2.5 show calls in doubled braces, which models copy; so both kinds are read.
    """
    state = _Call()
    doubled = yield from text.next_is("{{")
    text.at += len(doubled) // 2
    yield from _object(text, state)
    if doubled:
        yield from text.take("}")
    if state.name is None:
        raise Unreadable("a call without a name")
    if not state.has_arguments:
        yield Arguments("{}")
    yield END


class _Call:
    """What is known of a call."""

    def __init__(self) -> None:
        self.name: str | None = None
        self.has_arguments = False
        self.waiting = ""  # arguments that came before the name


def _object(text: GrowingText, state: _Call, nested: bool = False) -> Calls:
    yield from text.expect("{")
    yield from text.skip_space()
    if (yield from text.take("}")):
        return
    while True:
        key = yield from json_text.string(text)
        yield from text.skip_space()
        yield from text.expect(":")
        yield from text.skip_space()
        yield from _member(text, key, state, nested)
        yield from text.skip_space()
        if not (yield from text.take(",")):
            break
        yield from text.skip_space()
    yield from text.expect("}")


def _member(text: GrowingText, key: str, state: _Call, nested: bool) -> Calls:
    start = yield from text.peek(1)
    if key == "function" and start == "{" and not nested:
        yield from _object(text, state, nested=True)
    elif (key in _NAMES or key == "function") and start == '"' and state.name is None:
        yield from _name(text, state)
    elif key in _ARGUMENTS and not state.has_arguments:
        state.has_arguments = True
        yield from _arguments(text, start, state)
    elif key in _OTHERS:
        yield from json_text.collected(json_text.value(text))
    else:
        raise Unreadable("not a call")


def _name(text: GrowingText, state: _Call) -> Calls:
    name = state.name = yield from json_text.string(text)
    yield Name(name)
    if state.waiting:
        yield Arguments(state.waiting)


def _arguments(text: GrowingText, start: str, state: _Call) -> Calls:
    """An object is passed on as it comes; one inside a string, or null for none, once it is whole."""
    if start == "{" and state.name is not None:
        for piece in json_text.value(text):
            yield None if piece is None else Arguments(piece)
        return
    written = yield from _whole_arguments(text, start)
    if state.name is None:
        state.waiting = written
    else:
        yield Arguments(written)


def _whole_arguments(text: GrowingText, start: str) -> Wait[str]:
    if start == '"':
        return json_text.as_object((yield from json_text.string(text)) or "{}")
    written = yield from json_text.collected(json_text.value(text))
    return "{}" if written == "null" else json_text.as_object(written)
