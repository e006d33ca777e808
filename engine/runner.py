"""Runs planned rows: fills the batch, steps the executor, draws. Owns the row arrays; decides nothing.

The arrays are allocated once; a step fills their beginnings and hands out views.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf

import numpy as np
from numpy.typing import NDArray

from ..kernels.backend import Backend, DrawRequest, Executor, StepBatch
from ..kernels.sampling import Draw, DrawFault
from .scheduler import StepLimits
from .sequence import Rows, S

NO_DRAFTS: tuple[SequenceOf[int], ...] = ()


class StepRunner:
    """One executor and the arrays of its steps."""

    def __init__(self, backend: Backend, executor: Executor, limits: StepLimits, context_length: int) -> None:
        self.executor = executor
        self._backend = backend
        self._token_ids: NDArray[np.int32] = np.zeros(limits.max_rows, np.int32)
        self._positions: NDArray[np.int32] = np.zeros(limits.max_rows, np.int32)
        self._offsets: NDArray[np.int32] = np.zeros(limits.max_running + 1, np.int32)
        self._slots: NDArray[np.int32] = np.zeros(limits.max_running, np.int32)
        self._logits_rows: NDArray[np.int32] = np.zeros(limits.max_logits_rows, np.int32)
        self._counting: NDArray[np.int32] = np.arange(context_length + limits.max_rows, dtype=np.int32)

    def forward(
        self,
        entries: SequenceOf[Rows[S]],
        drafts: SequenceOf[SequenceOf[int]] = NO_DRAFTS,
        taps: tuple[str, ...] = (),
    ) -> list[int]:
        """Runs the rows, each entry's followed by its drafts (one list per entry, or none at all).

        Returns each entry's first logits row; `first_row` tells its first row. Raises StepError; then nothing may be
        committed.
        """
        first_logits: list[int] = []
        row = logits = 0
        token_ids, positions, counting = self._token_ids, self._positions, self._counting
        for number, (sequence, start, count, num_logits, _) in enumerate(entries):
            end = row + count
            if count == 1:
                token_ids[row] = sequence.tokens[start]
                positions[row] = start
            else:
                token_ids[row:end] = sequence.tokens[start : start + count]
                positions[row:end] = counting[start : start + count]
            if drafts and drafts[number]:
                count += len(drafts[number])
                num_logits += len(drafts[number])
                token_ids[end : row + count] = drafts[number]
                positions[end : row + count] = counting[positions[end - 1] + 1 :][: row + count - end]
                end = row + count
            first_logits.append(logits)
            if num_logits:
                self._logits_rows[logits : logits + num_logits] = counting[end - num_logits : end]
                logits += num_logits
            self._slots[number] = sequence.holding.slot
            row = end
            self._offsets[number + 1] = row
        num = len(entries)
        self.executor.step(
            StepBatch(
                token_ids[:row],
                positions[:row],
                self._offsets[: num + 1],
                self._slots[:num],
                self._logits_rows[:logits],
                taps,
            )
        )
        return first_logits

    def first_row(self, number: int) -> int:
        """The first row of entry `number` in the last step."""
        return int(self._offsets[number])

    def rows(self, name: str, number: int, count: int) -> NDArray[np.float32]:
        """[count, width]: the first rows of entry `number` in an output that the last step was asked for. A view."""
        first = self._offsets[number]
        return self.executor.output(name)[first : first + count]

    def draw(self, requests: SequenceOf[DrawRequest]) -> list[list[Draw] | DrawFault]:
        """Draws for all of them in one native call."""
        return self._backend.draw(self.executor, requests)

    def score(self, row: int, token_id: int, num_top: int) -> Draw:
        """Log-probability of a token that was given and not drawn."""
        return self._backend.logprobs(self.executor, row, token_id, num_top)
