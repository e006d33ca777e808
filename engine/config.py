"""The engine's settings, built once at the edge. Automatic values are None here and are decided in `memory`."""

from __future__ import annotations

from dataclasses import dataclass

from ..kernels.errors import ConfigError
from ..kernels.formats import KvType
from .speculation.contract import MAX_WINDOW
from .speculation.policy import DEFAULT_POLICY, SpeculationPolicy


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """How the engine serves one model."""

    kv_type: KvType = KvType.F16
    kv_memory: int | None = None  # bytes of all KV pools together; None: from the machine's memory
    context_length: int | None = None  # tokens of one request; None: what the model was made for, if it fits
    max_running: int = 16  # requests that are computed at the same time
    max_waiting: int = 256  # requests that may queue beyond those; more are refused with 429
    prefill_chunk: int = 512  # upper bound of prompt rows in a step
    prefix_cache: bool = True
    measure_cost: bool = True  # time a few steps at load; without, the cost curve learns while serving
    stall_seconds: float = 30.0  # work pending and no step finished for so long: not healthy
    speculation: SpeculationPolicy = DEFAULT_POLICY  # to start with; it changes while serving
    draft_model: str | None = None  # GGUF file of a smaller model with the same vocabulary
    poison_freed: bool = False  # tests: fill every block that may not be read with NaN

    def __post_init__(self) -> None:
        for name in ("max_running", "prefill_chunk", "stall_seconds"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.max_waiting < 0:
            raise ConfigError(f"max_waiting must not be negative, not {self.max_waiting}")
        if self.context_length is not None and self.context_length < 2:
            raise ConfigError(f"context_length must be at least 2, not {self.context_length}")

    @property
    def max_rows(self) -> int:
        """Rows of one step: everybody decodes, one window is verified, and a whole chunk is prefilled beside them."""
        return self.max_running + MAX_WINDOW + self.prefill_chunk

    @property
    def max_logits_rows(self) -> int:
        """Rows of one step that may want logits."""
        return self.max_running + MAX_WINDOW
