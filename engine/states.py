"""The recurrent states of sequences: which block holds each, and what a step is told to do with it.

Owns the state blocks and the state table; knows slots and positions, neither tokens nor requests nor what blocks can be
found by. A sequence begins with a shared block that nobody may write (a checkpoint, or block 0, the beginning) and has
one of its own after its first step:

    one row and drafts   the own state goes forward to the row, in place; row and drafts are logged
    more rows            the state after them goes to a new block, so that the step can run again; then the old is free

Every position that a step passes can be saved to a block besides.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field
from typing import NamedTuple

from ..kernels.backend import (
    NO_POSITION,
    POSITION,
    SAVES,
    SOURCE,
    STATE_SAVES,
    TARGET,
    Backend,
    Executor,
    KvPool,
    Limits,
    RecurrentBackend,
    StatePool,
)
from ..kernels.errors import ConfigError
from ..kernels.program import KvGroup, Program
from .block_pool import NOWHERE, BlockPool


def recurrent_backend(backend: Backend, program: Program) -> RecurrentBackend:
    """The backend, if it can run recurrent programs. Raises ConfigError."""
    if not isinstance(backend, RecurrentBackend):
        raise ConfigError(f"the backend {backend.name} keeps no recurrent states, which {program.name} needs")
    return backend


def load(
    backend: Backend, program: Program, pools: Mapping[KvGroup, KvPool], limits: Limits, states: StatePool | None
) -> Executor:
    """The program on the backend, with states if it has recurrent layers."""
    if states is None:
        return backend.load(program, pools, limits)
    return recurrent_backend(backend, program).load(program, pools, limits, states)


class Save(NamedTuple):
    """A block that holds, or is about to hold, the state before a position."""

    position: int
    block: int


@dataclass(slots=True)
class Held:
    """The state of one sequence."""

    source: int = NOWHERE
    at: int = 0  # the state in `source` is the one before this position
    owned: bool = False  # nobody else has `source`
    target: int = NOWHERE  # of the step that is planned
    reaches: int = 0  # the position that `target` is for
    planned: bool = False  # a step may have begun: what it was told stays true until it is settled
    saves: list[Save] = field(default_factory=list[Save])


class States:
    """States of all slots."""

    def __init__(self, storage: StatePool, on_evict: Callable[[int], None], *, poison_freed: bool = False) -> None:
        self._storage = storage
        self._table = storage.table
        self._held: dict[int, Held] = {}
        self._table[:] = 0

        def poison(block: int) -> None:
            storage.fill(block, float("nan"))

        if poison_freed:
            for block in range(1, storage.num_blocks):
                poison(block)
            self.pool = BlockPool(storage.num_blocks, on_evict, poison)
        else:
            self.pool = BlockPool(storage.num_blocks, on_evict)

    @property
    def max_drafts(self) -> int:
        """Drafts that may follow a row in one step."""
        return self._storage.log_rows - 1

    def at(self, slot: int) -> int:
        """The position that the slot's stored state is before; later rows are in its log."""
        return self._held[slot].at

    def open(self, slot: int, block: int, position: int) -> None:
        """A new sequence begins with the state in `block`, the one before `position`. Until a step is planned, steps
        leave nothing behind."""
        if block != NOWHERE:
            self.pool.share(block)
        self._held[slot] = Held(block, position)
        self._storage.open(slot)
        self._table[slot] = 0
        self._table[slot, SOURCE], self._table[slot, POSITION] = block, NO_POSITION

    def close(self, slot: int) -> None:
        """The sequence is gone, and what it planned with it."""
        held = self._held.pop(slot)
        self._drop_target(held)
        for save in held.saves:
            self.pool.release(save.block)
        if held.source != NOWHERE:
            self.pool.release(held.source)
        self._table[slot] = 0

    def plan(self, slot: int, first: int, rows: int) -> bool:
        """The slot's next step has `rows` rows from position `first` on, and perhaps drafts behind a single one. False
        if no block is left for it: nobody holds more than one between steps, so somebody's step finds one."""
        held = self._held[slot]
        if rows == 1 and held.owned:
            self._drop_target(held)
            held.target = held.source
        elif held.target in (NOWHERE, held.source):
            if not self.pool.num_available:
                return False
            held.target = self._allocate()
        held.reaches = first if rows == 1 else first + rows
        row = self._table[slot]
        row[SOURCE], row[TARGET], row[POSITION] = held.source, held.target, held.reaches
        return True

    def save(self, slot: int, first: int, positions: SequenceOf[int]) -> None:
        """The planned step saves the states before these positions, as far as it passes them and blocks are left."""
        held = self._held[slot]
        kept = [save for save in held.saves if save.position <= held.reaches]
        for save in held.saves:
            if save not in kept:
                self.pool.release(save.block)
        # What a step that failed has passed in place, in some layers, is not passed again there.
        passed = first if held.planned else held.at
        known = {save.position for save in kept}
        for position in positions:
            if passed < position <= held.reaches and position not in known and len(kept) < STATE_SAVES:
                if not self.pool.num_available:
                    break
                kept.append(Save(position, self._allocate()))
        if kept or held.saves:
            self._table[slot, SAVES:] = 0
            for number, save in enumerate(kept):
                self._table[slot, SAVES + 2 * number : SAVES + 2 * number + 2] = save.block, save.position
        held.saves = kept
        held.planned = True

    def settle(self, slot: int) -> list[Save]:
        """The planned step was done. Returns what it saved, with the one reference that each block has."""
        held = self._held[slot]
        if not held.planned:
            return []
        if held.target != held.source:
            if held.source != NOWHERE:
                self.pool.release(held.source)
            held.source = held.target
        saves, held.saves = held.saves, []
        held.target, held.at, held.owned, held.planned = NOWHERE, held.reaches, True, False
        if saves:
            self._table[slot, SAVES:] = 0
        return saves

    def _allocate(self) -> int:
        block = self.pool.allocate()
        self._storage.forget(block)
        return block

    def _drop_target(self, held: Held) -> None:
        if held.target not in (NOWHERE, held.source):
            self.pool.release(held.target)
        held.target = NOWHERE
