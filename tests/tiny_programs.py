"""Tiny random programs that use what real ones use: every op, GQA ratios, windows, sinks, soft-caps, odd head sizes."""

from __future__ import annotations

from dataclasses import dataclass, field

import gguf
import numpy as np

from surefoot.kernels.formats import WeightType
from surefoot.kernels.program import (
    Activation,
    Add,
    Attend,
    Buffer,
    Embed,
    Gate,
    GatedDeltaNet,
    Gating,
    KvGroup,
    KvWrite,
    Linear,
    Moe,
    Op,
    Program,
    RecurrentGroup,
    RmsNorm,
    Rope,
    RopeLayout,
    RopeTable,
    Rows,
    ScaleCap,
    SelectLogitsRows,
    ShortConv,
    Tap,
    Weight,
)

VOCABULARY = 96
HIDDEN = 64


@dataclass(frozen=True)
class Shape:
    """What varies between tiny programs."""

    heads: int = 4
    kv_heads: int = 2
    key_dim: int = 32
    value_dim: int = 32
    window: int | None = None  # of every second layer
    softcap: float = 0.0
    sinks: bool = False
    bias: bool = False
    head_norms: bool = False
    layout: RopeLayout = RopeLayout.NEOX
    rotated: int | None = None  # dimensions of a head; None: all
    activation: Activation = Activation.SILU
    experts: int = 0
    gating: Gating = Gating.SOFTMAX
    weights: WeightType = WeightType.F32
    post_norms: bool = False
    final_cap: float = 0.0
    layers: int = 2
    recurrent: RecurrentGroup | None = None  # of every second layer, from the first on


SHAPES: dict[str, Shape] = {
    "grouped": Shape(layout=RopeLayout.NORM, weights=WeightType.Q8_0),
    "biased": Shape(heads=6, kv_heads=2, bias=True, weights=WeightType.F16, rotated=16),
    "windowed": Shape(
        heads=4,
        kv_heads=1,
        key_dim=24,
        value_dim=40,
        window=37,
        softcap=20.0,
        sinks=True,
        head_norms=True,
        activation=Activation.GELU_TANH,
        post_norms=True,
        final_cap=15.0,
        weights=WeightType.Q4_0,
    ),
    "many_heads": Shape(heads=18, kv_heads=2, key_dim=8, value_dim=16, weights=WeightType.BF16),
    "wide_heads": Shape(heads=2, kv_heads=2, key_dim=64, value_dim=96, weights=WeightType.Q5_1),
    "experts": Shape(experts=6, weights=WeightType.Q8_0),
    "recurrent": Shape(
        recurrent=RecurrentGroup("recurrent", 2, 4, 2, 6, 24, 80), layers=4, activation=Activation.SIGMOID
    ),
    "odd_recurrent": Shape(recurrent=RecurrentGroup("recurrent", 1, 3, 1, 4, 9, 16), weights=WeightType.Q8_0),
    "sigmoid_experts": Shape(experts=5, gating=Gating.SIGMOID, weights=WeightType.F32),
}


@dataclass
class _Builder:
    shape: Shape
    rng: np.random.Generator
    ops: list[Op] = field(default_factory=list)
    count: int = 0

    def weight(self, *shape: int, kind: WeightType | None = None, scale: float | None = None) -> Weight:
        """Random values in the shape's format; vectors are float32."""
        self.count += 1
        stored = kind or (self.shape.weights if len(shape) > 1 else WeightType.F32)
        values = self.rng.standard_normal(shape).astype(np.float32)
        values *= np.float32(values.shape[-1] ** -0.5 if scale is None else scale)
        data = gguf.quantize(values, gguf.GGMLQuantizationType(stored.type_id))
        return Weight(f"tiny.{self.count}.weight", stored, shape, np.ascontiguousarray(data).view(np.uint8).reshape(-1))

    def norm(self, out: Buffer, src: Buffer, width: int, groups: int = 1) -> None:
        values = (1 + 0.2 * self.rng.standard_normal(width)).astype(np.float32)
        self.count += 1
        weight = Weight(f"tiny.{self.count}.weight", WeightType.F32, (width,), values.view(np.uint8))
        self.ops.append(RmsNorm(out, src, weight, 1e-6, groups))

    def linear(self, out: Buffer, src: Buffer, residual: Buffer | None = None, bias: bool = False) -> None:
        vector = self.weight(out.width, scale=0.3) if bias else None
        self.ops.append(Linear(out, src, self.weight(out.width, src.width), vector, residual))


def tiny_program(shape: Shape, seed: int = 0) -> Program:
    """A decoder of `shape.layers` layers; windowed layers are a KV group of their own."""
    b = _Builder(shape, np.random.default_rng(seed))
    full = KvGroup("full", shape.layers, shape.kv_heads, shape.key_dim, shape.value_dim)
    near = KvGroup("near", shape.layers, shape.kv_heads, shape.key_dim, shape.value_dim, shape.window)
    table = b.weight(VOCABULARY, HIDDEN, scale=1.0)
    pairs = (shape.rotated or shape.key_dim) // 2
    rope = RopeTable("rope", tuple(float(10_000.0 ** (-i / pairs)) for i in range(pairs)), 1.05)
    residual, normed = Buffer("residual", HIDDEN), Buffer("normed", HIDDEN)
    b.ops.append(Embed(residual, table, 1.25))
    for layer in range(shape.layers):
        b.ops.append(Tap(f"residual.{layer}", residual))
        if shape.recurrent is not None and layer % 2 == 0:
            _delta(b, residual, normed, shape.recurrent, layer // 2)
        else:
            _attention(b, residual, normed, near if shape.window and layer % 2 == 0 else full, layer, rope)
        _feed_forward(b, residual, normed)
    last, logits = Buffer("last", HIDDEN, Rows.LOGITS), Buffer("logits", VOCABULARY, Rows.LOGITS)
    b.ops.append(SelectLogitsRows(last, residual))
    b.norm(last, last, HIDDEN)
    b.ops += [Tap("final", last), Linear(logits, last, table), ScaleCap(logits, 0.5, shape.final_cap)]
    groups = (full, near) if shape.window else (full,)
    return Program("tiny", tuple(b.ops), logits, groups, recurrent=shape.recurrent)


def _delta(b: _Builder, residual: Buffer, normed: Buffer, group: RecurrentGroup, layer: int) -> None:
    b.norm(normed, residual, HIDDEN)
    raw, mixed = Buffer("raw", group.channels), Buffer("mixed", group.channels)
    alpha, beta = Buffer("alpha", group.value_heads), Buffer("beta", group.value_heads)
    out = Buffer("out", group.value_heads * group.value_dim)
    for buffer in (raw, alpha, beta):
        b.linear(buffer, normed)
    b.ops.append(ShortConv(mixed, raw, b.weight(group.channels, group.kernel, kind=WeightType.F32), group, layer))
    b.count += 1
    rate = -np.exp(b.rng.standard_normal(group.value_heads)).astype(np.float32)
    decay = Weight(f"tiny.{b.count}.weight", WeightType.F32, (group.value_heads,), rate.view(np.uint8))
    dt = b.weight(group.value_heads, scale=1.0)
    b.ops.append(GatedDeltaNet(out, mixed, alpha, beta, decay, dt, 1e-6, group, layer))
    b.norm(out, out, group.value_dim, group.value_heads)
    _into_residual(b, residual, normed, out)


def _attention(b: _Builder, residual: Buffer, normed: Buffer, group: KvGroup, layer: int, rope: RopeTable) -> None:
    s = b.shape
    query, key = Buffer("query", s.heads * s.key_dim), Buffer("key", s.kv_heads * s.key_dim)
    value, attended = Buffer("value", s.kv_heads * s.value_dim), Buffer("attended", s.heads * s.value_dim)
    b.norm(normed, residual, HIDDEN)
    for out in (query, key, value):
        b.linear(out, normed, bias=s.bias)
    for buffer, heads in ((query, s.heads), (key, s.kv_heads)):
        if s.head_norms:
            b.norm(buffer, buffer, s.key_dim, heads)
        b.ops.append(Rope(buffer, heads, rope, s.layout))
    sinks = b.weight(s.heads, scale=1.0) if s.sinks else None
    b.ops.append(KvWrite(key, value, group, layer))
    b.ops.append(Attend(attended, query, group, layer, s.heads, s.key_dim**-0.5, group.window, s.softcap, sinks))
    _into_residual(b, residual, normed, attended)


def _into_residual(b: _Builder, residual: Buffer, normed: Buffer, src: Buffer) -> None:
    if b.shape.post_norms:
        b.linear(normed, src)
        b.norm(normed, normed, HIDDEN)
        b.ops.append(Add(residual, residual, normed))
    else:
        b.linear(residual, src, residual)


def _feed_forward(b: _Builder, residual: Buffer, normed: Buffer) -> None:
    s, width = b.shape, 96
    b.norm(normed, residual, HIDDEN)
    if s.experts:
        router = Buffer("router", s.experts)
        b.ops.append(Linear(router, normed, b.weight(s.experts, HIDDEN, kind=WeightType.F32, scale=0.5)))
        gate, up = (b.weight(s.experts, width, HIDDEN) for _ in range(2))
        bias = b.weight(s.experts, scale=0.2) if s.gating is Gating.SIGMOID else None
        down = b.weight(s.experts, HIDDEN, width)
        rest = (s.gating, s.gating is Gating.SOFTMAX, 1.5, bias, s.activation, residual)
        b.ops.append(Moe(residual, normed, router, gate, up, down, 2, *rest))
        return
    gate, up = Buffer("gate", width), Buffer("up", width)
    for out in (gate, up):
        b.linear(out, normed, bias=s.bias)
    b.ops.append(Gate(gate, gate, up, s.activation))
    _into_residual(b, residual, normed, gate)
