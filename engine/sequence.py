"""A sequence as the scheduler sees it, and the rows a step gives to each: ids and positions, no text, no tensors."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from .kv_cache import Holding
from .prefix_index import Node


class Sequence:
    """Tokens of one request and how many of them the cache covers.

    In a running sequence `len(tokens) - num_computed` tokens are still to be fed: one while it decodes, more while it
    prefills (a prompt, or everything so far after a preemption).
    """

    __slots__ = (
        "adopts",
        "cached_tokens",
        "draft_window",
        "holding",
        "max_length",
        "num_computed",
        "num_prompt",
        "planned_end",
        "planned_step",
        "priority",
        "rank",
        "running",
        "scores_prompt",
        "tokens",
        "waiting_on",
    )

    def __init__(
        self,
        prompt_ids: SequenceOf[int],
        max_tokens: int,
        holding: Holding,
        *,
        priority: int = 0,
        arrival: int = 0,
        scores_prompt: bool = False,
        adopts: bool = True,
    ) -> None:
        self.tokens = list(prompt_ids)
        self.num_prompt = len(prompt_ids)
        self.max_length = self.num_prompt + max_tokens
        self.priority = priority
        self.rank = (priority, arrival)  # who runs first, who is preempted last
        self.holding = holding
        self.num_computed = 0  # positions that the cache covers for good
        self.cached_tokens: int | None = None  # of the prompt, adopted at first admission
        self.scores_prompt = scores_prompt  # every prompt row wants logits; nothing is adopted
        self.adopts = adopts  # may begin with cached blocks: nobody needs the rows themselves
        self.draft_window = 0  # K: drafts that the speculation loop would like to verify
        self.running = False
        self.waiting_on: Node | None = None  # a block that another sequence is computing
        self.planned_step = -1
        self.planned_end = 0  # positions that must have blocks

    @property
    def generates(self) -> bool:
        """False if only the prompt is evaluated."""
        return self.max_length > self.num_prompt


S = TypeVar("S", bound=Sequence)


class Rows(NamedTuple, Generic[S]):
    """Rows of one sequence in a step: tokens[start : start + num_rows], then up to `window` drafts.

    The last `num_logits` of the `num_rows` rows want logits; so does every draft.
    """

    sequence: S
    start: int
    num_rows: int
    num_logits: int
    window: int = 0

    @property
    def draws(self) -> bool:
        """The step reaches the sequence's last token, so its next one can be drawn."""
        return self.start + self.num_rows == len(self.sequence.tokens)


@dataclass(frozen=True, slots=True)
class Plan(Generic[S]):
    """One step: which rows run. Blocks for all of them, drafts included, are reserved."""

    entries: list[Rows[S]]
    num_prefill_rows: int
    num_decodes: int

    @property
    def kind(self) -> str:
        """What the step's time is booked under."""
        if not self.num_prefill_rows:
            return "decode"
        return "mixed" if self.num_decodes else "prefill"
