"""Runs planned rows: makes the batch, steps the executor, draws. Decides nothing.

A batch is lists of Python's ints, which is what tokens are kept in: for the few rows of a decode, filling numpy arrays
takes longer than everything else here.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf

import numpy as np
from numpy.typing import NDArray

from ..kernels.backend import Backend, DrawRequest, Executor, StepBatch
from ..kernels.bell import NO_BELL
from ..kernels.sampling import Draw, DrawFault
from .sequence import Rows, S

NO_DRAFTS: tuple[SequenceOf[int], ...] = ()


class StepRunner:
    """One executor and its last step's rows."""

    def __init__(self, backend: Backend, executor: Executor) -> None:
        self.executor = executor
        self._backend = backend
        self.offsets = [0]  # first row of each entry of the last batch
        self.first_logits: list[int] = []  # first logits row of each

    def forward(
        self,
        entries: SequenceOf[Rows[S]],
        drafts: SequenceOf[SequenceOf[int]] = NO_DRAFTS,
        taps: tuple[str, ...] = (),
    ) -> list[int]:
        """Runs the rows, as `batch` takes them. Returns each entry's first logits row. Raises StepError; then nothing
        may be committed."""
        self.executor.step(self.batch(entries, drafts, taps))
        return self.first_logits

    def batch(
        self,
        entries: SequenceOf[Rows[S]],
        drafts: SequenceOf[SequenceOf[int]] = NO_DRAFTS,
        taps: tuple[str, ...] = (),
    ) -> StepBatch:
        """A step of these rows, each entry's followed by its drafts (one list per entry, or none at all). `offsets` and
        `first_logits` are then its own."""
        first_logits = self.first_logits = list[int]()
        token_ids: list[int] = []
        positions: list[int] = []
        offsets = self.offsets = [0]
        slots: list[int] = []
        logits_rows: list[int] = []
        row = 0
        for number, (sequence, start, count, num_logits, _) in enumerate(entries):
            stop = start + count
            if count == 1:
                token_ids.append(sequence.tokens[start])
            else:
                token_ids += sequence.tokens[start:stop]
            if drafts and drafts[number]:
                token_ids += drafts[number]
                num_drafts = len(drafts[number])
                stop += num_drafts
                num_logits += num_drafts
            positions += range(start, stop)
            row += stop - start
            offsets.append(row)
            slots.append(sequence.holding.slot)
            first_logits.append(len(logits_rows))
            logits_rows += range(row - num_logits, row)
        return StepBatch(token_ids, positions, offsets, slots, logits_rows, taps)

    def step(self, batch: StepBatch, requests: list[DrawRequest], bell: int = NO_BELL) -> list[list[Draw] | DrawFault]:
        """Rings the bell, runs a batch and draws from its logits, in one native call. Raises as `forward`."""
        return self._backend.step(self.executor, batch, requests, bell)

    def rows(self, name: str, number: int, count: int) -> NDArray[np.float32]:
        """[count, width]: the first rows of entry `number` in an output that the last step was asked for. A view."""
        first = self.offsets[number]
        return self.executor.output(name)[first : first + count]

    def draw(self, requests: SequenceOf[DrawRequest]) -> list[list[Draw] | DrawFault]:
        """Draws from the last step for all of them, in one native call."""
        return self._backend.draw(self.executor, requests)

    def score(self, row: int, token_id: int, num_top: int) -> Draw:
        """Log-probability of a token that was given and not drawn."""
        return self._backend.logprobs(self.executor, row, token_id, num_top)
