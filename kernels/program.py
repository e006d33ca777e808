"""Programs: a model's forward pass, described once, as a flat list of coarse ops over named row buffers.

A program knows weights, buffers and KV groups; it does not know requests, blocks or how an executor runs it. Executors
in `kernels/reference` and `kernels/cpu` run the same program. Every buffer is float32, one row per input row of a step
(or per row that wants logits); an op reads and writes whole rows, so a row never sees another row except through the
KV cache or its sequence's recurrent state.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from .formats import WeightType

BLOCK = 32  # positions per KV block: the unit of paging, hashing and attention tiles


@dataclass(frozen=True, eq=False)
class Weight:
    """A stored tensor. `shape` is numpy order: (out, in), (experts, out, in) or (n,); `data` is its raw bytes.

    Identity matters: an executor packs one Weight object once, however many ops or programs use it.
    """

    name: str
    type: WeightType
    shape: tuple[int, ...]
    data: NDArray[np.uint8]

    @property
    def row_bytes(self) -> int:
        """Bytes of one row of `in` values."""
        return self.type.row_bytes(self.shape[-1])

    def rows(self, start: int, stop: int, name: str) -> Weight:
        """The output rows [start, stop) of a matrix as a weight of its own (fused q/k/v tensors)."""
        if len(self.shape) != 2 or not 0 <= start < stop <= self.shape[0]:
            raise ValueError(f"{self.name}: no rows {start}:{stop} in shape {self.shape}")
        data = self.data[start * self.row_bytes : stop * self.row_bytes]
        return Weight(name, self.type, (stop - start, self.shape[1]), data)


class Rows(Enum):
    """Which rows of a step a buffer has: all of them, or only those that want logits."""

    ALL = "all"
    LOGITS = "logits"


@dataclass(frozen=True, eq=False)
class Buffer:
    """A float32 row buffer, [rows, width]."""

    name: str
    width: int
    rows: Rows = Rows.ALL


class Partition(Enum):
    """How tensor parallelism splits a linear op: by output, by input (followed by an all-reduce), or not at all."""

    REPLICATE = "replicate"
    COLUMN = "column"
    ROW = "row"


class RopeLayout(Enum):
    """Pairs that rotate together: NORM (2i, 2i+1), NEOX (i, i + n_rot/2)."""

    NORM = "norm"
    NEOX = "neox"


class Activation(Enum):
    """Gate functions: act(gate) * up. GELU is the tanh form."""

    SILU = "silu"
    GELU_TANH = "gelu_tanh"
    SIGMOID = "sigmoid"


class Gating(Enum):
    """How router logits become expert scores."""

    SOFTMAX = "softmax"
    SIGMOID = "sigmoid"


@dataclass(frozen=True, eq=False)
class KvGroup:
    """Layers that share block tables. A position stores `kv_heads` x (`key_dim` + `value_dim`) values per layer.

    `window`: a position older than this is never read again (None: every position stays visible).
    """

    name: str
    num_layers: int
    kv_heads: int
    key_dim: int
    value_dim: int
    window: int | None = None


@dataclass(frozen=True, eq=False)
class RecurrentGroup:
    """Layers that carry a state from position to position instead of keeping every position.

    A sequence's state, per layer: the last `kernel - 1` rows of `channels` values before its convolution, and for each
    value head a matrix of key_dim x value_dim. All of it is float32.
    """

    name: str
    num_layers: int
    kernel: int
    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int

    @property
    def channels(self) -> int:
        """Queries and keys of all key heads, then values of all value heads."""
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim

    @property
    def state_bytes(self) -> int:
        """Bytes of a sequence's state, over all layers."""
        history = (self.kernel - 1) * self.channels
        return 4 * self.num_layers * (history + self.value_heads * self.key_dim * self.value_dim)


@dataclass(frozen=True, eq=False)
class RopeTable:
    """Angles of pair i at position p: p * inv_freq[i] radians; cos and sin are both multiplied by `magnitude`.

    Angles are formed in float64 and reduced before sin/cos, so position 100,000 is as exact as position 1.
    """

    name: str
    inv_freq: tuple[float, ...]
    magnitude: float = 1.0

    @property
    def num_rotated(self) -> int:
        """Dimensions of a head that rotate (the first ones)."""
        return 2 * len(self.inv_freq)


# --- ops -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Embed:
    """out = scale * table[token id]."""

    out: Buffer
    table: Weight
    scale: float = 1.0


@dataclass(frozen=True, eq=False)
class RmsNorm:
    """out = src / sqrt(mean(src^2) + eps) * weight, over each of `groups` equal parts of the row (heads) separately.

    `weight` has width/groups entries and is shared by the groups; None means no weight. out may be src.
    """

    out: Buffer
    src: Buffer
    weight: Weight | None
    eps: float
    groups: int = 1


@dataclass(frozen=True, eq=False)
class Linear:
    """out = weight @ src + bias + residual. `residual` may be `out` itself (then this accumulates into it)."""

    out: Buffer
    src: Buffer
    weight: Weight
    bias: Weight | None = None
    residual: Buffer | None = None
    partition: Partition = Partition.REPLICATE


@dataclass(frozen=True, eq=False)
class Add:
    """out = a + b. out may be a or b."""

    out: Buffer
    a: Buffer
    b: Buffer


@dataclass(frozen=True, eq=False)
class Rope:
    """Rotates, in place, the first `table.num_rotated` dimensions of each head of `buffer` by the row's position."""

    buffer: Buffer
    heads: int
    table: RopeTable
    layout: RopeLayout


@dataclass(frozen=True, eq=False)
class KvWrite:
    """Stores each row's key and value at the row's position, in the cache's format."""

    key: Buffer
    value: Buffer
    group: KvGroup
    layer: int  # index within the group


@dataclass(frozen=True, eq=False)
class Attend:
    """out = softmax(softcap(scale * q k^T) + mask) v per head, causal, reading keys and values from the cache only.

    Query head h reads KV head h // (heads / kv_heads). `window` W: key j is visible to query i iff 0 <= i - j < W.
    `softcap` c > 0: scores become c * tanh(score / c). `sinks`: one extra logit per head in the denominator, no value.
    """

    out: Buffer
    query: Buffer
    group: KvGroup
    layer: int
    heads: int
    scale: float
    window: int | None = None
    softcap: float = 0.0
    sinks: Weight | None = None


@dataclass(frozen=True, eq=False)
class ShortConv:
    """out[p] = silu(sum over j of weight[:, j] * src[p - kernel + 1 + j]) per channel; rows before position 0 are zero.

    `weight` is (channels, kernel). The sum runs in ascending j. Earlier positions come from the sequence's state.
    """

    out: Buffer
    src: Buffer
    weight: Weight
    group: RecurrentGroup
    layer: int  # index within the group


@dataclass(frozen=True, eq=False)
class GatedDeltaNet:
    """A linear attention that forgets by a gate and corrects what it holds (arXiv 2412.06464). Per position and value
    head, with the key head `value head mod key_heads`, over the head's state S (key_dim x value_dim), zero at first:

        q, k, v = parts of mixed;  q <- q / max(|q|, eps) / sqrt(key_dim);  k <- k / max(|k|, eps)
        decay = exp(rate * softplus(alpha + dt));  strength = sigmoid(beta)
        delta = strength * (v - decay * S^T k);  S <- decay * S + k delta^T;  out = S^T q

    `mixed` is [queries | keys | values], `alpha` and `beta` have one value per value head, as `rate` and `dt`.
    """

    out: Buffer
    mixed: Buffer
    alpha: Buffer
    beta: Buffer
    rate: Weight
    dt: Weight
    eps: float
    group: RecurrentGroup
    layer: int  # index within the group


@dataclass(frozen=True, eq=False)
class Gate:
    """out = activation(gate) * up. out may be gate or up."""

    out: Buffer
    gate: Buffer
    up: Buffer
    activation: Activation


@dataclass(frozen=True, eq=False)
class Moe:
    """Routed experts: out = sum over the chosen of w_e * down_e(act(gate_e x) * up_e x), summed in ascending expert id.

    Scores are gating(logits) over all experts; the `top_k` best are chosen (ties to the lower id; `selection_bias` is
    added for choosing only); weights are their scores, divided by max(sum, 2^-14) when `renormalise`, times `scale`.
    """

    out: Buffer
    src: Buffer
    router_logits: Buffer
    gate: Weight  # (experts, hidden, in)
    up: Weight  # (experts, hidden, in)
    down: Weight  # (experts, out, hidden)
    top_k: int
    gating: Gating = Gating.SOFTMAX
    renormalise: bool = True
    scale: float = 1.0
    selection_bias: Weight | None = None
    activation: Activation = Activation.SILU
    residual: Buffer | None = None


@dataclass(frozen=True, eq=False)
class SelectLogitsRows:
    """Copies the rows that want logits into a buffer of `Rows.LOGITS`; what follows runs on those rows only."""

    out: Buffer
    src: Buffer


@dataclass(frozen=True, eq=False)
class ScaleCap:
    """buffer = softcap(scale * buffer), in place; softcap 0 means none."""

    buffer: Buffer
    scale: float = 1.0
    softcap: float = 0.0


@dataclass(frozen=True, eq=False)
class Tap:
    """Names the present content of a buffer as an output. Copied only in a step that asks for `name`."""

    name: str
    src: Buffer


Op = (
    Embed
    | RmsNorm
    | Linear
    | Add
    | Rope
    | KvWrite
    | Attend
    | ShortConv
    | GatedDeltaNet
    | Gate
    | Moe
    | SelectLogitsRows
    | ScaleCap
    | Tap
)


@dataclass(frozen=True, eq=False)
class Program:
    """A forward pass. `logits` is the buffer (Rows.LOGITS, width = vocabulary) that sampling reads.

    `inputs` are buffers that the caller fills before the first op (hidden rows of another program). A KV group that
    another program owns is bound by handing the same KvGroup object, and its pool, to both.
    """

    name: str
    ops: tuple[Op, ...]
    logits: Buffer
    kv_groups: tuple[KvGroup, ...]
    inputs: tuple[Buffer, ...] = ()
    recurrent: RecurrentGroup | None = None

    @property
    def vocab_size(self) -> int:
        """Width of a logits row."""
        return self.logits.width

    @property
    def tap_names(self) -> tuple[str, ...]:
        """Names a step may ask for, in program order."""
        return tuple(op.name for op in self.ops if isinstance(op, Tap))
