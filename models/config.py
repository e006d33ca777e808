"""What is common to all decoder-only transformers: their configuration, and reading it with every bound checked."""

from __future__ import annotations

from dataclasses import dataclass

from ..kernels.program import KvGroup, Program
from .checkpoint import Checkpoint

# Bounds that no model reaches; they keep a damaged file from asking for terabytes before its tensors are looked at.
_MAX_LAYERS = 1 << 12
_MAX_HEADS = 1 << 12
_MAX_HEAD_DIM = 1 << 14
_MAX_WIDTH = 1 << 24
_MAX_EXPERTS = 1 << 14


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Facts of a model. Sizes are counts of values; `ffn_widths` has one entry per layer."""

    architecture: str
    name: str
    context_length: int
    num_layers: int
    hidden_size: int
    vocab_size: int
    num_heads: int
    num_kv_heads: int
    key_dim: int
    value_dim: int
    ffn_widths: tuple[int, ...]
    norm_eps: float
    window: int | None = None  # of the layers that have one
    num_experts: int = 0
    num_active_experts: int = 0

    def kv_group(self, name: str, num_layers: int, window: int | None = None) -> KvGroup:
        """A KV group of this model's row layout."""
        return KvGroup(name, num_layers, self.num_kv_heads, self.key_dim, self.value_dim, window)


@dataclass(frozen=True, slots=True)
class Definition:
    """What an architecture makes of a checkpoint."""

    config: ModelConfig
    program: Program


def read_config(checkpoint: Checkpoint) -> ModelConfig:
    """Reads the settings that every decoder-only transformer has. Raises ModelFileError naming the key."""
    settings = checkpoint.settings
    layers = settings.int("block_count", low=1, high=_MAX_LAYERS)
    hidden = settings.int("embedding_length", low=1, high=_MAX_WIDTH)
    heads = _uniform(checkpoint, "attention.head_count", layers, None)
    kv_heads = _uniform(checkpoint, "attention.head_count_kv", layers, heads)
    if heads % kv_heads:
        raise settings.error("attention.head_count_kv", f"is {kv_heads}, which does not divide {heads} heads")
    eps = settings.float("attention.layer_norm_rms_epsilon")
    if eps < 0:
        raise settings.error("attention.layer_norm_rms_epsilon", f"is {eps}, must not be negative")
    if not settings.bool("attention.causal", True):
        raise settings.error("attention.causal", "is false: a model that does not generate text")
    return ModelConfig(
        architecture=checkpoint.architecture,
        name=checkpoint.file.metadata.str("general.name", checkpoint.architecture),
        context_length=settings.int("context_length", low=1, high=(1 << 31) - 1),
        num_layers=layers,
        hidden_size=hidden,
        vocab_size=_vocab_size(checkpoint, hidden),
        num_heads=heads,
        num_kv_heads=kv_heads,
        key_dim=_head_dim(checkpoint, "attention.key_length", hidden, heads),
        value_dim=_head_dim(checkpoint, "attention.value_length", hidden, heads),
        ffn_widths=settings.per_layer("feed_forward_length", layers, low=1, high=_MAX_WIDTH),
        norm_eps=eps,
        num_experts=settings.int("expert_count", 0, low=0, high=_MAX_EXPERTS),
        num_active_experts=_active_experts(checkpoint),
    )


def _uniform(checkpoint: Checkpoint, key: str, layers: int, default: int | None) -> int:
    counts = checkpoint.settings.per_layer(key, layers, default, low=1, high=_MAX_HEADS)
    if len(set(counts)) > 1:
        raise checkpoint.settings.error(key, f"differs between layers ({min(counts)} to {max(counts)})")
    return counts[0]


def _active_experts(checkpoint: Checkpoint) -> int:
    experts = checkpoint.settings.int("expert_count", 0, low=0, high=_MAX_EXPERTS)
    active = checkpoint.settings.int("expert_used_count", 0, low=0, high=experts)
    if experts and not active:
        raise checkpoint.settings.error("expert_used_count", f"is missing or 0 with {experts} experts")
    return active


def _head_dim(checkpoint: Checkpoint, key: str, hidden: int, heads: int) -> int:
    settings = checkpoint.settings
    if key not in settings and hidden % heads:
        raise settings.error("attention.head_count", f"is {heads}, which does not divide embedding_length {hidden}")
    if key not in settings and hidden // heads > _MAX_HEAD_DIM:
        raise settings.error("attention.head_count", f"is {heads}, which makes heads of {hidden // heads:,}")
    return settings.int(key, hidden // heads, low=1, high=_MAX_HEAD_DIM)


def _vocab_size(checkpoint: Checkpoint, hidden: int) -> int:
    table = checkpoint.file.tensors.get("token_embd.weight")
    rows = 0 if table is None else table.shape[0]
    checkpoint.weight("token_embd.weight", rows, hidden)
    metadata = checkpoint.file.metadata
    if "tokenizer.ggml.tokens" in metadata and metadata.length("tokenizer.ggml.tokens") != rows:
        entries = metadata.length("tokenizer.ggml.tokens")
        raise metadata.error("tokenizer.ggml.tokens", f"has {entries} entries for the {rows} rows of token_embd.weight")
    return rows
