"""Calls as Mistral's models write them: `[TOOL_CALLS]` before a JSON list of calls (up to tokenizer version 7), or
before each `NAME[ARGS]{...}` (from version 11 on, at times with `[CALL_ID]...` after the name).

Their templates insist on ids of nine letters and digits.
"""

from __future__ import annotations

from ..growing_text import GrowingText, Stops, Unreadable
from . import json_calls, json_text
from .definitions import ToolSet
from .dialect import END, Arguments, Calls, Name
from .grammar import Grammar, Spell, choice, json_arguments, json_list, quoted

_OPEN, _ID, _ARGUMENTS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"
_NAME_END = Stops(_ID, _ARGUMENTS, "{")
_ID_END = Stops(_ARGUMENTS, "{")
_MAX_NAME = 256


class _Mistral:
    """What all versions share: the reader takes either form."""

    openers = (_OPEN,)
    first_openers = ()
    special = (_OPEN, _ID, _ARGUMENTS)
    id_length = 9

    def calls(self, text: GrowingText, opener: str, tools: ToolSet) -> Calls:
        """See Dialect."""
        yield from text.skip_space()
        if (yield from text.peek(1)) in ("[", "{"):
            yield from json_calls.calls(text)
            return
        name = (yield from text.until(_NAME_END, _MAX_NAME)).strip()
        yield Name(name)
        if (yield from text.take(_ID)):
            yield from text.until(_ID_END, _MAX_NAME)
        yield from text.take(_ARGUMENTS)
        yield from text.skip_space()
        if not (yield from text.next_is("{")):
            raise Unreadable("expected an object")
        for piece in json_text.value(text):
            yield None if piece is None else Arguments(piece)
        yield END


class MistralList(_Mistral):
    """Up to tokenizer version 7."""

    def grammar(self, tools: ToolSet, parallel: bool, spell: Spell) -> Grammar:
        """See Dialect."""
        calls, rules = json_list(tools, parallel)
        return Grammar(spell(_OPEN), f'" "? {calls}', rules, None)


class MistralNamed(_Mistral):
    """From tokenizer version 11 on."""

    def grammar(self, tools: ToolSet, parallel: bool, spell: Spell) -> Grammar:
        """See Dialect."""
        rules = [f"arguments_{index}: {json_arguments(tool)}" for index, tool in enumerate(tools.tools)]
        calls = [
            f"({quoted(tool.name)} {spell(_ARGUMENTS)} arguments_{index})" for index, tool in enumerate(tools.tools)
        ]
        return Grammar(spell(_OPEN), choice(calls), rules, "" if parallel else None)
