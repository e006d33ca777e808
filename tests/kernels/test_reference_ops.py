"""The reference ops against their formulas, written out again in float64 loops over single numbers."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from surefoot.kernels.program import Activation, Gating, RopeLayout, RopeTable
from surefoot.kernels.reference import ops

RNG = np.random.default_rng(0)


def tensor(*shape: int, scale: float = 1.0) -> torch.Tensor:
    return torch.as_tensor((RNG.standard_normal(shape) * scale).astype(np.float32))


def close(got: torch.Tensor, want: np.ndarray | list[list[float]], tolerance: float = 2e-6) -> None:
    np.testing.assert_allclose(got.numpy(), np.array(want), atol=tolerance, rtol=tolerance)


def test_rms_norm_of_each_group() -> None:
    x, weight = tensor(2, 12), tensor(4)
    want = np.zeros((2, 12))
    for r in range(2):
        for g in range(3):
            part = [float(v) for v in x[r, 4 * g : 4 * g + 4]]
            root = math.sqrt(sum(v * v for v in part) / 4 + 1e-3)
            want[r, 4 * g : 4 * g + 4] = [v / root * float(w) for v, w in zip(part, weight, strict=True)]
    close(ops.rms_norm(x, weight, 1e-3, 3), want)
    close(ops.rms_norm(x, None, 1e-3, 3), want / np.tile(weight.numpy(), 3))


def test_linear_adds_bias_and_residual() -> None:
    x, weight, bias, residual = tensor(3, 5), tensor(4, 5), tensor(4), tensor(3, 4)
    want = [
        [
            sum(float(x[r, i]) * float(weight[o, i]) for i in range(5)) + float(bias[o]) + float(residual[r, o])
            for o in range(4)
        ]
        for r in range(3)
    ]
    close(ops.linear(x, weight, bias, residual), want)
    close(ops.linear(x, weight, None, None), np.array(want) - bias.numpy() - residual.numpy())


@pytest.mark.parametrize("layout", list(RopeLayout))
def test_rope_turns_pairs_and_leaves_the_rest(layout: RopeLayout) -> None:
    heads, dim, positions = 2, 10, np.array([0, 3, 100_000], np.int32)
    table = RopeTable("t", (1.0, 0.37, 0.01), magnitude=1.2)
    x = tensor(3, heads * dim)
    want = x.numpy().astype(np.float64).copy()
    for r, position in enumerate(positions):
        for h in range(heads):
            for i, frequency in enumerate(table.inv_freq):
                a, b = (2 * i, 2 * i + 1) if layout is RopeLayout.NORM else (i, i + 3)
                a, b = h * dim + a, h * dim + b
                cos, sin = (1.2 * f(float(position) * frequency) for f in (math.cos, math.sin))
                want[r, a] = float(x[r, a]) * cos - float(x[r, b]) * sin
                want[r, b] = float(x[r, a]) * sin + float(x[r, b]) * cos
    close(ops.rope(x, heads, *ops.rope_angles(table, positions), layout), want)


@pytest.mark.parametrize("window", [None, 1, 4])
@pytest.mark.parametrize("softcap", [0.0, 2.5])
@pytest.mark.parametrize("with_sinks", [False, True])
def test_attention_is_a_softmax_over_visible_keys(window: int | None, softcap: float, with_sinks: bool) -> None:
    heads, kv_heads, dim, value_dim, scale = 4, 2, 3, 5, 0.7
    first_query, first_key, rows = 6, 0 if window is None else max(0, 7 - window), 3
    positions = first_query + rows - first_key
    query, keys, values = (
        tensor(rows, heads * dim),
        tensor(positions, kv_heads, dim),
        tensor(positions, kv_heads, value_dim),
    )
    sinks = tensor(heads) if with_sinks else None
    want = np.zeros((rows, heads * value_dim))
    for r in range(rows):
        for h in range(heads):
            kv, logits = h // 2, {}
            for j in range(positions):
                distance = first_query + r - (first_key + j)
                if distance >= 0 and (window is None or distance < window):
                    score = scale * sum(float(query[r, h * dim + d]) * float(keys[j, kv, d]) for d in range(dim))
                    logits[j] = softcap * math.tanh(score / softcap) if softcap else score
            total = sum(map(math.exp, logits.values())) + (math.exp(float(sinks[h])) if sinks is not None else 0)
            for j, score in logits.items():
                for d in range(value_dim):
                    want[r, h * value_dim + d] += math.exp(score) / total * float(values[j, kv, d])
    shape = ops.AttendShape(heads, scale, window, softcap)
    close(ops.attend(query, keys, values, first_query, first_key, shape, sinks), want, 5e-6)


@pytest.mark.parametrize("activation", list(Activation))
def test_gates(activation: Activation) -> None:
    x, up = tensor(2, 50, scale=3), tensor(2, 50)

    def act(v: float) -> float:
        if activation is Activation.SILU:
            return v / (1 + math.exp(-v))
        if activation is Activation.SIGMOID:
            return 1 / (1 + math.exp(-v))
        return 0.5 * v * (1 + math.tanh(math.sqrt(2 / math.pi) * (v + 0.044715 * v**3)))

    want = [[act(float(x[r, i])) * float(up[r, i]) for i in range(50)] for r in range(2)]
    close(ops.gate(x, up, activation), want)


@pytest.mark.parametrize("gating", list(Gating))
@pytest.mark.parametrize("renormalise", [False, True])
@pytest.mark.parametrize("with_bias", [False, True])
def test_routing(gating: Gating, renormalise: bool, with_bias: bool) -> None:
    logits = tensor(20, 6, scale=2)
    bias = tensor(6) if with_bias else None
    got = ops.route(logits, ops.Routing(2, gating, renormalise, 1.5), bias)
    for r in range(20):
        row = [float(v) for v in logits[r]]
        if gating is Gating.SOFTMAX:
            scores = [math.exp(v) / sum(map(math.exp, row)) for v in row]
        else:
            scores = [1 / (1 + math.exp(-v)) for v in row]
        ranked = sorted(range(6), key=lambda e: -(scores[e] + (float(bias[e]) if bias is not None else 0)))
        chosen = ranked[:2]
        total = max(sum(scores[e] for e in chosen), 2**-14) if renormalise else 1.0
        close(got[r : r + 1], [[scores[e] / total * 1.5 if e in chosen else 0.0 for e in range(6)]])


def test_routing_ties_go_to_the_lower_expert_and_small_sums_are_bounded() -> None:
    tied = ops.route(torch.tensor([[1.0, 3.0, 3.0, 3.0]]), ops.Routing(2, Gating.SOFTMAX, True, 1.0), None)
    assert tied[0].tolist() == [0.0, 0.5, 0.5, 0.0]
    faint = ops.route(torch.full((1, 4), -20.0), ops.Routing(2, Gating.SIGMOID, True, 1.0), None)
    close(faint, [[1 / (1 + math.exp(20)) * 2**14] * 2 + [0.0] * 2], 1e-7)


def test_experts_are_weighted_and_summed() -> None:
    x, gates, ups, downs = tensor(5, 4), tensor(3, 6, 4), tensor(3, 6, 4), tensor(3, 2, 6)
    weights = torch.tensor([[0.5, 0.0, 0.5], [0, 1, 0], [0.2, 0.3, 0.5], [0, 0, 0], [0, 0, 2.0]])
    want = np.zeros((5, 2))
    for r in range(5):
        for e in range(3):
            g, u = gates[e].numpy() @ x[r].numpy(), ups[e].numpy() @ x[r].numpy()
            want[r] += float(weights[r, e]) * (downs[e].numpy() @ (g / (1 + np.exp(-g)) * u))
    close(ops.moe(x, weights, gates, ups, downs, Activation.SILU), want, 1e-5)


def test_scale_and_cap() -> None:
    x = tensor(1, 8, scale=20)
    close(ops.scale_cap(x, 0.5, 0.0), 0.5 * x.numpy())
    close(ops.scale_cap(x, 0.5, 6.0), 6 * np.tanh(0.5 * x.numpy().astype(np.float64) / 6))


def test_short_convolution() -> None:
    rows, weight = tensor(3 + 5, 6), tensor(6, 4)  # three rows before the five
    want = np.zeros((5, 6))
    for r in range(5):
        for c in range(6):
            total = sum(float(weight[c, j]) * float(rows[r + j, c]) for j in range(4))
            want[r, c] = total / (1 + math.exp(-total))
    close(ops.short_conv(rows, weight), want)


def test_unit_vectors() -> None:
    x = tensor(2, 6)
    x[1, 3:] = 0.0
    want = np.zeros((2, 2, 3))
    for r in range(2):
        for h in range(2):
            part = [float(v) for v in x[r, 3 * h : 3 * h + 3]]
            want[r, h] = [v / max(math.sqrt(sum(v * v for v in part)), 1e-3) for v in part]
    close(ops.unit(x, 2, 1e-3), want)  # type: ignore[arg-type]


def test_gates_of_the_delta_rule() -> None:
    alpha, beta, dt = tensor(3, 4, scale=5), tensor(3, 4), tensor(4)
    rate = -tensor(4).abs()
    decay, strength = ops.delta_gates(alpha, beta, rate, dt)
    want = np.zeros((2, 3, 4))
    for r in range(3):
        for h in range(4):
            want[0, r, h] = math.exp(float(rate[h]) * math.log1p(math.exp(float(alpha[r, h]) + float(dt[h]))))
            want[1, r, h] = 1 / (1 + math.exp(-float(beta[r, h])))
    close(decay, want[0])
    close(strength, want[1])


def test_delta_rule() -> None:
    """S <- decay S + k delta^T with delta = strength (v - decay S^T k)."""
    heads, keys, values = 2, 3, 4
    state, key, value = tensor(heads, keys, values), tensor(heads, keys), tensor(heads, values)
    decay, strength = tensor(heads).sigmoid(), tensor(heads).sigmoid()
    want = np.zeros((heads, keys, values))
    for h in range(heads):
        for j in range(values):
            held = sum(float(decay[h]) * float(state[h, i, j]) * float(key[h, i]) for i in range(keys))
            delta = float(strength[h]) * (float(value[h, j]) - held)
            for i in range(keys):
                want[h, i, j] = float(decay[h]) * float(state[h, i, j]) + float(key[h, i]) * delta
    close(ops.delta_update(state, key, value, decay, strength), want)  # type: ignore[arg-type]
