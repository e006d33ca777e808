"""The pieces that hybrids of gated delta nets and gated attention share, as ops of a program under construction.

recurrent layer   q, k, v = silu(short convolution of Wqkv x);  o = gated delta rule;  Wout (rms(o) * silu(Wz x))
attention layer   q, g per head = Wq x;  Wo (attention(q, k, v) * sigmoid(g))
"""

from __future__ import annotations

import numpy as np

from ..kernels.program import (
    Activation,
    Buffer,
    Gate,
    GatedDeltaNet,
    Linear,
    Partition,
    RecurrentGroup,
    RmsNorm,
    ShortConv,
    Weight,
)
from .checkpoint import Checkpoint
from .layers import Attention, Decoder

_MAX_KERNEL = 1 << 8
_MAX_HEADS = 1 << 12
_MAX_HEAD_DIM = 1 << 12


def read_recurrent_group(checkpoint: Checkpoint, num_layers: int) -> RecurrentGroup:
    """The sizes of the recurrent layers. Keys and values have heads of one size. Raises ModelFileError."""
    settings = checkpoint.settings
    dim = settings.int("ssm.state_size", low=1, high=_MAX_HEAD_DIM)
    key_heads = settings.int("ssm.group_count", low=1, high=_MAX_HEADS)
    value_heads = settings.int("ssm.time_step_rank", low=1, high=_MAX_HEADS)
    if value_heads % key_heads:
        raise settings.error("ssm.group_count", f"is {key_heads}, which does not divide {value_heads} value heads")
    inner = settings.int("ssm.inner_size")
    if inner != value_heads * dim:
        raise settings.error("ssm.inner_size", f"is {inner}, not {value_heads} heads of {dim}")
    kernel = settings.int("ssm.conv_kernel", low=2, high=_MAX_KERNEL)
    return RecurrentGroup("recurrent", num_layers, kernel, key_heads, value_heads, dim, dim)


def delta_layer(model: Decoder, block: str, group: RecurrentGroup, layer: int) -> Buffer:
    """The gated delta net of `normed`, as layer `layer` of its group, before the output projection."""
    checkpoint, width = model.checkpoint, group.value_heads * group.value_dim
    raw, mixed = model.buffer("mixed.raw", group.channels), model.buffer("mixed", group.channels)
    z, out = model.buffer("z", width), model.buffer("delta", width)
    alpha, beta = (model.buffer(name, group.value_heads) for name in ("alpha", "beta"))
    for name, into in (("attn_qkv", raw), ("attn_gate", z), ("ssm_alpha", alpha), ("ssm_beta", beta)):
        model.project(f"{block}.{name}", into, model.normed, partition=Partition.COLUMN)
    taps = checkpoint.weight(f"{block}.ssm_conv1d.weight", group.channels, group.kernel)
    rate = checkpoint.vector(f"{block}.ssm_a", group.value_heads)
    dt = checkpoint.vector(f"{block}.ssm_dt.bias", group.value_heads)
    norm = checkpoint.vector(f"{block}.ssm_norm.weight", group.value_dim)
    eps = model.config.norm_eps
    model.add(
        ShortConv(mixed, raw, taps, group, layer),
        GatedDeltaNet(out, mixed, alpha, beta, rate, dt, eps, group, layer),
        RmsNorm(out, out, norm, eps, group.value_heads),
        Gate(out, z, out, Activation.SILU),
    )
    return out


def gated_attention(model: Decoder, block: str, attention: Attention, layer: int) -> Buffer:
    """Attention of `normed` whose query projection also holds a gate: per head the rows of its query, then its gate."""
    config = model.config
    width = config.num_heads * config.key_dim
    query, gate = model.buffer("query", width), model.buffer("attention.gate", width)
    both = model.checkpoint.weight(f"{block}.attn_q.weight", 2 * width, config.hidden_size)
    for part, into in enumerate((query, gate)):
        weight = _rows_by_head(both, config.num_heads, part, f"{block}.attn_q.{('query', 'gate')[part]}.weight")
        model.add(Linear(into, model.normed, weight, partition=Partition.COLUMN))
    key = model.buffer("key", config.num_kv_heads * config.key_dim)
    value = model.buffer("value", config.num_kv_heads * config.value_dim)
    for name, into in (("attn_k", key), ("attn_v", value)):
        model.project(f"{block}.{name}", into, model.normed, partition=Partition.COLUMN)
    attended = model.attend(block, attention, layer, query, key, value)
    model.add(Gate(attended, gate, attended, Activation.SIGMOID))
    return attended


def _rows_by_head(weight: Weight, heads: int, part: int, name: str) -> Weight:
    """Of every head's rows the first half (`part` 0) or the second, copied."""
    rows, width = weight.shape
    half = rows // (2 * heads)
    data = weight.data.reshape(heads, 2, half * weight.row_bytes)[:, part]
    return Weight(name, weight.type, (heads * half, width), np.ascontiguousarray(data).reshape(-1))
