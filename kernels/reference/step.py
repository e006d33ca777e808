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
    GatedDeltaNet,
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
    ShortConv,
    Tap,
    Weight,
)
from . import ops
from .cache import ReferenceKvPool
from .states import CONV, DELTA, ReferenceStatePool, Visit

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
        states: ReferenceStatePool | None,
        inputs: Mapping[Buffer, Tensor],
    ) -> None:
        self.batch = batch
        self.buffers = dict(inputs)
        self.outputs: dict[str, Tensor] = {}
        self._weights = weights
        self._pools = pools
        self._states = states
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

    def short_conv(self, op: ShortConv) -> None:
        src, weight = self.buffers[op.src], self._weights(op.weight)
        out = torch.zeros(len(src), op.out.width)
        for rows, slot, first in sequences(self.batch):
            visit = self._visit(slot, op.layer, CONV, first)
            history, held = visit.begin()
            own = src[rows]
            known = torch.cat([history, *(visit.logged(position)[0][None] for position in range(held, first)), own])
            for position in range(held, first + len(own) + 1):
                visit.pass_by(position, known[position - held : position - held + len(history)])
            visit.log([(row,) for row in own])
            out[rows] = ops.short_conv(known[first - held :], weight)
        self.buffers[op.out] = out

    def gated_delta_net(self, op: GatedDeltaNet) -> None:
        group, mixed = op.group, self.buffers[op.mixed]
        keys = group.key_heads * group.key_dim
        served = torch.arange(group.value_heads) % group.key_heads  # the key head of each value head
        queries = ops.unit(mixed[:, :keys], group.key_heads, op.eps)[:, served] * group.key_dim**-0.5
        key = ops.unit(mixed[:, keys : 2 * keys], group.key_heads, op.eps)[:, served]
        value = mixed[:, 2 * keys :].reshape(len(mixed), group.value_heads, -1)
        rate, dt = self._weights(op.rate), self._weights(op.dt)
        inputs = (key, value, *ops.delta_gates(self.buffers[op.alpha], self.buffers[op.beta], rate, dt))
        out = torch.zeros(len(mixed), group.value_heads, group.value_dim)
        for rows, slot, first in sequences(self.batch):
            visit = self._visit(slot, op.layer, DELTA, first)
            state, held = visit.begin()
            for position in range(held, first):
                visit.pass_by(position, state)
                state = ops.delta_update(state, *visit.logged(position))
            for row in range(rows.start, rows.stop):
                visit.pass_by(first + row - rows.start, state)
                state = ops.delta_update(state, *(values[row] for values in inputs))
                out[row] = torch.einsum("hkv,hk->hv", state, queries[row])
            visit.pass_by(first + rows.stop - rows.start, state)
            visit.log([tuple(values[row] for values in inputs) for row in range(rows.start, rows.stop)])
        self.buffers[op.out] = out.reshape(len(mixed), -1)

    def _visit(self, slot: int, layer: int, part: int, first: int) -> Visit:
        assert self._states is not None, "a recurrent op without states"
        return Visit(self._states, slot, layer, part, first)

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
    ShortConv: Step.short_conv,
    GatedDeltaNet: Step.gated_delta_net,
    Gate: Step.gate,
    Moe: Step.moe,
    SelectLogitsRows: Step.select_logits_rows,
    ScaleCap: Step.scale_cap,
    Tap: Step.tap,
}
