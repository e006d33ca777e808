"""llama: Llama 1 to 3.x, Mistral, SmolLM2, Mixtral and everything else with the same block.

    a = x + Wo attention(rms(x));  y = a + ffn(rms(a))

Rope turns pairs (2i, 2i+1): converters reorder the rows of query and key for it. Llama 3 scaling is in rope_freqs.
"""

from __future__ import annotations

from ..kernels.program import Activation, Gating, Partition, RopeLayout
from .checkpoint import Checkpoint
from .config import Definition, read_config
from .layers import Attention, Bias, Decoder
from .rope import read_rope_scaling, read_rope_table


def build(checkpoint: Checkpoint) -> Definition:
    """Reads the whole checkpoint. Raises ModelFileError."""
    config = read_config(checkpoint)
    base = checkpoint.settings.float("rope.freq_base", 10_000.0)
    scaling = read_rope_scaling(checkpoint)
    group = config.kv_group("full", config.num_layers)
    attention = Attention(
        group=group,
        rope=read_rope_table(checkpoint, "rope", config.key_dim, base, scaling, divisors=True),
        layout=RopeLayout.NORM,
        scale=config.key_dim**-0.5,
        bias=Bias.OPTIONAL,
    )
    model = Decoder(checkpoint, config)
    model.embed()
    for layer, width in enumerate(config.ffn_widths):
        block = f"blk.{layer}"
        model.begin_layer(layer)
        model.norm(f"{block}.attn_norm")
        attended = model.attention(block, attention, layer)
        model.project(f"{block}.attn_output", model.residual, attended, bias=Bias.OPTIONAL, partition=Partition.ROW)
        model.norm(f"{block}.ffn_norm")
        if config.num_experts:
            model.experts(block, width, gating=Gating.SOFTMAX, renormalise=True)
        else:
            model.feed_forward(block, width, Activation.SILU, model.residual, Bias.OPTIONAL)
    return model.finish(group)
