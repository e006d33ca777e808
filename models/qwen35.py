"""qwen35: Qwen 3.5, 3.6 and 3.8 dense. Gated delta nets, with gated full attention in every fourth layer.

    a = x + mixer(rms(x));  y = a + ffn(rms(a))

The file's `post_attention_norm` is the norm before the feed-forward. For text, its four rope sections turn by one
position and are plain NEOX rope of the first dimensions. A NextN block behind the trunk is left alone.
"""

from __future__ import annotations

import logging
from dataclasses import replace

from ..kernels.program import Activation, Partition, RopeLayout
from .checkpoint import Checkpoint
from .config import Definition, ModelConfig, read_config
from .delta import delta_layer, gated_attention, read_recurrent_group
from .layers import Attention, Decoder
from .rope import read_rope_scaling, read_rope_table

_log = logging.getLogger(__name__)

_PERIOD = 4  # every fourth layer attends
_SECTIONS = 4  # of rope: time, height, width, and one that is not used


def build(checkpoint: Checkpoint) -> Definition:
    """Reads the whole checkpoint. Raises ModelFileError."""
    config, recurrent = _read_layers(checkpoint)
    settings = checkpoint.settings
    if config.key_dim != config.value_dim:
        raise settings.error(
            "attention.value_length", f"is {config.value_dim} beside keys and gates of {config.key_dim}"
        )
    if "rope.dimension_sections" in settings:
        settings.per_layer("rope.dimension_sections", _SECTIONS, high=config.key_dim)
    base = settings.float("rope.freq_base", 10_000.0)
    full = config.kv_group("full", recurrent.count(False))
    delta = read_recurrent_group(checkpoint, recurrent.count(True))
    attention = Attention(
        group=full,
        rope=read_rope_table(checkpoint, "rope", config.key_dim, base, read_rope_scaling(checkpoint)),
        layout=RopeLayout.NEOX,
        scale=config.key_dim**-0.5,
        head_norms=True,
    )
    model = Decoder(checkpoint, config)
    model.embed()
    for layer, width in enumerate(config.ffn_widths):
        block, number = f"blk.{layer}", recurrent[:layer].count(recurrent[layer])
        model.begin_layer(layer)
        model.norm(f"{block}.attn_norm")
        if recurrent[layer]:
            mixed, name = delta_layer(model, block, delta, number), "ssm_out"
        else:
            mixed, name = gated_attention(model, block, attention, number), "attn_output"
        model.project(f"{block}.{name}", model.residual, mixed, partition=Partition.ROW)
        model.norm(f"{block}.post_attention_norm")
        model.feed_forward(block, width, Activation.SILU, model.residual)
    return model.finish(full, recurrent=delta)


def _read_layers(checkpoint: Checkpoint) -> tuple[ModelConfig, list[bool]]:
    """The trunk's configuration and which of its layers are recurrent. `block_count` counts NextN blocks too."""
    settings, config = checkpoint.settings, read_config(checkpoint)
    blocks = config.num_layers
    heads = settings.int("nextn_predict_layers", 0, low=0, high=blocks - 1)
    trunk = blocks - heads
    period = settings.int("full_attention_interval", _PERIOD, low=1, high=1 << 16)
    flags = tuple((layer + 1) % period != 0 for layer in range(blocks))
    if "attention.recurrent_layers" in settings:
        flags = settings.per_layer("attention.recurrent_layers", blocks, high=1)
    recurrent = [bool(flag) for flag in flags[:trunk]]
    if all(recurrent) or not any(recurrent):
        raise settings.error("attention.recurrent_layers", "a trunk of one kind of layers only is not implemented")
    for block in range(trunk, blocks):
        if checkpoint.leave(f"blk.{block}."):
            _log.info("%s: block %d is a NextN draft head, which is not used", config.name, block)
    return replace(config, num_layers=trunk, ffn_widths=config.ffn_widths[:trunk]), recurrent
