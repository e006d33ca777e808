"""qwen3moe: Qwen 3 with routed experts. Attention as qwen3; softmax over all experts, the best ones renormalised."""

from __future__ import annotations

from dataclasses import replace

from ..kernels.program import Gating, Partition, RopeLayout
from .checkpoint import Checkpoint
from .config import Definition, read_config
from .layers import Attention, Decoder
from .rope import read_rope_scaling, read_rope_table


def build(checkpoint: Checkpoint) -> Definition:
    """Reads the whole checkpoint. Raises ModelFileError."""
    config = read_config(checkpoint)
    settings = checkpoint.settings
    if not config.num_experts:
        raise settings.error("expert_count", "is missing or 0")
    expert_width = settings.int("expert_feed_forward_length", low=1, high=1 << 24)
    config = replace(config, ffn_widths=(expert_width,) * config.num_layers)  # feed_forward_length is of no layer
    base = settings.float("rope.freq_base", 10_000.0)
    group = config.kv_group("full", config.num_layers)
    attention = Attention(
        group=group,
        rope=read_rope_table(checkpoint, "rope", config.key_dim, base, read_rope_scaling(checkpoint)),
        layout=RopeLayout.NEOX,
        scale=config.key_dim**-0.5,
        head_norms=True,
    )
    model = Decoder(checkpoint, config)
    model.embed()
    for layer, width in enumerate(config.ffn_widths):
        block = f"blk.{layer}"
        model.begin_layer(layer)
        model.norm(f"{block}.attn_norm")
        attended = model.attention(block, attention, layer)
        model.project(f"{block}.attn_output", model.residual, attended, partition=Partition.ROW)
        model.norm(f"{block}.ffn_norm")
        model.experts(block, width, gating=Gating.SOFTMAX, renormalise=True)
    return model.finish(group)
