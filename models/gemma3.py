"""gemma3: Gemma 3. Sliding-window layers with one full layer in every six, each kind with its own rope base.

    a = x + rms(Wo attention(rms(x)));  y = a + rms(ffn(rms(a)))        ffn with tanh GELU

Embeddings are scaled by sqrt(hidden size); norm weights already hold the + 1; rope scaling is for full layers.
"""

from __future__ import annotations

from dataclasses import replace

from ..kernels.program import Activation, KvGroup, Partition, RopeLayout
from .checkpoint import Checkpoint
from .config import Definition, ModelConfig, read_config
from .layers import Attention, Decoder
from .rope import RopeScaling, read_rope_scaling, read_rope_table

_PERIOD = 6  # every sixth layer is full
_LAYERS_27B = 62  # the one size whose attention scale is not 1/sqrt(key_dim)


def build(checkpoint: Checkpoint) -> Definition:
    """Reads the whole checkpoint. Raises ModelFileError."""
    config = read_config(checkpoint)
    settings = checkpoint.settings
    window = settings.int("attention.sliding_window", 0, low=0, high=(1 << 31) - 1) or None
    config = replace(config, window=window)
    sliding = _sliding_layers(checkpoint, config)
    groups = {
        kind: config.kv_group("window" if kind else "full", sliding.count(kind), window if kind else None)
        for kind in sorted(set(sliding))
    }
    attentions = {kind: _attention(checkpoint, config, group) for kind, group in groups.items()}
    model = Decoder(checkpoint, config)
    output = model.buffer("output", config.hidden_size)
    model.embed(scale=config.hidden_size**0.5)
    for layer, width in enumerate(config.ffn_widths):
        block = f"blk.{layer}"
        kind = sliding[layer]
        model.begin_layer(layer)
        model.norm(f"{block}.attn_norm")
        attended = model.attention(block, attentions[kind], sliding[:layer].count(kind))
        model.project(f"{block}.attn_output", output, attended, partition=Partition.ROW)
        model.norm(f"{block}.post_attention_norm", output, output)
        model.add_to_residual(output)
        model.norm(f"{block}.ffn_norm")
        model.feed_forward(block, width, Activation.GELU_TANH, output)
        model.norm(f"{block}.post_ffw_norm", output, output)
        model.add_to_residual(output)
    return model.finish(*groups.values(), softcap=_softcap(checkpoint, "final_logit_softcapping"))


def _sliding_layers(checkpoint: Checkpoint, config: ModelConfig) -> list[bool]:
    """Which layers have a window: by a period, or one flag per layer."""
    settings, key = checkpoint.settings, "attention.sliding_window_pattern"
    if settings.is_array(key):
        flags = [flag == 1 for flag in settings.per_layer(key, config.num_layers, high=1)]
    else:
        period = settings.int(key, _PERIOD, low=1, high=1 << 16)
        flags = [layer % period < period - 1 for layer in range(config.num_layers)]
    return [flag and config.window is not None for flag in flags]


def _attention(checkpoint: Checkpoint, config: ModelConfig, group: KvGroup) -> Attention:
    full = checkpoint.settings.float("rope.freq_base", 1_000_000.0), read_rope_scaling(checkpoint)
    sliding = checkpoint.settings.float("rope.freq_base_swa", 10_000.0), RopeScaling()
    base, scaling = full if group.window is None else sliding
    width = config.hidden_size / config.num_heads if config.num_layers == _LAYERS_27B else config.key_dim
    return Attention(
        group=group,
        rope=read_rope_table(checkpoint, group.name, config.key_dim, base, scaling),
        layout=RopeLayout.NEOX,
        scale=width**-0.5,
        softcap=_softcap(checkpoint, "attn_logit_softcapping"),
        head_norms=True,
    )


def _softcap(checkpoint: Checkpoint, key: str) -> float:
    value = checkpoint.settings.float(key, 0.0)
    if value < 0:
        raise checkpoint.settings.error(key, f"is {value}, must not be negative")
    return value
