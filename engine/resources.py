"""Everything the engine allocates for a model, in order: sizes, pools, executor, row arrays, cost curve."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from hashlib import blake2b

from ..kernels.backend import Backend, KvPool, Limits
from ..kernels.program import BLOCK
from ..models.load import LoadedModel
from .config import EngineConfig
from .cost_curve import CostCurve
from .kv_cache import KvCache, blocks_for
from .memory import MIB, plan_memory
from .runner import StepRunner, scratch_step
from .scheduler import StepLimits

_log = logging.getLogger("surefoot.engine")
MEASURE_SECONDS = 0.3


@dataclass(frozen=True, slots=True)
class Resources:
    """One model on one backend, ready to run steps."""

    model: LoadedModel
    backend: Backend
    config: EngineConfig
    context_length: int
    limits: StepLimits
    pools: tuple[KvPool, ...]
    runner: StepRunner
    cost: CostCurve
    kv_bytes: int

    def make_cache(self) -> KvCache:
        """An empty cache over the pools."""
        groups = self.model.program.kv_groups
        return KvCache(
            self.pools,
            [group.window for group in groups],
            prefix_cache=self.config.prefix_cache,
            poison_freed=self.config.poison_freed,
        )

    @property
    def fingerprint(self) -> str:
        """Within one fingerprint the same request gives the same bits (where the backend's rows are exact)."""
        parts = (self.model.fingerprint, self.backend.name, self.backend.arithmetic, self.config.kv_type.value, "tp1")
        return "fp_" + blake2b("\0".join(parts).encode(), digest_size=6).hexdigest()


def allocate(model: LoadedModel, backend: Backend, config: EngineConfig) -> Resources:
    """Sizes, checks and allocates. Raises ConfigError before anything large is reserved."""
    program = model.program
    groups = program.kv_groups
    block_bytes = [backend.block_bytes(group, config.kv_type) for group in groups]
    plan = plan_memory(groups, block_bytes, model.config.context_length, config)
    for reason in plan.reasons:
        _log.info("%s", reason)
    _log.info("KV cache: %.0f MiB of %s", plan.total_bytes / MIB, config.kv_type.value)
    max_blocks = blocks_for(plan.context_length + config.max_rows)
    pools = tuple(
        backend.allocate_kv(group, config.kv_type, count, config.max_running, max_blocks)
        for group, count in zip(groups, plan.num_blocks, strict=True)
    )
    limits = StepLimits(config.max_running, config.max_rows, config.max_logits_rows, config.prefill_chunk)
    executor = backend.load(
        program,
        dict(zip(groups, pools, strict=True)),
        Limits(config.max_rows, config.max_logits_rows, config.max_running),
    )
    model.release_pages()
    runner = StepRunner(backend, executor, limits, plan.context_length)
    cost = CostCurve(config.prefill_chunk + config.max_running)
    resources = Resources(model, backend, config, plan.context_length, limits, pools, runner, cost, plan.total_bytes)
    if config.measure_cost:
        _measure(resources)
    return resources


def _measure(resources: Resources) -> None:
    """Times steps of growing size on the idle machine."""
    cache = resources.make_cache()
    largest = min(cache_room(cache), resources.limits.prefill_chunk, resources.context_length)

    def run(rows: int) -> float:
        started = time.perf_counter()
        scratch_step(resources.runner, cache, rows)
        return time.perf_counter() - started

    timed = resources.cost.measure(run, MEASURE_SECONDS, largest)
    shown = ", ".join(f"{rows}: {1000 * seconds:.1f}" for rows, seconds in resources.cost.table()[:timed])
    _log.info("step cost, rows: milliseconds: %s", shown)


def cache_room(cache: KvCache) -> int:
    """Positions that fit into an idle cache at once."""
    return min(pool.num_usable for pool in cache.pools) * BLOCK
