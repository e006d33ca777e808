"""Everything the engine allocates for a model, in order: sizes, pools, executor, row arrays, cost curve."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, replace
from hashlib import blake2b

from ..kernels.backend import Backend, KvPool, Limits, StatePool
from ..kernels.program import BLOCK
from ..models.load import LoadedModel, load_model
from .active_request import ActiveRequest
from .config import EngineConfig
from .cost_curve import CostCurve
from .cost_probe import CostProbe
from .kv_cache import KvCache, blocks_for
from .memory import MIB, plan_memory
from .recurrent_cache import RecurrentCache
from .recurrent_scheduler import RecurrentScheduler
from .runner import StepRunner
from .scheduler import Scheduler, SchedulerCounts, StepLimits
from .speculation.draft_resources import (
    READ_ROWS,
    DraftChoice,
    allocate_draft,
    draft_share,
    plan_draft,
    vocabulary_mismatch,
)
from .speculation.governor.shape import FixedShape
from .speculation.registry import Declined
from .speculation.registry import Resources as Speculators
from .speculation.session import SpeculationSession
from .speculation.target import ModelTarget
from .state_memory import allocate_states, plan_states
from .states import load

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
    draft: LoadedModel | None  # the operator's draft model
    draft_share: int | None  # of kv_memory
    states: StatePool | None = None  # of recurrent layers

    def make_cache(self) -> KvCache:
        """An empty cache over the pools."""
        windows, config = [group.window for group in self.model.program.kv_groups], self.config
        prefix_cache, poison = config.prefix_cache, config.poison_freed
        if self.states is None:
            return KvCache(self.pools, windows, prefix_cache=prefix_cache, poison_freed=poison)
        return RecurrentCache(self.pools, windows, self.states, prefix_cache=prefix_cache, poison_freed=poison)

    def make_scheduler(self, cache: KvCache, counts: SchedulerCounts) -> Scheduler[ActiveRequest]:
        """An idle scheduler over a cache that `make_cache` made."""
        if isinstance(cache, RecurrentCache):
            return RecurrentScheduler(cache, self.limits, self.cost, counts)
        return Scheduler(cache, self.limits, self.cost, counts)

    def make_speculation(self) -> SpeculationSession:
        """The speculative loop, under the configured policy. The shape of step costs stays as it is now."""
        table = self.cost.decode
        choice = self._choose_draft() if self.draft is not None else None
        return SpeculationSession(
            ModelTarget(self.model, self.backend),
            FixedShape(table.rows, table.costs),
            time.perf_counter,
            self.config.speculation,
            resources=Speculators(choice),
            executor=self.runner.executor,
            max_running=self.config.max_running,
        )

    def _choose_draft(self) -> DraftChoice | Declined:
        """Packs the draft model, if it fits the target: now, though speculation may be off, because a later policy must
        not hold up streams for as long as it takes. Its costs are guessed from its size until they are measured."""
        draft, config = self.draft, self.config
        assert draft is not None
        if draft.program.recurrent is not None:
            return Declined(f"{draft.paths[0]} has recurrent layers, with which a draft model is not implemented")
        mismatch = vocabulary_mismatch(self.model, draft)
        if mismatch is not None:
            return Declined(f"{draft.paths[0]} cannot draft for {self.model.config.name}: {mismatch}")
        sizes = plan_draft(draft, self.backend, config, self.context_length, self.draft_share)
        runtime = allocate_draft(draft, self.backend, config, sizes, self.context_length)
        share = draft.tensor_bytes / self.model.tensor_bytes
        plain = self.cost.seconds(1)
        return DraftChoice(runtime, share, share * (self.cost.mixed_seconds(READ_ROWS, 1) / READ_ROWS) / plain)

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
    draft = _open_draft(model, backend, config)
    share = draft_share(draft, backend, config, sum(block_bytes)) if draft is not None else None
    left = replace(config, kv_memory=config.kv_memory - share) if config.kv_memory and share else config
    states_plan = plan_states(backend, program, left)
    config, left = states_plan.limited(config), states_plan.rest(left)
    plan = plan_memory(groups, block_bytes, model.config.context_length, left)
    for reason in (*states_plan.reasons, *plan.reasons):
        _log.info("%s", reason)
    _log.info("KV cache: %.0f MiB of %s", plan.total_bytes / MIB, config.kv_type.value)
    max_blocks = blocks_for(plan.context_length + config.max_rows)
    pools = tuple(
        backend.allocate_kv(group, config.kv_type, count, config.max_running, max_blocks)
        for group, count in zip(groups, plan.num_blocks, strict=True)
    )
    limits = StepLimits(config.max_running, config.max_rows, config.max_logits_rows, config.prefill_chunk)
    states = allocate_states(backend, program, states_plan)
    executor = load(
        backend,
        program,
        dict(zip(groups, pools, strict=True)),
        Limits(config.max_rows, config.max_logits_rows, config.max_running),
        states,
    )
    model.release_pages()
    runner = StepRunner(backend, executor)
    cost = CostCurve(config.prefill_chunk + config.max_running)
    kv_bytes = plan.total_bytes + states_plan.total_bytes
    resources = Resources(
        model, backend, config, plan.context_length, limits, pools, runner, cost, kv_bytes, draft, share, states
    )
    if config.measure_cost:
        _measure(resources)
    return resources


def _open_draft(model: LoadedModel, backend: Backend, config: EngineConfig) -> LoadedModel | None:
    """Maps the draft model's file, unless the target refuses to speculate: then it is not even opened."""
    if config.draft_model is None or ModelTarget(model, backend).verdict.refusal is not None:
        return None
    return load_model(config.draft_model)


def _measure(resources: Resources) -> None:
    """Times steps of growing size on the idle machine."""
    program, cache = resources.model.program, resources.make_cache()
    pools = dict(zip(program.kv_groups, resources.pools, strict=True))
    largest = min(cache_room(cache), resources.limits.prefill_chunk, resources.context_length)
    probe = CostProbe(resources.backend, pools, cache, resources.limits, resources.states)
    measured = probe.measure(resources.runner, program, MEASURE_SECONDS, largest)
    resources.cost.fill(measured.decode, measured.prefill)
    for kind, points in (("decode", measured.decode), ("prefill", measured.prefill)):
        shown = ", ".join(f"{rows}: {1000 * points[rows]:.1f}" for rows in sorted(points))
        _log.info("%s cost, rows: milliseconds: %s", kind, shown or "not measured")
    on = "the whole program" if measured.layers is None else f"{measured.layers} layers and the head"
    _log.info("costs measured in %.2f s: %d steps of %s", measured.seconds, measured.num_steps, on)


def cache_room(cache: KvCache) -> int:
    """Positions that fit into an idle cache at once."""
    return min(pool.num_usable for pool in cache.pools) * BLOCK
