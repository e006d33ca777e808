"""Runs a program op by op over ragged batches: checks a batch, walks the ops, keeps the last step's results."""

from __future__ import annotations

import threading
from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..backend import Limits, StepBatch
from ..errors import ConfigError, StepCancelled, StepError
from ..program import Buffer, KvGroup, Program
from .cache import ReferenceKvPool
from .states import ReferenceStatePool
from .step import METHODS, Batch, Step, Weights, sequences


class ReferenceExecutor:
    """A program bound to its weights and pools."""

    def __init__(
        self,
        program: Program,
        weights: Weights,
        pools: Mapping[KvGroup, ReferenceKvPool],
        states: ReferenceStatePool | None,
        limits: Limits,
    ) -> None:
        self._program = program
        self._weights = weights
        self._pools = dict(pools)
        self._states = states
        self._limits = limits
        self._cancelled = threading.Event()
        self._done: Step | None = None
        for group in program.kv_groups:
            if group not in self._pools:
                raise ConfigError(f"{program.name}: no pool for KV group {group.name}")
        if program.recurrent is not (None if states is None else states.group):
            raise ConfigError(f"{program.name}: no states, or another group's, for its recurrent layers")
        for op in program.ops:
            if type(op) not in METHODS:
                raise ConfigError(f"the reference backend lacks the op {type(op).__name__} ({program.name})")

    @property
    def program(self) -> Program:
        return self._program

    def step(self, batch: StepBatch) -> None:
        self._done = None
        self._cancelled.clear()
        arrays = Batch.of(batch)
        self._check(arrays)
        step = Step(arrays, self._weights, self._pools, self._states, self._inputs(arrays))
        with torch.inference_mode():
            for op in self._program.ops:
                if self._cancelled.is_set():
                    raise StepCancelled(f"{self._program.name}: step cancelled")
                METHODS[type(op)](step, op)
        self._done = step

    def logits(self) -> NDArray[np.float32]:
        return self._finished().buffers[self._program.logits].numpy()

    def output(self, name: str) -> NDArray[np.float32]:
        return self._finished().outputs[name].numpy()

    def cancel(self) -> None:
        self._cancelled.set()

    def _finished(self) -> Step:
        assert self._done is not None, "the last step did not finish, or none ran"
        return self._done

    def _check(self, batch: Batch) -> None:
        """Raises StepError for a batch that breaks the protocol, before anything is touched."""
        rows, program = len(batch.token_ids), self._program
        faults = {
            "no rows": rows == 0,
            "rows beyond the limit": rows > self._limits.max_rows,
            "logits rows beyond the limit": len(batch.logits_rows) > self._limits.max_logits_rows,
            "sequences beyond the limit": len(batch.slots) > self._limits.max_sequences,
            "one slot for two sequences": len(set(batch.slots.tolist())) != len(batch.slots),
            "positions for other than its rows": len(batch.positions) != rows,
            "row offsets that do not cover its rows": not _covers(batch.row_offsets, len(batch.slots), rows),
            "negative positions": bool((batch.positions < 0).any()),
            "logits rows that are not ascending rows": not _ascending_within(batch.logits_rows, rows),
            "taps that the program does not name": not set(batch.taps) <= set(program.tap_names),
            "other inputs than the program's": set(batch.inputs) != {b.name for b in program.inputs},
        }
        for fault, present in faults.items():
            if present:
                raise StepError(f"{program.name}: a batch with {fault}")
        for part, slot, first in sequences(batch):
            if (np.diff(batch.positions[part]) != 1).any():
                raise StepError(f"{program.name}: a batch with gaps between positions")
            for group in program.kv_groups:
                oldest = 0 if group.window is None else max(0, first - group.window + 1)
                if not self._pools[group].holds(slot, oldest, first + part.stop - part.start):
                    raise StepError(f"{program.name}: a batch with positions that have no block in {group.name}")
            fault = None if self._states is None else self._states.fault(slot, first, part.stop - part.start)
            if fault is not None:
                raise StepError(f"{program.name}: {fault}")

    def _inputs(self, batch: Batch) -> dict[Buffer, Tensor]:
        """The program's input buffers, copied from the outputs of other executors."""
        filled: dict[Buffer, Tensor] = {}
        for buffer in self._program.inputs:
            handle = batch.inputs[buffer.name]
            rows = handle.executor.output(handle.name)[handle.start : handle.start + handle.count]
            if rows.shape != (len(batch.token_ids), buffer.width):
                raise StepError(f"{self._program.name}: input {buffer.name} of shape {rows.shape}")
            filled[buffer] = torch.as_tensor(rows.copy())
        return filled


def _covers(offsets: NDArray[np.int32], num_sequences: int, rows: int) -> bool:
    if len(offsets) != num_sequences + 1:
        return False
    return bool(offsets[0] == 0 and offsets[-1] == rows and (np.diff(offsets) >= 0).all())


def _ascending_within(indices: NDArray[np.int32], rows: int) -> bool:
    return len(indices) == 0 or bool(indices[0] >= 0 and indices[-1] < rows and (np.diff(indices) > 0).all())
