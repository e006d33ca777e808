"""Builds the native executor of a program: checks shapes and formats, packs weights, and hands over stage by stage."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from weakref import WeakKeyDictionary

import numpy as np

from ..backend import Limits
from ..errors import ConfigError
from ..program import (
    Activation,
    Add,
    Buffer,
    Embed,
    Gate,
    Gating,
    KvGroup,
    KvWrite,
    Moe,
    Program,
    RecurrentGroup,
    RmsNorm,
    Rope,
    RopeLayout,
    RopeTable,
    Rows,
    ScaleCap,
    SelectLogitsRows,
    Tap,
    Weight,
)
from . import _ops
from .check import check_program
from .mapped import release_mapped
from .plan import (
    AttendStage,
    Combine,
    ConvStage,
    DeltaRows,
    DeltaStage,
    ExpertStage,
    GatedStage,
    ProductStage,
    Quantise,
    Route,
    RowStage,
    Stage,
    plan,
)

_ACTIVATIONS = {Activation.SILU: 0, Activation.GELU_TANH: 1, Activation.SIGMOID: 2}


class WeightStore:
    """Packed weights of a backend, one per Weight object however many programs use it. They live as long as some
    executor or the Weight object does."""

    def __init__(self, runtime: _ops.Runtime) -> None:
        self._runtime = runtime
        self._matrices: WeakKeyDictionary[Weight, _ops.Matrices] = WeakKeyDictionary()
        self._vectors: WeakKeyDictionary[Weight, _ops.Vector] = WeakKeyDictionary()

    def matrix(self, weight: Weight) -> _ops.Matrices:
        """(out, in) or (experts, out, in), packed."""
        if weight not in self._matrices:
            *parts, out, width = weight.shape
            data = np.ascontiguousarray(weight.data)
            self._matrices[weight] = self._runtime.pack(weight.type.type_id, math.prod(parts), out, width, data)
            release_mapped(weight.data)  # or a model would be resident twice until it is loaded
        return self._matrices[weight]

    def vector(self, weight: Weight | None) -> _ops.Vector | None:
        """(n,), widened to float32."""
        if weight is None:
            return None
        if weight not in self._vectors:
            self._vectors[weight] = self._runtime.widen(weight.type.type_id, np.ascontiguousarray(weight.data))
        return self._vectors[weight]


def state_layout(group: RecurrentGroup) -> _ops.StateLayout:
    """The group's sizes as native code knows them."""
    return _ops.StateLayout(group.kernel, group.key_heads, group.value_heads, group.key_dim, group.value_dim)


def lower(
    program: Program,
    runtime: _ops.Runtime,
    store: WeightStore,
    pools: Mapping[KvGroup, _ops.KvPool],
    limits: Limits,
    states: _ops.StatePool | None = None,
) -> Lowered:
    """The native form of a program; `states` are its recurrent group's. Raises ConfigError where it cannot be run."""
    check_program(program)
    lowered = Lowered(program, runtime, store, pools, limits, states)
    for stage in plan(program):
        lowered.add(stage)
    return lowered


class Lowered:
    """A native executor under construction and, when complete, its buffers and taps by name."""

    def __init__(
        self,
        program: Program,
        runtime: _ops.Runtime,
        store: WeightStore,
        pools: Mapping[KvGroup, _ops.KvPool],
        limits: Limits,
        states: _ops.StatePool | None,
    ) -> None:
        self.native = _ops.Executor(runtime, limits.max_rows, limits.max_logits_rows, limits.max_sequences)
        self.taps: dict[str, int] = {}
        self._program = program
        self._store = store
        self._pools = pools
        self._buffers: dict[Buffer, _ops.RowBuffer] = {}
        self._angles: dict[RopeTable, _ops.RopeAngles] = {}
        self._experts: dict[tuple[Buffer, int, int, int, int], _ops.ExpertRows] = {}
        self._states = states
        self._delta_rows: _ops.DeltaRows | None = None
        for group in program.kv_groups:
            if group not in pools:
                raise ConfigError(f"{program.name}: no pool for KV group {group.name}")
            self.native.bind_pool(pools[group], group.window or 0)
        if states is not None:
            _ops.bind_states(self.native, states)
        tables = {op.table: None for op in program.ops if isinstance(op, Rope)}
        if tables:
            stage = self.native.rows("rope angles", False)
            for table in tables:
                self._angles[table] = self.native.rope(list(table.inv_freq), table.magnitude)
                stage.angles(self._angles[table])
        self.native.set_logits(self.buffer(program.logits))

    def buffer(self, buffer: Buffer) -> _ops.RowBuffer:
        """The native buffer, made on first use."""
        if buffer not in self._buffers:
            self._buffers[buffer] = self.native.buffer(buffer.width, buffer.rows is Rows.LOGITS)
        return self._buffers[buffer]

    def add(self, stage: Stage) -> None:
        """Appends a stage."""
        _STAGES[type(stage)](self, stage)

    def row_stage(self, stage: RowStage) -> None:
        names = "+".join(dict.fromkeys(type(op).__name__ for op in stage.ops))
        native = self.native.rows(names, stage.rows is Rows.LOGITS)
        for op in stage.ops:
            _ROW_OPS[type(op)](self, native, op)

    def product_stage(self, stage: ProductStage) -> None:
        label = "products " + "+".join(op.weight.name.split(".")[-2] for op in stage.products if "." in op.weight.name)
        native = self.native.products(label, self.buffer(stage.src))
        for op in stage.products:
            residual = None if op.residual is None else self.buffer(op.residual)
            native.add(self.buffer(op.out), self._store.matrix(op.weight), self._store.vector(op.bias), residual)

    def gated_stage(self, stage: GatedStage) -> None:
        gate, up, store = stage.gate, stage.up, self._store
        self.native.gated(
            "gated",
            self.buffer(gate.src),
            store.matrix(gate.weight),
            store.vector(gate.bias),
            store.matrix(up.weight),
            store.vector(up.bias),
            self.buffer(stage.op.out),
            _ACTIVATIONS[stage.op.activation],
            stage.quantise,
            stage.floats,
        )

    def attend_stage(self, stage: AttendStage) -> None:
        op = stage.op
        self.native.attend(
            "attend",
            self.buffer(op.out),
            self.buffer(op.query),
            self._pools[op.group],
            op.layer,
            op.heads,
            op.scale,
            op.window or 0,
            op.softcap,
            self._store.vector(op.sinks),
            stage.quantise,
        )

    def _expert_rows(self, op: Moe) -> _ops.ExpertRows:
        experts, hidden = op.gate.shape[:2]
        key = (op.src, experts, op.top_k, hidden, op.out.width)
        if key not in self._experts:
            self._experts[key] = self.native.expert_rows(self.buffer(op.src), *key[1:])
        return self._experts[key]

    def expert_stage(self, stage: ExpertStage) -> None:
        op, store = stage.moe, self._store
        weights = (store.matrix(op.gate), store.matrix(op.up), store.matrix(op.down))
        self.native.experts("experts", self._expert_rows(op), *weights, _ACTIVATIONS[op.activation])

    def conv_stage(self, stage: ConvStage) -> None:
        op = stage.op
        weight = self._store.vector(op.weight)
        assert weight is not None and self._states is not None, "checked before"
        _ops.add_short_conv(
            self.native, "short conv", self.buffer(op.out), self.buffer(op.src), weight, self._states, op.layer
        )

    def delta_stage(self, stage: DeltaStage) -> None:
        op = stage.op
        assert self._delta_rows is not None and self._states is not None, "checked before"
        out, mixed = self.buffer(op.out), self.buffer(op.mixed)
        _ops.add_delta(self.native, "delta", out, mixed, self._delta_rows, self._states, op.layer)

    # --- row operations ---

    def embed(self, stage: _ops.RowStage, op: Embed) -> None:
        stage.embed(self.buffer(op.out), self._store.matrix(op.table), op.scale)
        self.native.limit_tokens(op.table.shape[0])

    def norm(self, stage: _ops.RowStage, op: RmsNorm) -> None:
        weight = self._store.vector(op.weight)
        stage.norm(self.buffer(op.out), self.buffer(op.src), weight, op.eps, op.groups)

    def add_rows(self, stage: _ops.RowStage, op: Add) -> None:
        stage.add(self.buffer(op.out), self.buffer(op.a), self.buffer(op.b))

    def gate(self, stage: _ops.RowStage, op: Gate) -> None:
        stage.gate(self.buffer(op.out), self.buffer(op.gate), self.buffer(op.up), _ACTIVATIONS[op.activation])

    def rope(self, stage: _ops.RowStage, op: Rope) -> None:
        stage.rope(self.buffer(op.buffer), self._angles[op.table], op.heads, op.layout is RopeLayout.NEOX)

    def kv_write(self, stage: _ops.RowStage, op: KvWrite) -> None:
        stage.kv_write(self.buffer(op.key), self.buffer(op.value), self._pools[op.group], op.layer)

    def select(self, stage: _ops.RowStage, op: SelectLogitsRows) -> None:
        stage.select(self.buffer(op.out), self.buffer(op.src))

    def scale_cap(self, stage: _ops.RowStage, op: ScaleCap) -> None:
        stage.scale_cap(self.buffer(op.buffer), op.scale, op.softcap)

    def tap(self, stage: _ops.RowStage, op: Tap) -> None:
        self.taps[op.name] = stage.tap(self.native, self.buffer(op.src))

    def quantise(self, stage: _ops.RowStage, op: Quantise) -> None:
        stage.quantise(self.buffer(op.buffer))

    def route(self, stage: _ops.RowStage, op: Route) -> None:
        moe = op.moe
        stage.route(
            self.buffer(moe.router_logits),
            self._expert_rows(moe),
            moe.gating is Gating.SIGMOID,
            moe.renormalise,
            moe.scale,
            self._store.vector(moe.selection_bias),
        )

    def delta_rows(self, stage: _ops.RowStage, op: DeltaRows) -> None:
        delta = op.delta
        rate, dt = self._store.vector(delta.rate), self._store.vector(delta.dt)
        assert rate is not None and dt is not None and self._states is not None, "checked before"
        self._delta_rows = self._delta_rows or _ops.DeltaRows(self.native, self._states)  # all layers take turns
        buffers = (self.buffer(delta.mixed), self.buffer(delta.alpha), self.buffer(delta.beta))
        _ops.add_delta_rows(stage, self._delta_rows, self._states, *buffers, rate, dt, delta.eps)

    def combine(self, stage: _ops.RowStage, op: Combine) -> None:
        residual = None if op.moe.residual is None else self.buffer(op.moe.residual)
        stage.combine(self.buffer(op.moe.out), residual, self._expert_rows(op.moe))


_STAGES: dict[type, Callable[..., None]] = {
    RowStage: Lowered.row_stage,
    ProductStage: Lowered.product_stage,
    GatedStage: Lowered.gated_stage,
    AttendStage: Lowered.attend_stage,
    ExpertStage: Lowered.expert_stage,
    ConvStage: Lowered.conv_stage,
    DeltaStage: Lowered.delta_stage,
}
_ROW_OPS: dict[type, Callable[..., None]] = {
    Embed: Lowered.embed,
    RmsNorm: Lowered.norm,
    Add: Lowered.add_rows,
    Gate: Lowered.gate,
    Rope: Lowered.rope,
    KvWrite: Lowered.kv_write,
    SelectLogitsRows: Lowered.select,
    ScaleCap: Lowered.scale_cap,
    Tap: Lowered.tap,
    Quantise: Lowered.quantise,
    Route: Lowered.route,
    Combine: Lowered.combine,
    DeltaRows: Lowered.delta_rows,
}
