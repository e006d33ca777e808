"""How models mark their reasoning, by name, and which way a chat template knows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum


@dataclass(frozen=True, slots=True)
class ReasoningFormat:
    """Reasoning stands between two markers, before the answer."""

    opener: str
    closer: str
    special: tuple[str, ...]  # the parts of the markers that some tokenizers keep as control tokens


def _pair(opener: str, closer: str) -> ReasoningFormat:
    return ReasoningFormat(opener, closer, (opener, closer))


_FORMATS: Mapping[str, ReasoningFormat] = {
    "think": _pair("<think>", "</think>"),
    "seed": _pair("<seed:think>", "</seed:think>"),
    "mistral": _pair("[THINK]", "[/THINK]"),
    "gemma": ReasoningFormat("<|channel>thought", "<channel|>", ("<|channel>", "<channel|>")),
}


class Begin(Enum):
    """Where an answer begins, as its prompt leaves it."""

    ANEW = "anew"  # with reasoning or without
    INSIDE = "inside"  # in the reasoning, which the prompt has opened
    CLOSED = "closed"  # in the answer proper: the prompt has ended the reasoning
    AFTER = "after"  # in the answer proper, a part of which stands in the prompt


def detect(template: str) -> ReasoningFormat | None:
    """The format whose markers a template contains."""
    return next((made for made in _FORMATS.values() if made.closer in template and _name(made) in template), None)


def _name(made: ReasoningFormat) -> str:
    """What a template surely says of the opener: templates put longer ones together from parts."""
    return made.special[0]


def begin_of(prompt: str, made: ReasoningFormat) -> Begin:
    """Where an answer to a rendered prompt begins. Only its very end counts: messages may quote markers."""
    end = prompt.rstrip()
    return Begin.INSIDE if end.endswith(made.opener) else Begin.CLOSED if end.endswith(made.closer) else Begin.ANEW


def begin_within(message: str, made: ReasoningFormat) -> Begin:
    """Where an answer begins that goes on with a message of the assistant."""
    opened = message.rfind(made.opener)
    return Begin.INSIDE if opened >= 0 and made.closer not in message[opened:] else Begin.AFTER
