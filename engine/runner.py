"""Runs planned rows: makes the batch, steps the executor, draws. Decides nothing.

A batch is lists of Python's ints, which is what tokens are kept in: for the few rows of a decode, filling numpy arrays
takes longer than everything else here.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf

import numpy as np
from numpy.typing import NDArray

from ..kernels.backend import Backend, DrawRequest, Executor, StepBatch
from ..kernels.sampling import Draw, DrawFault
from .sequence import Rows, S

NO_DRAFTS: tuple[SequenceOf[int], ...] = ()


class StepRunner:
    """One executor and its last step's rows."""

    def __init__(self, backend: Backend, executor: Executor) -> None:
        self.executor = executor
        self._backend = backend
        self.offsets = [0]  # first row of each entry of the last step

    def forward(
        self,
        entries: SequenceOf[Rows[S]],
        drafts: SequenceOf[SequenceOf[int]] = NO_DRAFTS,
        taps: tuple[str, ...] = (),
    ) -> list[int]:
        """Runs the rows, each entry's followed by its drafts (one list per entry, or none at all).

        Returns each entry's first logits row; `offsets` holds its first row. Raises StepError; then nothing may be
        committed.
        """
        first_logits: list[int] = []
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
        self.executor.step(StepBatch(token_ids, positions, offsets, slots, logits_rows, taps))
        return first_logits

    def rows(self, name: str, number: int, count: int) -> NDArray[np.float32]:
        """[count, width]: the first rows of entry `number` in an output that the last step was asked for. A view."""
        first = self.offsets[number]
        return self.executor.output(name)[first : first + count]

    def draw(self, requests: SequenceOf[DrawRequest]) -> list[list[Draw] | DrawFault]:
        """Draws for all of them in one native call."""
        return self._backend.draw(self.executor, requests)

    def score(self, row: int, token_id: int, num_top: int) -> Draw:
        """Log-probability of a token that was given and not drawn."""
        return self._backend.logprobs(self.executor, row, token_id, num_top)
