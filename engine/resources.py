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
from .cost_probe import CostProbe
from .kv_cache import KvCache, blocks_for
from .memory import MIB, plan_memory
from .runner import StepRunner
from .scheduler import StepLimits
from .speculation.governor.shape import FixedShape
from .speculation.session import SpeculationSession
from .speculation.target import ModelTarget

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

    def make_speculation(self) -> SpeculationSession:
        """The speculative loop, under the configured policy. The shape of step costs stays as it is now."""
        table = self.cost.decode
        return SpeculationSession(
            ModelTarget(self.model, self.backend),
            FixedShape(table.rows, table.costs),
            time.perf_counter,
            self.config.speculation,
            executor=self.runner.executor,
            max_running=self.config.max_running,
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
    program, cache = resources.model.program, resources.make_cache()
    pools = dict(zip(program.kv_groups, resources.pools, strict=True))
    largest = min(cache_room(cache), resources.limits.prefill_chunk, resources.context_length)
    probe = CostProbe(resources.backend, pools, cache, resources.limits)
    started = time.perf_counter()
    decode, prefill = probe.measure(resources.runner, program, MEASURE_SECONDS, largest)
    resources.cost.fill(decode, prefill)
    for kind, points in (("decode", decode), ("prefill", prefill)):
        shown = ", ".join(f"{rows}: {1000 * points[rows]:.1f}" for rows in sorted(points))
        _log.info("%s cost, rows: milliseconds: %s", kind, shown)
    _log.debug("cost measured in %.2f s", time.perf_counter() - started)


def cache_room(cache: KvCache) -> int:
    """Positions that fit into an idle cache at once."""
    return min(pool.num_usable for pool in cache.pools) * BLOCK
