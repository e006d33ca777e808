"""One model with one sequence, stepped by hand: the real executor, cache and row arrays, without requests."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf

import numpy as np
from numpy.typing import NDArray

from ...kernels.errors import ConfigError
from ..config import EngineConfig
from ..kv_cache import Match
from ..resources import allocate
from ..sequence import Rows, Sequence
from .opened import OpenedModel


class Scratch:
    """`token_ids` as a sequence whose positions can be computed in any steps, and again: nothing is ever given back, so
    that a step may start at any position up to the first one not computed."""

    def __init__(
        self,
        opened: OpenedModel,
        token_ids: SequenceOf[int],
        *,
        spare: int = 0,
        chunk: int = 512,
    ) -> None:
        """`spare`: positions beyond the tokens, for drafts and for tokens appended later. Raises ConfigError where
        memory does not suffice."""
        if opened.model.program.recurrent is not None:
            raise ConfigError(
                f"{opened.model.config.name} has recurrent layers: it cannot go back to any position, as this needs"
            )
        length = len(token_ids) + spare
        config = EngineConfig(
            kv_type=opened.kv_type,
            context_length=length,
            max_running=1,
            prefill_chunk=chunk,
            prefix_cache=False,
            measure_cost=False,
        )
        self.resources = allocate(opened.model, opened.backend, config)
        self.chunk = chunk
        cache = self.resources.make_cache()
        self.sequence = Sequence(token_ids, spare, cache.holding(b""))
        cache.open(self.sequence.holding, Match([], None))
        if not cache.reserve(self.sequence.holding, length):
            raise ConfigError(
                f"the KV cache of {opened.model.config.name} cannot hold {length} positions without a gap"
            )

    def step(self, start: int, rows: int, *, logits: int, drafts: SequenceOf[int] = ()) -> NDArray[np.float32]:
        """Computes positions [start, start + rows) and drafts after them. Logits of the last `logits` rows and of every
        draft: a view [logits + drafts, vocabulary], valid until the next step."""
        self.resources.runner.forward([Rows(self.sequence, start, rows, logits)], [list(drafts)])
        return self.resources.runner.executor.logits()

    def prefill(self, stop: int) -> None:
        """Computes positions [0, stop) in chunks."""
        for start in range(0, stop, self.chunk):
            self.step(start, min(self.chunk, stop - start), logits=1)
