"""What a draft model needs to run beside its target: pools and block tables of its own, an executor, row arrays.

The same caches as the target's, in small: full blocks of committed tokens are indexed, so a follow-up turn finds what
the drafter read in the turn before.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from ...kernels.backend import Backend, Limits
from ...kernels.errors import ConfigError
from ...models.load import LoadedModel
from ..config import EngineConfig
from ..kv_cache import KvCache, blocks_for
from ..runner import StepRunner

_log = logging.getLogger(__name__)

CONTEXTS = 2  # whole contexts of KV: one request speculates at a time, and its last turn stays cached
READ_ROWS = 256  # most rows of history read in one step
FOLDED_ROWS = 16  # so many unread tokens are read in the same step that drafts the first token
MIB = 1 << 20
MAX_VOCABULARY_PADDING = 0.01  # of the larger vocabulary


@dataclass(frozen=True, slots=True)
class DraftSizes:
    """Memory that a draft model's KV takes: blocks per group (block 0 included) and bytes."""

    num_blocks: tuple[int, ...]
    total_bytes: int


@dataclass(frozen=True, slots=True)
class DraftRuntime:
    """A draft model on a backend, ready to run steps."""

    model: LoadedModel
    backend: Backend
    cache: KvCache
    runner: StepRunner
    context_length: int
    kv_bytes: int

    @property
    def vocab_size(self) -> int:
        """Width of its logits."""
        return self.model.program.vocab_size


@dataclass(frozen=True, slots=True)
class DraftChoice:
    """The operator's draft model, loaded, and what it should cost in plain steps of the target."""

    runtime: DraftRuntime
    draft_cost: float  # a drafted token
    read_cost: float  # a token of history


def draft_share(model: LoadedModel, backend: Backend, config: EngineConfig, target_block_bytes: int) -> int | None:
    """Bytes of an explicit `kv_memory` that are the draft model's: split as the blocks' sizes are. None: no limit."""
    if config.kv_memory is None:
        return None
    each = _block_bytes(model, backend, config)
    return config.kv_memory * each // (each + target_block_bytes)


def _block_bytes(model: LoadedModel, backend: Backend, config: EngineConfig) -> int:
    return sum(backend.block_bytes(group, config.kv_type) for group in model.program.kv_groups)


def plan_draft(
    model: LoadedModel, backend: Backend, config: EngineConfig, context_length: int, share: int | None
) -> DraftSizes:
    """Sizes for `CONTEXTS` contexts, or what fits into `share` bytes. Raises ConfigError if nothing does."""
    each = _block_bytes(model, backend, config)
    full = CONTEXTS * blocks_for(context_length) + config.max_running
    if share is not None:
        full = min(full, share // each - 1)
    if full < 2:
        raise ConfigError(f"kv_memory leaves no room for the draft model's KV cache: a block takes {each} bytes")
    return DraftSizes((full + 1,) * len(model.program.kv_groups), (full + 1) * each)


def allocate_draft(
    model: LoadedModel, backend: Backend, config: EngineConfig, sizes: DraftSizes, context_length: int
) -> DraftRuntime:
    """Reserves the pools and packs the weights."""
    program, slots = model.program, config.max_running
    max_rows = READ_ROWS + (FOLDED_ROWS + 1) * slots
    pools = tuple(
        backend.allocate_kv(group, config.kv_type, count, slots, blocks_for(context_length + max_rows))
        for group, count in zip(program.kv_groups, sizes.num_blocks, strict=True)
    )
    executor = backend.load(program, dict(zip(program.kv_groups, pools, strict=True)), Limits(max_rows, slots, slots))
    model.release_pages()
    _log.info("draft model %s: %.0f MiB of KV", model.config.name, sizes.total_bytes / MIB)
    return DraftRuntime(
        model,
        backend,
        KvCache(pools, [group.window for group in program.kv_groups], poison_freed=config.poison_freed),
        StepRunner(backend, executor),
        min(context_length, model.config.context_length),
        sizes.total_bytes,
    )


def vocabulary_mismatch(target: LoadedModel, draft: LoadedModel) -> str | None:
    """Why a draft model's tokens are not the target's, if they are not. One may have padding at its end."""
    ours, theirs = (model.file.metadata.strings("tokenizer.ggml.tokens") for model in (target, draft))
    shared = min(len(ours), len(theirs))
    if max(len(ours), len(theirs)) - shared > MAX_VOCABULARY_PADDING * max(len(ours), len(theirs)):
        return f"its vocabulary has {len(theirs)} tokens, the target's {len(ours)}"
    if ours[:shared] != theirs[:shared]:
        first = next(i for i in range(shared) if ours[i] != theirs[i])
        return f"token {first} is {theirs[first]!r} in its vocabulary and {ours[first]!r} in the target's"
    return None
