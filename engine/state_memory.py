"""Decides how many recurrent states there are, before anything is allocated, and says why.

A running sequence holds one state, a step of a prompt one more for the moment; the others are checkpoints, of which
there should be one for each running sequence, and more where memory allows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..kernels.backend import Backend, StatePool
from ..kernels.errors import ConfigError
from ..kernels.program import Program
from .config import EngineConfig
from .memory import MIB, available_memory
from .states import recurrent_backend

LOG_ROWS = 17  # of a slot: a row and sixteen drafts
AUTOMATIC_SHARE = 0.125  # of the memory that is available when the server starts
EXPLICIT_SHARE = 0.5  # of kv_memory
CHECKPOINTS = 3  # for each running sequence, where memory allows


@dataclass(frozen=True, slots=True)
class StatePlan:
    """Sizes of the state pool (block 0, which takes no memory, included), and how many sequences it lets run."""

    num_blocks: int = 0
    max_running: int | None = None  # None: no states, no limit
    total_bytes: int = 0
    reasons: tuple[str, ...] = ()

    def limited(self, config: EngineConfig) -> EngineConfig:
        """The configuration with as many running sequences as have states."""
        return config if self.max_running is None else replace(config, max_running=self.max_running)

    def rest(self, config: EngineConfig) -> EngineConfig:
        """The same for what is left to keys and values."""
        config = self.limited(config)
        return config if config.kv_memory is None else replace(config, kv_memory=config.kv_memory - self.total_bytes)


NO_STATES = StatePlan()


def plan_states(backend: Backend, program: Program, config: EngineConfig) -> StatePlan:
    """Sizes for a program's states, if it has any. Raises ConfigError when not even one sequence fits."""
    if program.recurrent is None:
        return NO_STATES
    able = recurrent_backend(backend, program)
    each, log = able.state_bytes(program.recurrent), able.log_bytes(program.recurrent, LOG_ROWS)
    explicit = config.kv_memory
    budget = int(available_memory() * AUTOMATIC_SHARE if explicit is None else explicit * EXPLICIT_SHARE)
    if 2 * each + log > budget:
        raise ConfigError(
            f"{budget / MIB:.1f} MiB for recurrent states (kv_memory) do not hold the two of {each / MIB:.1f} MiB and "
            f"the log of {log / MIB:.1f} MiB that one request takes"
        )
    running = max(1, min(config.max_running, (budget - each) // (2 * each + log)))
    blocks = min((budget - running * log) // each, (2 + CHECKPOINTS) * running + 1)
    total = blocks * each + running * log
    reasons = [
        f"recurrent states: {blocks} of {each / MIB:.1f} MiB and {running} logs of {log / MIB:.1f} MiB, "
        f"{total / MIB:.0f} MiB in all"
    ]
    if running < config.max_running:
        reasons.append(f"max_running: {running} requests at a time, as many as have room for their states")
    return StatePlan(blocks + 1, running, total, tuple(reasons))


def allocate_states(backend: Backend, program: Program, plan: StatePlan) -> StatePool | None:
    """The pool that was planned."""
    if program.recurrent is None or plan.max_running is None:
        return None
    return recurrent_backend(backend, program).allocate_states(
        program.recurrent, plan.num_blocks, plan.max_running, LOG_ROWS
    )
