"""What a dialect of tool calls is: how a model writes its calls, and how it is made to write nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from ..growing_text import GrowingText, Reader
from .definitions import ToolSet
from .grammar import Grammar, Spell


@dataclass(frozen=True, slots=True)
class Name:
    """A call begins: the name of its tool."""

    text: str


@dataclass(frozen=True, slots=True)
class Arguments:
    """A piece of the call's arguments, as JSON."""

    text: str


@dataclass(frozen=True, slots=True)
class End:
    """The call is complete."""


Part = Name | Arguments | End
Calls = Reader[Part, None]

END = End()


class Dialect(Protocol):
    """How a model writes tool calls."""

    openers: Sequence[str]  # each begins a block of calls, wherever it stands
    first_openers: Sequence[str]  # each begins a block only where the answer begins; its calls have to name known tools
    special: Sequence[str]  # of the markers, those that some tokenizers keep as control tokens
    id_length: int | None  # letters and digits of a call's id, where the model's template insists on a number

    def calls(self, text: GrowingText, opener: str, tools: ToolSet) -> Calls:
        """Reads a block from behind its opener: per call a Name, Arguments and an End. Unreadable if it is none."""
        ...

    def grammar(self, tools: ToolSet, parallel: bool, spell: Spell) -> Grammar:
        """All blocks that call one of `tools` or, if `parallel`, several, with arguments that fit the schemas."""
        ...
