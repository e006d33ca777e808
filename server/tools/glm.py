"""Calls as GLM 4.5 and later write them, bare strings and JSON for everything else:

<tool_call>NAME
<arg_key>KEY</arg_key>
<arg_value>VALUE</arg_value>
</tool_call>
"""

from __future__ import annotations

from ..growing_text import GrowingText, Stops
from .definitions import Tool, ToolSet
from .dialect import END, Arguments, Calls, Name
from .grammar import Grammar, MarkedArguments, Spell, marked_calls, quoted
from .typed_values import member, up_to

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_KEY, _KEY_END = "<arg_key>", "</arg_key>"
_VALUE, _VALUE_END = "<arg_value>", "</arg_value>"
_NAME_END = Stops("\n", _KEY, _CLOSE)
_KEY_STOP = Stops(_KEY_END)
_MAX_NAME = 256


class Glm:
    """GLM 4.5 and 4.6: a line for each key and value."""

    _line = "\n"

    openers = (_OPEN,)
    first_openers = ()
    special = (_OPEN, _CLOSE, _KEY, _KEY_END, _VALUE, _VALUE_END)
    id_length = None

    def calls(self, text: GrowingText, opener: str, tools: ToolSet) -> Calls:
        """See Dialect."""
        yield from text.skip_space()
        name = (yield from text.until(_NAME_END, _MAX_NAME)).strip()
        yield Name(name)
        yield from _arguments(text, tools.get(name))
        yield END

    def grammar(self, tools: ToolSet, parallel: bool, spell: Spell) -> Grammar:
        """See Dialect."""
        line = self._line
        arguments = MarkedArguments(f"{_KEY}{{key}}{_KEY_END}{line}{_VALUE}", _VALUE_END + line, self.special)
        call, rules = marked_calls(tools, spell, arguments, ("{name}" + line, _CLOSE))
        return Grammar(spell(_OPEN), call, rules, quoted(line) if parallel else None)


class GlmCompact(Glm):
    """GLM 4.7: everything in one line."""

    _line = ""


def _arguments(text: GrowingText, tool: Tool) -> Calls:
    yield Arguments("{")
    first = True
    while not (yield from text.skip_past(_CLOSE)):
        yield from text.skip_space()
        yield from text.expect(_KEY)
        key = (yield from text.until(_KEY_STOP, _MAX_NAME)).strip()
        yield from text.expect(_KEY_END)
        yield from text.skip_space()
        yield from text.expect(_VALUE)
        for piece in member(key, up_to(text, _VALUE_END, (_KEY, _CLOSE)), tool.types(key), first):
            yield None if piece is None else Arguments(piece)
        first = False
    yield Arguments("}")
