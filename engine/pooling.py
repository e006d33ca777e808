"""One vector for a whole text, from the final hidden rows of its tokens as steps compute them.

A text's rows arrive in order, in chunks of any size, and again from the first one if it was preempted. The result is
the same bits for all chunkings: a mean is summed in float64, row after row.
"""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ..models.pooling import Pooling

HIDDEN = "hidden"  # the tap that models give their final hidden state


class Pooler(Protocol):
    """Takes the rows of one text."""

    needs_all_rows: bool  # so nothing may be adopted from the prefix cache: it holds no hidden rows

    def feed(self, rows: NDArray[np.float32], start: int) -> None:
        """Rows [count, width] of the positions from `start` on. A view: what is kept must be copied."""
        ...

    def vector(self) -> NDArray[np.float64]:
        """[width] once the last row was fed. Not normalised."""
        ...


class LastRow:
    """The row that has seen the whole text."""

    needs_all_rows = False

    def __init__(self) -> None:
        self._row: NDArray[np.float64] = np.zeros(0)

    def feed(self, rows: NDArray[np.float32], start: int) -> None:
        """See Pooler."""
        self._row = rows[-1].astype(np.float64)

    def vector(self) -> NDArray[np.float64]:
        """See Pooler."""
        return self._row


class FirstRow:
    """The row of a begin-of-text or classification token."""

    needs_all_rows = True

    def __init__(self) -> None:
        self._row: NDArray[np.float64] = np.zeros(0)

    def feed(self, rows: NDArray[np.float32], start: int) -> None:
        """See Pooler."""
        if start == 0:
            self._row = rows[0].astype(np.float64)

    def vector(self) -> NDArray[np.float64]:
        """See Pooler."""
        return self._row


class MeanRow:
    """The mean of all rows."""

    needs_all_rows = True

    def __init__(self) -> None:
        self._sum: NDArray[np.float64] = np.zeros(0)
        self._count = 0

    def feed(self, rows: NDArray[np.float32], start: int) -> None:
        """See Pooler."""
        if start == 0:
            self._sum, self._count = np.zeros(rows.shape[1]), 0
        assert start == self._count, f"row {start} after {self._count} rows"
        for row in rows:  # one by one: numpy promises no order of its own sums
            self._sum += row
        self._count += len(rows)

    def vector(self) -> NDArray[np.float64]:
        """See Pooler."""
        return self._sum / self._count


_POOLERS = {Pooling.LAST: LastRow, Pooling.CLS: FirstRow, Pooling.MEAN: MeanRow}


def make_pooler(pooling: Pooling) -> Pooler:
    """The state of one text."""
    return _POOLERS[pooling]()


def normalised(vector: NDArray[np.float64], size: int) -> NDArray[np.float32]:
    """The first `size` values, scaled to length 1 (all zeros stay zeros). The squares' sum is exact, so in no order."""
    part = vector[:size]
    length = math.sqrt(math.fsum((part * part).tolist()))
    return (part / length if length else part).astype(np.float32)
