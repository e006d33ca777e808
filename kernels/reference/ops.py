"""What each op computes, as functions of torch float32 tensors. Knows no programs, steps or caches.

x is [rows, width] throughout. Formulas are those that kernels/program.py states beside each op.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from ..program import Activation, Gating, RopeLayout, RopeTable


def rms_norm(x: Tensor, weight: Tensor | None, eps: float, groups: int) -> Tensor:
    """Each of `groups` equal parts of a row by itself; all share `weight` [width / groups]."""
    parts = x.reshape(len(x), groups, -1)
    normed = parts * torch.rsqrt(parts.square().mean(-1, keepdim=True) + eps)
    if weight is not None:
        normed = normed * weight
    return normed.reshape(x.shape)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor | None) -> Tensor:
    """weight [out, in]; bias [out]; residual [rows, out]."""
    out = functional.linear(x, weight, bias)
    return out if residual is None else out + residual


def rope_angles(table: RopeTable, positions: NDArray[np.int32]) -> tuple[Tensor, Tensor]:
    """cos and sin, each [rows, 1, pairs], formed in float64."""
    angles = positions.astype(np.float64)[:, None, None] * np.array(table.inv_freq, np.float64)
    cos, sin = np.cos(angles) * table.magnitude, np.sin(angles) * table.magnitude
    return torch.as_tensor(cos.astype(np.float32)), torch.as_tensor(sin.astype(np.float32))


def rope(x: Tensor, heads: int, cos: Tensor, sin: Tensor, layout: RopeLayout) -> Tensor:
    """Rotates the first 2 * pairs dimensions of each head; the rest stay."""
    pairs = cos.shape[-1]
    out = x.reshape(len(x), heads, -1).clone()
    if layout is RopeLayout.NORM:
        first, second = slice(0, 2 * pairs, 2), slice(1, 2 * pairs, 2)
    else:
        first, second = slice(0, pairs), slice(pairs, 2 * pairs)
    a, b = out[..., first].clone(), out[..., second].clone()
    out[..., first] = a * cos - b * sin
    out[..., second] = a * sin + b * cos
    return out.reshape(x.shape)


@dataclass(frozen=True, slots=True)
class AttendShape:
    """What attention needs to know besides its tensors."""

    heads: int
    scale: float
    window: int | None
    softcap: float


def attend(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    first_query: int,
    first_key: int,
    shape: AttendShape,
    sinks: Tensor | None,
) -> Tensor:
    """One sequence. query [rows, heads * dim] at positions first_query, ...; keys and values
    [positions, kv heads, dim] from position first_key to the last query's. Returns [rows, heads * value dim]."""
    q = query.reshape(len(query), shape.heads, -1).transpose(0, 1)  # [heads, rows, dim]
    group = shape.heads // keys.shape[1]
    k = keys.transpose(0, 1).repeat_interleave(group, 0)  # [heads, positions, dim]
    v = values.transpose(0, 1).repeat_interleave(group, 0)
    scores = shape.scale * (q @ k.transpose(1, 2))  # [heads, rows, positions]
    if shape.softcap > 0:
        scores = shape.softcap * torch.tanh(scores / shape.softcap)
    i = torch.arange(first_query, first_query + len(query))[:, None]
    j = torch.arange(first_key, first_key + len(keys))
    visible = j <= i if shape.window is None else (j <= i) & (i - j < shape.window)
    scores = scores.masked_fill(~visible, -torch.inf)
    if sinks is not None:
        scores = torch.cat([scores, sinks[:, None, None].expand(-1, len(query), 1)], -1)
    weights = torch.softmax(scores, -1)[..., : len(keys)]
    return (weights @ v).transpose(0, 1).reshape(len(query), -1)


def gate(x: Tensor, up: Tensor, activation: Activation) -> Tensor:
    """activation(x) * up."""
    match activation:
        case Activation.SILU:
            return functional.silu(x) * up
        case Activation.GELU_TANH:
            return functional.gelu(x, approximate="tanh") * up
        case Activation.SIGMOID:
            return torch.sigmoid(x) * up


@dataclass(frozen=True, slots=True)
class Routing:
    """How router logits become the chosen experts and their weights."""

    top_k: int
    gating: Gating
    renormalise: bool
    scale: float


def route(logits: Tensor, routing: Routing, selection_bias: Tensor | None) -> Tensor:
    """Expert weights [rows, experts], zero where not chosen; and NaN nowhere unless the logits are."""
    scores = torch.softmax(logits, -1) if routing.gating is Gating.SOFTMAX else torch.sigmoid(logits)
    ranking = scores if selection_bias is None else scores + selection_bias
    chosen = torch.sort(ranking, dim=-1, descending=True, stable=True).indices[:, : routing.top_k]
    weights = torch.gather(scores, 1, chosen)
    if routing.renormalise:
        weights = weights / weights.sum(-1, keepdim=True).clamp(min=2.0**-14)
    return torch.zeros_like(scores).scatter(1, chosen, weights * routing.scale)


def moe(x: Tensor, weights: Tensor, gates: Tensor, ups: Tensor, downs: Tensor, activation: Activation) -> Tensor:
    """Sum over experts in ascending order; a row takes part in those whose weight [rows, experts] is not zero."""
    out = torch.zeros(len(x), downs.shape[1])
    for expert in range(len(downs)):
        rows = torch.nonzero(weights[:, expert])[:, 0]
        if len(rows):
            hidden = gate(x[rows] @ gates[expert].T, x[rows] @ ups[expert].T, activation)
            out[rows] += weights[rows, expert, None] * (hidden @ downs[expert].T)
    return out


def scale_cap(x: Tensor, scale: float, softcap: float) -> Tensor:
    """softcap * tanh(scale * x / softcap); softcap 0 means none."""
    x = scale * x
    return softcap * torch.tanh(x / softcap) if softcap > 0 else x


def short_conv(rows: Tensor, weight: Tensor) -> Tensor:
    """rows [kernel - 1 + n, channels] -> [n, channels]; weight [channels, kernel]."""
    kernel = weight.shape[1]
    count = len(rows) - kernel + 1
    return functional.silu(sum((rows[j : j + count] * weight[:, j] for j in range(kernel)), torch.zeros(())))


def delta_gates(alpha: Tensor, beta: Tensor, rate: Tensor, dt: Tensor) -> tuple[Tensor, Tensor]:
    """decay and strength, each as alpha and beta [rows, value heads]."""
    return torch.exp(rate * functional.softplus(alpha + dt)), torch.sigmoid(beta)


def unit(x: Tensor, heads: int, eps: float) -> Tensor:
    """[rows, heads * dim] -> [rows, heads, dim], each of length 1 (shorter where it was shorter than eps)."""
    parts = x.reshape(len(x), heads, -1)
    return parts / parts.square().sum(-1, keepdim=True).sqrt().clamp(min=eps)


def delta_update(state: Tensor, key: Tensor, value: Tensor, decay: Tensor, strength: Tensor) -> Tensor:
    """One position: state [value heads, key dim, value dim], key and value by value head, the others [value heads]."""
    state = decay[:, None, None] * state
    delta = strength[:, None] * (value - torch.einsum("hkv,hk->hv", state, key))
    return state + key[:, :, None] * delta[:, None, :]
