"""Calls as Llama 3.1 to 3.3 write them: `{"name": ..., "parameters": {...}}` as the whole answer, several joined by
`;`, at times behind `<|python_tag|>`."""

from __future__ import annotations

from ..growing_text import GrowingText
from . import json_calls
from .definitions import ToolSet
from .dialect import Calls
from .grammar import Grammar, Spell, quoted
from .grammar import json_calls as json_grammar

_TAG = "<|python_tag|>"


class Llama3Json:
    """Bare JSON objects."""

    openers = (_TAG,)
    first_openers = ("{", "[")
    special = (_TAG,)
    id_length = None

    def calls(self, text: GrowingText, opener: str, tools: ToolSet) -> Calls:
        """See Dialect."""
        if opener != _TAG:
            text.at -= len(opener)
        while True:
            yield from json_calls.calls(text)
            if not (yield from text.skip_past(";")):
                return

    def grammar(self, tools: ToolSet, parallel: bool, spell: Spell) -> Grammar:
        """See Dialect."""
        call, rules = json_grammar(tools, "parameters")
        return Grammar("", call, rules, quoted("; ") if parallel else None)
