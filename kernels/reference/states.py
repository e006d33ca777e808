"""The reference state pool: states and logs as torch tensors, by the rules of kernels/backend.py."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..backend import POSITION, SAVES, SOURCE, STATE_COLUMNS, STATE_SAVES, TARGET
from ..program import RecurrentGroup

CONV, DELTA = 0, 1  # the two parts of a layer's state, each written by an op of its own


def log_bytes(group: RecurrentGroup, log_rows: int) -> int:
    """Bytes of a slot's log over all layers."""
    return 4 * group.num_layers * log_rows * (2 * group.channels + 2 * group.value_heads)


@dataclass(slots=True)
class _Log:
    """Rows of one layer's part from position `first` on."""

    first: int
    rows: list[tuple[Tensor, ...]]


@dataclass(frozen=True, slots=True)
class Visit:
    """What a step does with one layer's part of one slot's state; `first` is its first row's position."""

    pool: ReferenceStatePool
    slot: int
    layer: int
    part: int
    first: int

    def begin(self) -> tuple[Tensor, int]:
        """The state in the source, and the position that it is before."""
        block = self._column(SOURCE)
        return self.pool.parts[self.part][block, self.layer].clone(), self.pool.position(block, self.layer, self.part)

    def logged(self, position: int) -> tuple[Tensor, ...]:
        """The inputs of a logged row."""
        log = self.pool.logs[self.slot, self.layer, self.part]
        return log.rows[position - log.first]

    def pass_by(self, position: int, state: Tensor) -> None:
        """`state` is the one before `position`: stores it where it is wanted."""
        wanted = [(self._column(TARGET), self._column(POSITION))]
        wanted += [(self._column(SAVES + 2 * n), self._column(SAVES + 2 * n + 1)) for n in range(STATE_SAVES)]
        for block, where in wanted:
            if block and where == position:
                self.pool.store(block, self.layer, self.part, position, state)

    def log(self, rows: Sequence[tuple[Tensor, ...]]) -> None:
        """Keeps the inputs of the rows that may be taken back."""
        skipped = self._column(POSITION) - self.first
        if skipped < len(rows):
            kept = [tuple(value.clone() for value in row) for row in rows[skipped:]]
            self.pool.logs[self.slot, self.layer, self.part] = _Log(self.first + skipped, kept)

    def _column(self, column: int) -> int:
        return int(self.pool.table[self.slot, column])


class ReferenceStatePool:
    """States of one recurrent group. `parts[CONV]` is [blocks, layers, kernel - 1, channels], `parts[DELTA]`
    [blocks, layers, value heads, key dim, value dim], both f32."""

    def __init__(self, group: RecurrentGroup, num_blocks: int, slots: int, log_rows: int) -> None:
        self.group = group
        self.num_blocks = num_blocks
        self.log_rows = log_rows
        self.table: NDArray[np.int32] = np.zeros((slots, STATE_COLUMNS), np.int32)
        self.logs: dict[tuple[int, int, int], _Log] = {}
        layers = (num_blocks, group.num_layers)
        shapes = (group.kernel - 1, group.channels), (group.value_heads, group.key_dim, group.value_dim)
        self.parts = [torch.as_tensor(np.zeros((*layers, *shape), np.float32)) for shape in shapes]
        self._positions = np.full((*layers, len(shapes)), -1, np.int64)
        self._positions[0] = 0

    def open(self, slot: int) -> None:
        for key in [key for key in self.logs if key[0] == slot]:
            del self.logs[key]

    def forget(self, block: int) -> None:
        assert block, "block 0 is no sequence's"
        self._positions[block] = -1

    def fill(self, block: int, value: float) -> None:
        self.forget(block)
        for part in self.parts:
            part[block] = value

    def position(self, block: int, layer: int, part: int) -> int:
        """The position that a block's state of a layer is before; -1: it holds none."""
        return int(self._positions[block, layer, part])

    def store(self, block: int, layer: int, part: int, position: int, state: Tensor) -> None:
        """Makes a block hold the state before `position`."""
        self.parts[part][block, layer] = state
        self._positions[block, layer, part] = position

    def fault(self, slot: int, first: int, rows: int) -> str | None:
        """Why a step of so many rows from position `first` on cannot run, if it cannot."""
        if not 0 <= slot < len(self.table):
            return f"no slot {slot}"
        row = self.table[slot].tolist()
        blocks = [row[SOURCE], row[TARGET], *row[SAVES::2]]
        if not all(0 <= block < self.num_blocks for block in blocks):
            return f"slot {slot}: no such state block among {blocks}"
        position = row[POSITION]
        if position < first or first + rows - position > self.log_rows:
            return f"slot {slot}: {rows} rows from {first} on with a state before {position}"
        if row[TARGET] and row[TARGET] == row[SOURCE] and position != first:
            return f"slot {slot}: a state cannot be overwritten by rows that may have to run again"
        for layer in range(self.group.num_layers):
            for part in (CONV, DELTA):
                held = self.position(row[SOURCE], layer, part)
                log = self.logs.get((slot, layer, part), _Log(0, []))
                if not 0 <= held <= first or (
                    held < first and not log.first <= held <= first <= log.first + len(log.rows)
                ):
                    return f"slot {slot}: block {row[SOURCE]} holds a state before {held} and rows start at {first}"
        return None
