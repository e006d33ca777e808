"""Runs a program over token ids on any backend, without an engine: blocks, tables, chunks, several sequences in a step.

Blocks are handed out in a shuffled order, so that a table that is ignored cannot go unnoticed. Blocks behind a window
are filled with NaN as soon as a step has moved past them, so that a read of a freed block cannot either.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from surefoot.kernels.backend import (
    POSITION,
    SOURCE,
    TARGET,
    Backend,
    Executor,
    Limits,
    RecurrentBackend,
    StatePool,
    StepBatch,
)
from surefoot.kernels.formats import KvType
from surefoot.kernels.program import BLOCK, Program, RecurrentGroup
from surefoot.models.checkpoint import Checkpoint
from surefoot.models.config import Definition
from surefoot.models.gguf import GgufFile
from surefoot.models.registry import build

DATA = Path(__file__).parent / "data"
ORACLE = DATA / "oracle"


def open_model(path: str | Path) -> Definition:
    """The configuration and program of a file, without its tokenizer."""
    return build(Checkpoint(GgufFile.open(path)))


def allocate_states(backend: RecurrentBackend, group: RecurrentGroup, sequences: int) -> StatePool:
    """Two states and a log of 17 rows for each sequence; all of them hold NaN."""
    states = backend.allocate_states(group, 1 + 2 * sequences, sequences, 17)
    for block in range(1, states.num_blocks):
        states.fill(block, float("nan"))
    return states


def order_state(states: StatePool, slot: int, first: int, rows: int, commit: bool) -> None:
    """One row is logged, and so are rows that may be taken back; others go from one of the slot's states to the
    other."""
    row, (one, other) = states.table[slot], (1 + 2 * slot, 2 + 2 * slot)
    logs = rows == 1 or not commit
    if logs and row[SOURCE]:
        row[TARGET] = row[SOURCE]
    else:
        row[TARGET] = other if row[SOURCE] == one else one
        states.fill(int(row[TARGET]), float("nan"))
    row[POSITION] = first if logs else first + rows


class ProgramRunner:
    """A program on a backend with room for `sequences` sequences of `positions` positions each."""

    def __init__(
        self,
        backend: Backend,
        program: Program,
        *,
        kv_type: KvType = KvType.F32,
        sequences: int = 1,
        positions: int = 512,
        max_rows: int = 512,
        max_logits_rows: int | None = None,
        seed: int = 0,
    ) -> None:
        self.lengths = [0] * sequences  # positions of each sequence that hold committed rows
        per_sequence = -(-positions // BLOCK)
        count = sequences * per_sequence
        order = np.random.default_rng(seed)
        self.pools = {
            group: backend.allocate_kv(group, kv_type, count, sequences, per_sequence) for group in program.kv_groups
        }
        for pool in self.pools.values():
            pool.block_table[:] = order.permutation(count).astype(np.int32).reshape(sequences, per_sequence)
            for block in range(count):
                pool.fill(block, float("nan"))
        limits = Limits(max_rows, max_logits_rows or max_rows, sequences)
        self.states: StatePool | None = None
        self.executor = self._load(backend, program, limits)
        self.max_rows = max_rows
        self.outputs: dict[str, NDArray[np.float32]] = {}  # taps of the last step, all of its rows

    def _load(self, backend: Backend, program: Program, limits: Limits) -> Executor:
        if program.recurrent is None:
            return backend.load(program, self.pools, limits)
        assert isinstance(backend, RecurrentBackend)
        self.states = allocate_states(backend, program.recurrent, limits.max_sequences)
        return backend.load(program, self.pools, limits, self.states)

    def step(
        self,
        pieces: Mapping[int, Sequence[int]],
        *,
        taps: tuple[str, ...] = (),
        want: str = "all",
        commit: bool = True,
    ) -> dict[int, NDArray[np.float32]]:
        """One step that continues each sequence by its ids. Logits [rows, vocabulary] of each sequence's rows, copied;
        with want="last", only of its last row. commit=False: rows that a rewind may take back, so nothing is freed."""
        slots = [slot for slot, ids in pieces.items() if len(ids)]
        counts = [len(pieces[slot]) for slot in slots]
        offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
        wanted = np.arange(offsets[-1]) if want == "all" else offsets[1:] - 1
        positions = [np.arange(n) + self.lengths[slot] for slot, n in zip(slots, counts, strict=True)]
        if self.states is not None:
            for slot, n in zip(slots, counts, strict=True):
                order_state(self.states, slot, self.lengths[slot], n, commit)
        self.executor.step(
            StepBatch(
                token_ids=np.concatenate([pieces[slot] for slot in slots]).astype(np.int32),
                positions=np.concatenate(positions).astype(np.int32),
                row_offsets=offsets,
                slots=np.array(slots, np.int32),
                logits_rows=wanted.astype(np.int32),
                taps=taps,
            )
        )
        for slot, n in zip(slots, counts, strict=True):
            self.lengths[slot] += n
            if self.states is not None:
                self.states.table[slot, SOURCE] = self.states.table[slot, TARGET]
            if commit:
                self._free_behind_window(slot)
        self.outputs = {name: self.executor.output(name).copy() for name in taps}
        logits = self.executor.logits().copy()
        ends = offsets if want == "all" else np.arange(len(slots) + 1)
        return {slot: logits[ends[i] : ends[i + 1]] for i, slot in enumerate(slots)}

    def feed(
        self,
        token_ids: Sequence[int] | NDArray[np.int32],
        *,
        sequence: int = 0,
        chunks: Iterable[int] | None = None,
        want: str = "all",
    ) -> NDArray[np.float32]:
        """Continues a sequence in chunks of the given sizes (the last one repeats) and returns its logits, row by row;
        with want="last", only of the last row of each chunk."""
        ids = [int(token) for token in token_ids]
        sizes = list(chunks or [self.max_rows])
        parts: list[NDArray[np.float32]] = []
        while ids:
            size = sizes.pop(0) if len(sizes) > 1 else sizes[0]
            parts.append(self.step({sequence: ids[:size]}, want=want)[sequence])
            ids = ids[size:]
        return np.concatenate(parts)

    def greedy(self, first: int, count: int, *, sequence: int = 0) -> tuple[list[int], NDArray[np.float32]]:
        """`count` tokens from `first` on, each the lowest id of the largest logit, and the last one's logits."""
        tokens, logits = [first], np.empty(0, np.float32)
        while len(tokens) < count:
            logits = self.step({sequence: tokens[-1:]})[sequence][0]
            tokens.append(int(logits.argmax()))
        return tokens, logits

    def rewind(self, length: int, *, sequence: int = 0) -> None:
        """Forgets the rows from position `length` on. Rows that a window has passed cannot come back."""
        self.lengths[sequence] = length

    def _free_behind_window(self, slot: int) -> None:
        for group, pool in self.pools.items():
            if group.window is None:
                continue
            gone = max(0, self.lengths[slot] - group.window + 1) // BLOCK  # the next row sees none of these blocks
            for block in pool.block_table[slot, :gone]:
                pool.fill(int(block), float("nan"))
