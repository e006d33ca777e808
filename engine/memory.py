"""Decides how large the KV pools are, before anything is allocated, and says why. Knows bytes and blocks only.

Sliding-window groups need a window per running sequence, not a context; they get in addition a quarter of what full
groups have, so that cached prefixes can be resumed at many places.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..kernels.errors import ConfigError
from ..kernels.program import BLOCK, KvGroup
from .config import EngineConfig
from .kv_cache import UNBOUNDED, blocks_for, window_blocks
from .speculation.contract import MAX_WINDOW

AUTOMATIC_SHARE = 0.25  # of the memory that is available when the server starts
AUTOMATIC_CONTEXTS = 4  # whole contexts that are enough, unless the operator says otherwise
MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Sizes of the pools, in blocks (block 0, which holds nothing, included), and the context that surely fits."""

    num_blocks: tuple[int, ...]
    context_length: int
    total_bytes: int
    reasons: tuple[str, ...]  # one line per automatic choice


def available_memory() -> int:
    """Bytes that the machine can give without swapping, within the limit of this process's control group."""
    available = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        with open("/proc/meminfo") as lines:
            for line in lines:
                if line.startswith("MemAvailable:"):
                    available = int(line.split()[1]) * 1024
        with open("/sys/fs/cgroup/memory.max") as limit, open("/sys/fs/cgroup/memory.current") as current:
            text = limit.read().strip()
            if text != "max":
                available = min(available, int(text) - int(current.read()))
    except OSError:
        pass  # another system, or no control group
    return max(available, 0)


def total_memory() -> int:
    """Bytes that this machine has, or that the control group of this process may use."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        with open("/sys/fs/cgroup/memory.max") as limit:
            text = limit.read().strip()
    except OSError:
        return total  # another system, or no control group
    return total if text == "max" else min(total, int(text))


@dataclass(frozen=True, slots=True)
class _Pools:
    """The pools of all groups, sized by how many usable blocks a group with full attention has."""

    behind: tuple[int, ...]  # blocks of each group's window, or UNBOUNDED
    block_bytes: Sequence[int]
    max_running: int
    ahead: int  # blocks that a sequence computes at a time

    def sizes(self, full: int) -> list[int]:
        """Usable blocks per group."""
        return [
            full if b == UNBOUNDED else min(full, self.max_running * (b + 2) + self.ahead + max(full // 4, b))
            for b in self.behind
        ]

    def cost(self, full: int) -> int:
        """Bytes of all of them."""
        return sum((size + 1) * each for size, each in zip(self.sizes(full), self.block_bytes, strict=True))


def plan_memory(
    groups: Sequence[KvGroup], block_bytes: Sequence[int], trained_context: int, config: EngineConfig
) -> MemoryPlan:
    """Sizes for these groups. Raises ConfigError when an explicit context does not fit into the memory, or an explicit
    memory not into the machine."""
    context = config.context_length or trained_context
    behind = tuple(window_blocks(group.window) for group in groups)
    ahead = blocks_for(max(config.prefill_chunk, MAX_WINDOW + 1)) + 1
    pools = _Pools(behind, block_bytes, config.max_running, ahead)
    contexts = AUTOMATIC_CONTEXTS if config.kv_memory is None else config.max_running
    wanted = contexts * blocks_for(context)
    reasons: list[str] = []
    budget = config.kv_memory
    if budget is None:
        budget = int(available_memory() * AUTOMATIC_SHARE)
        reasons.append(
            f"kv_memory: {min(budget, pools.cost(wanted)) / MIB:.0f} MiB, the smaller of {AUTOMATIC_SHARE:.0%} of "
            f"available memory and {AUTOMATIC_CONTEXTS} whole contexts"
        )
    full = _largest(pools.cost, budget, wanted)
    _check(pools, full, budget, config)
    if full < blocks_for(context):
        reasons.append(f"context_length: {full * BLOCK} tokens, what {budget / MIB:.0f} MiB hold ({context} trained)")
        context = full * BLOCK
    elif context > trained_context:
        reasons.append(f"context_length: {context} tokens, beyond the {trained_context} the model was trained for")
    elif config.context_length is None:
        reasons.append(f"context_length: {context} tokens, what the model was trained for")
    return MemoryPlan(tuple(size + 1 for size in pools.sizes(full)), context, pools.cost(full), tuple(reasons))


def _check(pools: _Pools, full: int, budget: int, config: EngineConfig) -> None:
    """ConfigError where `full` blocks, the most within the budget, are none at all or not what was asked for."""
    if full < 1:
        raise ConfigError(
            f"kv_memory of {budget / MIB:.1f} MiB holds no block of {BLOCK} positions; it takes {pools.cost(1)} bytes"
        )
    if config.kv_memory is not None and pools.cost(full) > total_memory():
        raise ConfigError(
            f"a KV cache of {pools.cost(full) / MIB:.0f} MiB (kv_memory) is more than the {total_memory() / MIB:.0f} "
            "MiB of memory here"
        )
    asked = blocks_for(config.context_length or 0)
    if full < asked:
        raise ConfigError(
            f"a context of {config.context_length} tokens takes {pools.cost(asked) / MIB:.1f} MiB of KV cache, "
            f"more than the {budget / MIB:.1f} MiB allowed (kv_memory)"
        )


def _largest(cost: Callable[[int], int], budget: int, limit: int) -> int:
    """The largest count up to `limit` whose cost is within the budget; 0 if none is. Cost grows with the count."""
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        if cost(middle) <= budget:
            low = middle
        else:
            high = middle - 1
    return low
