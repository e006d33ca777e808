"""Calls as Hermes and Qwen 2.5 and 3 write them: `<tool_call>` around `{"name": ..., "arguments": {...}}`.

Small models forget the markers. An answer that begins with such an object, bare or in a fence, is a call too if it
names a known tool, and so are bare ones behind it.
"""

from __future__ import annotations

from ..growing_text import GrowingText
from . import json_calls
from .definitions import ToolSet
from .dialect import Calls
from .grammar import Grammar, Spell, quoted
from .grammar import json_calls as json_grammar

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_FENCE = "```"
_CLOSERS = {_OPEN: _CLOSE, "<tools>": "</tools>", _FENCE: _FENCE, _FENCE + "json": _FENCE, _FENCE + "xml": _FENCE}


class Hermes:
    """JSON objects between markers."""

    openers = (_OPEN,)
    first_openers = ("{", "<tools>", _FENCE, _FENCE + "json", _FENCE + "xml")
    special = (_OPEN, _CLOSE)
    id_length = None

    def calls(self, text: GrowingText, opener: str, tools: ToolSet) -> Calls:
        """See Dialect."""
        if opener == "{":
            more = opener
            while more:
                text.at -= 1
                yield from json_calls.one_call(text)
                more = yield from text.skip_past("{")
            return
        if opener.startswith(_FENCE):
            inner = yield from text.skip_past(_OPEN)
            yield from json_calls.calls(text)
            if inner:
                yield from text.skip_past(_CLOSE)
        else:
            yield from json_calls.calls(text)
        yield from text.skip_past(_CLOSERS[opener])

    def grammar(self, tools: ToolSet, parallel: bool, spell: Spell) -> Grammar:
        """See Dialect."""
        call, rules = json_grammar(tools)
        line = quoted("\n")
        return Grammar(spell(_OPEN), f"{line} {call} {line} {spell(_CLOSE)}", rules, line if parallel else None)
