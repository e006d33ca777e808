"""The pieces that dense decoder-only transformers share, as ops of a program under construction.

A `Decoder` holds the ops so far and the row buffers they share; an architecture's file says which pieces a layer has,
in which order, under which tensor names. It knows no executor.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import numpy as np

from ..kernels.program import (
    Activation,
    Add,
    Attend,
    Buffer,
    Embed,
    Gate,
    Gating,
    KvGroup,
    KvWrite,
    Linear,
    Moe,
    Op,
    Partition,
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
from .checkpoint import Checkpoint, float_values, float_weight
from .config import Definition, ModelConfig


class Bias(Enum):
    """Whether a projection has a bias."""

    NEVER = "never"
    OPTIONAL = "optional"
    REQUIRED = "required"


@dataclass(frozen=True, eq=False, slots=True)
class Attention:
    """What layers with the same kind of attention share. The window is the group's."""

    group: KvGroup
    rope: RopeTable | None
    layout: RopeLayout
    scale: float
    softcap: float = 0.0
    head_norms: bool = False  # RMS norm of each query and key head before rope
    bias: Bias = Bias.NEVER  # of query, key and value


class Decoder:
    """A transformer under construction. `residual` is the stream between layers, `normed` the last norm of it."""

    def __init__(self, checkpoint: Checkpoint, config: ModelConfig) -> None:
        self.checkpoint = checkpoint
        self.config = config
        self._ops: list[Op] = []
        self._buffers: dict[tuple[str, int], Buffer] = {}
        self.residual = self.buffer("residual", config.hidden_size)
        self.normed = self.buffer("normed", config.hidden_size)

    def add(self, *ops: Op) -> None:
        """Appends ops."""
        self._ops += ops

    def buffer(self, name: str, width: int, rows: Rows = Rows.ALL) -> Buffer:
        """The buffer of this name and width; layers that ask for the same one share it."""
        return self._buffers.setdefault((name, width), Buffer(name, width, rows))

    def embed(self, scale: float = 1.0) -> None:
        """residual = scale * token embedding."""
        self.add(Embed(self.residual, self._embedding(), scale))

    def begin_layer(self, layer: int) -> None:
        """Names the residual that enters a layer."""
        self.add(Tap(f"residual.{layer}", self.residual))

    def norm(self, name: str, out: Buffer | None = None, src: Buffer | None = None) -> None:
        """out = RMS norm of src with the weight `name`; by default of the residual into `normed`."""
        out, src = out or self.normed, src or self.residual
        self.add(RmsNorm(out, src, self.checkpoint.vector(f"{name}.weight", src.width), self.config.norm_eps))

    def project(
        self,
        name: str,
        out: Buffer,
        src: Buffer,
        *,
        bias: Bias = Bias.NEVER,
        partition: Partition = Partition.REPLICATE,
    ) -> None:
        """out = W src (+ bias); a projection into the residual adds to it."""
        weight = self.checkpoint.weight(f"{name}.weight", out.width, src.width)
        residual = out if out is self.residual else None
        self.add(Linear(out, src, weight, self._bias(name, out.width, bias), residual, partition))

    def add_to_residual(self, src: Buffer) -> None:
        """residual += src."""
        self.add(Add(self.residual, self.residual, src))

    def attention(self, block: str, attention: Attention, layer: int) -> Buffer:
        """Attention of `normed`, as layer `layer` of its group, before the output projection: [heads * value_dim]."""
        config = self.config
        query = self.buffer("query", config.num_heads * config.key_dim)
        key = self.buffer("key", config.num_kv_heads * config.key_dim)
        value = self.buffer("value", config.num_kv_heads * config.value_dim)
        self._query_key_value(block, attention.bias, query, key, value)
        return self.attend(block, attention, layer, query, key, value)

    def attend(self, block: str, attention: Attention, layer: int, query: Buffer, key: Buffer, value: Buffer) -> Buffer:
        """Head norms and rope, then attention over what the cache holds with these rows in it."""
        config = self.config
        attended = self.buffer("attended", config.num_heads * config.value_dim)
        for buffer, heads, name in ((query, config.num_heads, "attn_q"), (key, config.num_kv_heads, "attn_k")):
            if attention.head_norms:
                weight = self.checkpoint.vector(f"{block}.{name}_norm.weight", config.key_dim)
                self.add(RmsNorm(buffer, buffer, weight, config.norm_eps, heads))
            if attention.rope is not None:
                self.add(Rope(buffer, heads, attention.rope, attention.layout))
        group, window = attention.group, attention.group.window
        self.add(KvWrite(key, value, group, layer))
        self.add(Attend(attended, query, group, layer, config.num_heads, attention.scale, window, attention.softcap))
        return attended

    def feed_forward(
        self, block: str, width: int, activation: Activation, out: Buffer, bias: Bias = Bias.NEVER
    ) -> None:
        """out = down(activation(gate normed) * up normed); into the residual it adds."""
        gate, up = self.buffer("gate", width), self.buffer("up", width)
        self.project(f"{block}.ffn_gate", gate, self.normed, bias=bias, partition=Partition.COLUMN)
        self.project(f"{block}.ffn_up", up, self.normed, bias=bias, partition=Partition.COLUMN)
        self.add(Gate(gate, gate, up, activation))
        self.project(f"{block}.ffn_down", out, gate, bias=bias, partition=Partition.ROW)

    def experts(self, block: str, width: int, *, gating: Gating, renormalise: bool) -> None:
        """residual += routed experts of `normed`, each of `width` hidden values."""
        config = self.config
        count, hidden = config.num_experts, config.hidden_size
        router = self.buffer("router", count)
        self.project(f"{block}.ffn_gate_inp", router, self.normed)
        gate, up = self._gate_and_up_experts(block, width)
        self.add(
            Moe(
                out=self.residual,
                src=self.normed,
                router_logits=router,
                gate=gate,
                up=up,
                down=self.checkpoint.weight(f"{block}.ffn_down_exps.weight", count, hidden, width),
                top_k=config.num_active_experts,
                gating=gating,
                renormalise=renormalise,
                residual=self.residual,
            )
        )

    def finish(self, *kv_groups: KvGroup, softcap: float = 0.0, recurrent: RecurrentGroup | None = None) -> Definition:
        """Final norm, head and, with `softcap`, the cap of the logits. Refuses what the file holds and nobody read.

        The final norm runs on all rows (it costs next to nothing) so that every row's "hidden" can be tapped; the head
        runs only on rows that want logits. A file without output.weight uses the embedding as its head.
        """
        config, checkpoint = self.config, self.checkpoint
        self.begin_layer(config.num_layers)
        self.norm("output_norm")
        self.add(Tap("hidden", self.normed))
        selected = self.buffer("selected", config.hidden_size, Rows.LOGITS)
        logits = self.buffer("logits", config.vocab_size, Rows.LOGITS)
        self.add(SelectLogitsRows(selected, self.normed))
        if checkpoint.has("output.weight"):
            self.project("output", logits, selected, partition=Partition.COLUMN)
        else:
            self.add(Linear(logits, selected, self._embedding(), partition=Partition.COLUMN))
        if softcap:
            self.add(ScaleCap(logits, softcap=softcap))
        checkpoint.finish()
        program = Program(config.architecture, tuple(self._ops), logits, kv_groups, recurrent=recurrent)
        return Definition(config, program)

    def _embedding(self) -> Weight:
        return self.checkpoint.weight("token_embd.weight", self.config.vocab_size, self.config.hidden_size)

    def _bias(self, name: str, width: int, bias: Bias) -> Weight | None:
        match bias:
            case Bias.NEVER:
                return None
            case Bias.OPTIONAL:
                return self.checkpoint.optional_vector(f"{name}.bias", width)
            case Bias.REQUIRED:
                return self.checkpoint.vector(f"{name}.bias", width)

    def _gate_and_up_experts(self, block: str, width: int) -> tuple[Weight, Weight]:
        """Stored as two tensors, or as one in which every expert has the rows of its gate before those of its up."""
        count, hidden = self.config.num_experts, self.config.hidden_size
        gate, up = f"{block}.ffn_gate_exps.weight", f"{block}.ffn_up_exps.weight"
        fused = f"{block}.ffn_gate_up_exps.weight"
        if not self.checkpoint.has(fused):
            weight = self.checkpoint.weight
            return weight(gate, count, width, hidden), weight(up, count, width, hidden)
        both = self.checkpoint.weight(fused, count, 2 * width, hidden)
        return _part(both, 0, width, gate), _part(both, width, width, up)

    def _query_key_value(self, block: str, bias: Bias, query: Buffer, key: Buffer, value: Buffer) -> None:
        """Three projections, stored as three matrices or as one with the rows of query, key and value in that order."""
        outs = {"attn_q": query, "attn_k": key, "attn_v": value}
        fused = f"{block}.attn_qkv"
        if not self.checkpoint.has(f"{fused}.weight"):
            for name, out in outs.items():
                self.project(f"{block}.{name}", out, self.normed, bias=bias, partition=Partition.COLUMN)
            return
        width = query.width + key.width + value.width
        weight = self.checkpoint.weight(f"{fused}.weight", width, self.normed.width)
        fused_bias = self._bias(fused, width, bias)
        start = 0
        for name, out in outs.items():
            rows = weight.rows(start, start + out.width, f"{block}.{name}.weight")
            part = fused_bias and _slice(fused_bias, start, out.width, f"{block}.{name}.bias")
            self.add(Linear(out, self.normed, rows, part, partition=Partition.COLUMN))
            start += out.width


def _part(weight: Weight, start: int, size: int, name: str) -> Weight:
    """Rows [start, start + size) of every expert's matrix, copied."""
    experts, rows, width = weight.shape
    data = weight.data.reshape(experts, rows, weight.row_bytes)[:, start : start + size]
    return Weight(name, weight.type, (experts, size, width), np.ascontiguousarray(data).reshape(-1))


def _slice(vector: Weight, start: int, size: int, name: str) -> Weight:
    return float_weight(name, float_values(vector)[start : start + size].astype(np.float32))
