"""qwen3: Qwen 3 dense. As qwen2 without biases, with an RMS norm on every query and key head before rope."""

from __future__ import annotations

from ..kernels.program import Activation, Partition, RopeLayout
from .checkpoint import Checkpoint
from .config import Definition, read_config
from .layers import Attention, Decoder
from .rope import read_rope_scaling, read_rope_table


def build(checkpoint: Checkpoint) -> Definition:
    """Reads the whole checkpoint. Raises ModelFileError."""
    config = read_config(checkpoint)
    base = checkpoint.settings.float("rope.freq_base", 10_000.0)
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
        model.feed_forward(block, width, Activation.SILU, model.residual)
    return model.finish(group)
