"""Calls as Qwen3-Coder, Qwen3.5 and Nemotron 3 write them:

    <tool_call>
    <function=NAME>
    <parameter=KEY>
    VALUE
    </parameter>
    </function>
    </tool_call>

Values are bare text. The outer marker is left out at times, and `</parameter>` inside a value is text unless another
parameter or the function's end follows.
"""

from __future__ import annotations

from ..growing_text import GrowingText, Stops
from . import json_calls
from .definitions import Tool, ToolSet
from .dialect import END, Arguments, Calls, Name
from .grammar import Grammar, MarkedArguments, Spell, marked_calls, quoted
from .typed_values import member, up_to

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_FUNCTION, _FUNCTION_END = "<function=", "</function>"
_PARAMETER, _PARAMETER_END = "<parameter=", "</parameter>"
_AFTER_VALUE = (_PARAMETER, _FUNCTION_END, _CLOSE)
_NAME_END = Stops(">", "\n", "<")
_MAX_NAME = 256


class QwenCoder:
    """Functions and parameters in angle brackets."""

    openers = (_OPEN, _FUNCTION)
    first_openers = ()
    special = (_OPEN, _CLOSE)
    id_length = None

    def calls(self, text: GrowingText, opener: str, tools: ToolSet) -> Calls:
        """See Dialect."""
        if opener == _OPEN:
            yield from text.skip_space()
            if (yield from text.peek(1)) in ("{", "["):
                yield from json_calls.calls(text)
                yield from text.skip_past(_CLOSE)
                return
            yield from text.expect(_FUNCTION)
        while True:
            name = (yield from text.until(_NAME_END, _MAX_NAME)).strip()
            yield from text.expect(">")
            yield Name(name)
            yield from _parameters(text, tools.get(name))
            yield END
            if not (yield from text.skip_past(_FUNCTION)):
                break
        yield from text.skip_past(_CLOSE)

    def grammar(self, tools: ToolSet, parallel: bool, spell: Spell) -> Grammar:
        """See Dialect."""
        arguments = MarkedArguments(f"{_PARAMETER}{{key}}>\n", f"\n{_PARAMETER_END}\n", self.special)
        frame = (f"\n{_FUNCTION}{{name}}>\n", f"{_FUNCTION_END}\n{_CLOSE}")
        call, rules = marked_calls(tools, spell, arguments, frame)
        return Grammar(spell(_OPEN), call, rules, quoted("\n") if parallel else None)


def _parameters(text: GrowingText, tool: Tool) -> Calls:
    yield Arguments("{")
    first = True
    while not (yield from text.skip_past(_FUNCTION_END)):
        yield from text.skip_space()
        if (yield from text.next_is(_CLOSE)):
            break
        yield from text.expect(_PARAMETER)
        key = (yield from text.until(_NAME_END, _MAX_NAME)).strip()
        yield from text.expect(">")
        value = up_to(text, _PARAMETER_END, _AFTER_VALUE, trim="\n")
        for piece in member(key, value, tool.types(key), first):
            yield None if piece is None else Arguments(piece)
        first = False
    yield Arguments("}")
