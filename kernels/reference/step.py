"""One step of a program: the buffers, and what each op does to them. The arithmetic is in ops.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..backend import RowHandle, StepBatch
from ..errors import StepError
from ..program import (
    Add,
    Attend,
    Buffer,
    Embed,
    Gate,
    KvGroup,
    KvWrite,
    Linear,
    Moe,
    Op,
    RmsNorm,
    Rope,
    RopeTable,
    ScaleCap,
    SelectLogitsRows,
    Tap,
    Weight,
)
from . import ops
from .cache import ReferenceKvPool

Weights = Callable[[Weight], Tensor]  # a stored weight as float32, in its own shape


@dataclass(frozen=True, slots=True)
class Batch:
    """A StepBatch in arrays."""

    token_ids: NDArray[np.int32]
    positions: NDArray[np.int32]
    row_offsets: NDArray[np.int32]
    slots: NDArray[np.int32]
    logits_rows: NDArray[np.int32]
    taps: tuple[str, ...]
    inputs: Mapping[str, RowHandle]

    @classmethod
    def of(cls, batch: StepBatch) -> Batch:
        """Copies what are lists."""
        return cls(
            np.asarray(batch.token_ids, np.int32),
            np.asarray(batch.positions, np.int32),
            np.asarray(batch.row_offsets, np.int32),
            np.asarray(batch.slots, np.int32),
            np.asarray(batch.logits_rows, np.int32),
            batch.taps,
            batch.inputs,
        )


def sequences(batch: Batch) -> Iterator[tuple[slice, int, int]]:
    """Per sequence that has rows: its rows, its slot in the block tables, and the position of its first row."""
    offsets = batch.row_offsets
    for s, slot in enumerate(batch.slots):
        start, stop = int(offsets[s]), int(offsets[s + 1])
        if start < stop:
            yield slice(start, stop), int(slot), int(batch.positions[start])


class Step:
    """Every buffer written so far, the taps copied so far, and the rope angles of the batch's positions."""

    def __init__(
        self,
        batch: Batch,
        weights: Weights,
        pools: Mapping[KvGroup, ReferenceKvPool],
        inputs: Mapping[Buffer, Tensor],
    ) -> None:
        self.batch = batch
        self.buffers = dict(inputs)
        self.outputs: dict[str, Tensor] = {}
        self._weights = weights
        self._pools = pools
        self._angles: dict[RopeTable, tuple[Tensor, Tensor]] = {}

    def _maybe(self, weight: Weight | None) -> Tensor | None:
        return None if weight is None else self._weights(weight)

    def embed(self, op: Embed) -> None:
        table = self._weights(op.table)
        ids = torch.as_tensor(self.batch.token_ids.astype(np.int64))
        if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < len(table):
            raise StepError(f"a token id outside the vocabulary of {len(table)}")
        self.buffers[op.out] = op.scale * table[ids]

    def rms_norm(self, op: RmsNorm) -> None:
        self.buffers[op.out] = ops.rms_norm(self.buffers[op.src], self._maybe(op.weight), op.eps, op.groups)

    def linear(self, op: Linear) -> None:
        x = self.buffers[op.src]
        residual = None if op.residual is None else self.buffers[op.residual]
        self.buffers[op.out] = ops.linear(x, self._weights(op.weight), self._maybe(op.bias), residual)

    def add(self, op: Add) -> None:
        self.buffers[op.out] = self.buffers[op.a] + self.buffers[op.b]

    def rope(self, op: Rope) -> None:
        if op.table not in self._angles:
            self._angles[op.table] = ops.rope_angles(op.table, self.batch.positions)
        cos, sin = self._angles[op.table]
        self.buffers[op.buffer] = ops.rope(self.buffers[op.buffer], op.heads, cos, sin, op.layout)

    def kv_write(self, op: KvWrite) -> None:
        keys, values = self.buffers[op.key], self.buffers[op.value]
        for rows, slot, first in sequences(self.batch):
            self._pools[op.group].write(op.layer, slot, first, keys[rows], values[rows])

    def attend(self, op: Attend) -> None:
        query, sinks = self.buffers[op.query], self._maybe(op.sinks)
        shape = ops.AttendShape(op.heads, op.scale, op.window, op.softcap)
        out = torch.zeros(len(query), op.out.width)
        for rows, slot, first in sequences(self.batch):
            oldest = 0 if op.window is None else max(0, first - op.window + 1)
            keys, values = self._pools[op.group].read(op.layer, slot, oldest, first + rows.stop - rows.start)
            out[rows] = ops.attend(query[rows], keys, values, first, oldest, shape, sinks)
        self.buffers[op.out] = out

    def gate(self, op: Gate) -> None:
        self.buffers[op.out] = ops.gate(self.buffers[op.gate], self.buffers[op.up], op.activation)

    def moe(self, op: Moe) -> None:
        routing = ops.Routing(op.top_k, op.gating, op.renormalise, op.scale)
        weights = ops.route(self.buffers[op.router_logits], routing, self._maybe(op.selection_bias))
        experts = (self._weights(op.gate), self._weights(op.up), self._weights(op.down))
        out = ops.moe(self.buffers[op.src], weights, *experts, op.activation)
        self.buffers[op.out] = out if op.residual is None else out + self.buffers[op.residual]

    def select_logits_rows(self, op: SelectLogitsRows) -> None:
        self.buffers[op.out] = self.buffers[op.src][torch.as_tensor(self.batch.logits_rows.astype(np.int64))]

    def scale_cap(self, op: ScaleCap) -> None:
        self.buffers[op.buffer] = ops.scale_cap(self.buffers[op.buffer], op.scale, op.softcap)

    def tap(self, op: Tap) -> None:
        if op.name in self.batch.taps:
            self.outputs[op.name] = self.buffers[op.src].clone()


METHODS: dict[type[Op], Callable[..., None]] = {
    Embed: Step.embed,
    RmsNorm: Step.rms_norm,
    Linear: Step.linear,
    Add: Step.add,
    Rope: Step.rope,
    KvWrite: Step.kv_write,
    Attend: Step.attend,
    Gate: Step.gate,
    Moe: Step.moe,
    SelectLogitsRows: Step.select_logits_rows,
    ScaleCap: Step.scale_cap,
    Tap: Step.tap,
}
