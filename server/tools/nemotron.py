"""Calls as Nemotron Nano 2 and Llama-Nemotron write them: `<TOOLCALL>[{"name": ..., "arguments": {...}}]</TOOLCALL>`.

(Nemotron 3 writes the Qwen3-Coder dialect.)
"""

from __future__ import annotations

from ..growing_text import GrowingText
from . import json_calls
from .definitions import ToolSet
from .dialect import Calls
from .grammar import Grammar, Spell, json_list

_OPEN, _CLOSE = "<TOOLCALL>", "</TOOLCALL>"


class Nemotron:
    """A list of JSON objects between markers."""

    openers = (_OPEN,)
    first_openers = ()
    special = (_OPEN, _CLOSE)
    id_length = None

    def calls(self, text: GrowingText, opener: str, tools: ToolSet) -> Calls:
        """See Dialect."""
        yield from json_calls.calls(text)
        yield from text.skip_past(_CLOSE)

    def grammar(self, tools: ToolSet, parallel: bool, spell: Spell) -> Grammar:
        """See Dialect."""
        calls, rules = json_list(tools, parallel)
        return Grammar(spell(_OPEN), f"{calls} {spell(_CLOSE)}", rules, None)
