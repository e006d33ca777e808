"""Which ops run together: a program as stages, each of independent chunks, with one barrier between two stages.

Runs of row operations become one stage; products of the same rows become one stage; a gated pair takes its activation
along. Products of quantised weights read quantised rows, which are made once, by whatever stage made the rows. Pure:
knows no native code and no arithmetic.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

from ..errors import ConfigError
from ..formats import WeightType
from ..program import (
    Add,
    Attend,
    Buffer,
    Embed,
    Gate,
    GatedDeltaNet,
    KvWrite,
    Linear,
    Moe,
    Op,
    Program,
    RmsNorm,
    Rope,
    Rows,
    ScaleCap,
    SelectLogitsRows,
    ShortConv,
    Tap,
    Weight,
)

_FLOAT_TYPES = (WeightType.F32, WeightType.F16, WeightType.BF16)


@dataclass(frozen=True, eq=False, slots=True)
class Quantise:
    """Row operation: make the quantised copy of each row that products of quantised weights read."""

    buffer: Buffer


@dataclass(frozen=True, eq=False, slots=True)
class Route:
    """Row operation: choose each row's experts."""

    moe: Moe


@dataclass(frozen=True, eq=False, slots=True)
class Combine:
    """Row operation: sum the chosen experts' outputs."""

    moe: Moe


@dataclass(frozen=True, eq=False, slots=True)
class DeltaRows:
    """Row operation: what the gated delta rule reads of each row."""

    delta: GatedDeltaNet


RowOp = (
    Embed
    | RmsNorm
    | Add
    | Rope
    | KvWrite
    | Gate
    | SelectLogitsRows
    | ScaleCap
    | Tap
    | Quantise
    | Route
    | Combine
    | DeltaRows
)


@dataclass(frozen=True, eq=False, slots=True)
class RowStage:
    """Row operations, in order, on each row."""

    rows: Rows
    ops: list[RowOp]


@dataclass(frozen=True, eq=False, slots=True)
class ProductStage:
    """Products of the same rows."""

    src: Buffer
    products: tuple[Linear, ...]


@dataclass(frozen=True, eq=False, slots=True)
class GatedStage:
    """activation(gate product) * up product, neither of which is kept. `quantise`: the result in quantised form,
    `floats`: as it is."""

    gate: Linear
    up: Linear
    op: Gate
    quantise: bool
    floats: bool


@dataclass(frozen=True, eq=False, slots=True)
class AttendStage:
    """Attention; `quantise`: the result too."""

    op: Attend
    quantise: bool


@dataclass(frozen=True, eq=False, slots=True)
class ExpertStage:
    """All experts' products, between Route and Combine."""

    moe: Moe


@dataclass(frozen=True, eq=False, slots=True)
class ConvStage:
    """A short convolution, which reads rows before its own."""

    op: ShortConv


@dataclass(frozen=True, eq=False, slots=True)
class DeltaStage:
    """The gated delta rule, position after position, behind its DeltaRows."""

    op: GatedDeltaNet


Stage = RowStage | ProductStage | GatedStage | AttendStage | ExpertStage | ConvStage | DeltaStage


def is_quantised(weight: Weight) -> bool:
    """Whether products of this weight read quantised rows."""
    return weight.type not in _FLOAT_TYPES


def plan(program: Program) -> list[Stage]:
    """The program's stages in order. Raises ConfigError for a program that cannot be run."""
    return _Planner(program).stages()


class _Planner:
    def __init__(self, program: Program) -> None:
        self._name = program.name
        self._ops = program.ops
        self._logits = program.logits
        self._stages: list[Stage] = []
        self._quantised: set[Buffer] = set()  # buffers whose quantised copy is up to date

    def stages(self) -> list[Stage]:
        at = 0
        while at < len(self._ops):
            op = self._ops[at]
            if isinstance(op, Linear):
                at = self._products(at)
            elif isinstance(op, Attend):
                quantise = op.group.value_dim % 32 == 0 and self._next_product_is_quantised(at + 1, op.out)
                self._append(AttendStage(op, quantise), op.out, quantise)
                at += 1
            elif isinstance(op, Moe):
                self._experts(op)
                at += 1
            elif isinstance(op, ShortConv):
                self._append(ConvStage(op), op.out, False)
                at += 1
            elif isinstance(op, GatedDeltaNet):
                self._row_op(DeltaRows(op))
                self._append(DeltaStage(op), op.out, False)
                at += 1
            else:
                self._row_op(op)
                at += 1
        return self._stages

    def _append(self, stage: Stage, written: Buffer, quantised: bool) -> None:
        self._stages.append(stage)
        self._quantised.discard(written)
        if quantised:
            self._quantised.add(written)

    def _row_op(self, op: RowOp) -> None:
        rows = _rows_of(op)
        last = self._stages[-1] if self._stages else None
        if not (isinstance(last, RowStage) and last.rows is rows):
            last = RowStage(rows, [])
            self._stages.append(last)
        last.ops.append(op)
        for buffer in written_by(op):
            self._quantised.discard(buffer)

    def _need_quantised(self, buffer: Buffer) -> None:
        if buffer not in self._quantised:
            self._row_op(Quantise(buffer))
            self._quantised.add(buffer)

    def _products(self, start: int) -> int:
        """Plans the products from `start` on that can run side by side; returns the op after them."""
        first = self._ops[start]
        assert isinstance(first, Linear)
        group: list[Linear] = []
        stop = start
        while stop < len(self._ops):
            op = self._ops[stop]
            if not (isinstance(op, Linear) and op.src is first.src and _independent(op, group)):
                break
            group.append(op)
            stop += 1
        if any(op.out is op.src for op in group):
            raise ConfigError(f"{self._name}: a product cannot overwrite its own input")
        if any(is_quantised(op.weight) for op in group):
            self._need_quantised(first.src)
        gate = self._ops[stop] if stop < len(self._ops) else None
        if isinstance(gate, Gate) and self._can_fuse(group, gate, stop):
            return self._gated(group, gate, stop)
        self._stages.append(ProductStage(first.src, tuple(group)))
        self._quantised -= {op.out for op in group}
        return stop

    def _can_fuse(self, group: Sequence[Linear], gate: Gate, at: int) -> bool:
        """Whether the group is exactly the gate's two products, alike in shape and format, nobody else reads them, and
        the result does not overwrite the rows that both still read."""
        if {op.out for op in group} != {gate.gate, gate.up} or len(group) != 2 or gate.out is group[0].src:
            return False
        if any(op.out is not gate.out and self._is_read(at + 1, op.out) for op in group):
            return False
        first, second = (op.weight for op in group)
        return all(op.residual is None for op in group) and (first.shape, first.type) == (second.shape, second.type)

    def _gated(self, group: Sequence[Linear], gate: Gate, at: int) -> int:
        by_out = {op.out: op for op in group}
        quantise = gate.out.width % 32 == 0 and self._next_product_is_quantised(at + 1, gate.out)
        floats = not quantise or self._is_read(at + 1, gate.out, but_quantised=True)
        self._quantised -= {gate.gate, gate.up}
        self._append(GatedStage(by_out[gate.gate], by_out[gate.up], gate, quantise, floats), gate.out, quantise)
        return at + 1

    def _experts(self, op: Moe) -> None:
        if any(is_quantised(w) for w in (op.gate, op.up)):
            self._need_quantised(op.src)
        self._row_op(Route(op))
        self._stages.append(ExpertStage(op))
        self._row_op(Combine(op))

    def _next_product_is_quantised(self, at: int, buffer: Buffer) -> bool:
        """Whether a product of quantised weights reads `buffer` before anything overwrites it."""
        for op in self._ops[at:]:
            if isinstance(op, Linear) and op.src is buffer and is_quantised(op.weight):
                return True
            if isinstance(op, Moe) and op.src is buffer and is_quantised(op.gate):
                return True
            if buffer in written_by(op):
                return False
        return False

    def _is_read(self, at: int, buffer: Buffer, but_quantised: bool = False) -> bool:
        """Whether anything reads `buffer` before it is overwritten; `but_quantised`: other than its quantised copy."""
        for op in self._ops[at:]:
            if buffer in _read_by(op, but_quantised):
                return True
            if buffer in written_by(op):
                return False
        return buffer is self._logits


def _read_by(op: Op, but_quantised: bool) -> set[Buffer]:
    """The buffers that an op reads; `but_quantised`: without those whose quantised copy it reads."""
    read = {value for f in fields(op) if f.name != "out" and isinstance(value := getattr(op, f.name), Buffer)}
    if but_quantised and isinstance(op, Linear) and is_quantised(op.weight) and op.residual is not op.src:
        read.discard(op.src)
    return read


def _independent(op: Linear, group: Sequence[Linear]) -> bool:
    """Whether `op` may run beside `group`: no output is written twice or read by another."""
    outs = {other.out for other in group}
    reads = {other.residual for other in group}
    return op.out not in outs | reads and op.src not in outs and op.residual not in outs


def _rows_of(op: RowOp) -> Rows:
    if isinstance(op, (Route, Combine)):
        return op.moe.out.rows
    if isinstance(op, DeltaRows):
        return op.delta.out.rows
    buffers = [value for f in fields(op) if isinstance(value := getattr(op, f.name), Buffer)]
    return Rows.LOGITS if isinstance(op, SelectLogitsRows) else buffers[0].rows


def written_by(op: Op | RowOp) -> tuple[Buffer, ...]:
    """The buffers an op writes."""
    match op:
        case KvWrite() | Tap() | Quantise() | Route() | DeltaRows():
            return ()
        case Rope() | ScaleCap():
            return (op.buffer,)
        case Combine():
            return (op.moe.out,)
        case _:
            return (op.out,)
