"""The reference backend. Runs anywhere torch runs; slow, and its rows are not exact (see `rows_exact`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from ..backend import DrawRequest, Executor, KvPool, Limits, NativeTime, Sampler, StatePool, StepBatch
from ..bell import ring
from ..errors import ConfigError
from ..formats import KvType
from ..program import KvGroup, Program, RecurrentGroup, Weight
from ..sampling import Draw, DrawFault, SamplingSpec
from . import cache
from .cache import ReferenceKvPool
from .dequantise import dequantise_weight
from .executor import ReferenceExecutor
from .sampling import ReferenceSampler, draw_window, log_probabilities
from .states import ReferenceStatePool, log_bytes


class ReferenceBackend:
    """Float32 evaluation of programs, with float32 copies of their weights."""

    def __init__(self, threads: int | None = None) -> None:
        if threads is not None:
            torch.set_num_threads(threads)
        self._weights: WeakKeyDictionary[Weight, Tensor] = WeakKeyDictionary()

    @property
    def name(self) -> str:
        return "reference"

    @property
    def rows_exact(self) -> bool:
        """False: torch chooses the order of a matrix product's sums by its shape and by the number of threads."""
        return False

    @property
    def arithmetic(self) -> str:
        return f"reference-1/torch-{torch.__version__}"

    @property
    def native_time(self) -> NativeTime:
        return NativeTime()

    def block_bytes(self, group: KvGroup, kv_type: KvType) -> int:
        return cache.block_bytes(group)

    def allocate_kv(self, group: KvGroup, kv_type: KvType, num_blocks: int, slots: int, max_blocks: int) -> KvPool:
        return ReferenceKvPool(group, kv_type, num_blocks, slots, max_blocks)

    def state_bytes(self, group: RecurrentGroup) -> int:
        return group.state_bytes

    def log_bytes(self, group: RecurrentGroup, log_rows: int) -> int:
        return log_bytes(group, log_rows)

    def allocate_states(self, group: RecurrentGroup, num_blocks: int, slots: int, log_rows: int) -> StatePool:
        return ReferenceStatePool(group, num_blocks, slots, log_rows)

    def load(
        self, program: Program, pools: Mapping[KvGroup, KvPool], limits: Limits, states: StatePool | None = None
    ) -> Executor:
        own = {group: pool for group, pool in pools.items() if isinstance(pool, ReferenceKvPool)}
        if len(own) != len(pools):
            raise ConfigError(f"{program.name}: a KV pool of another backend")
        if states is not None and not isinstance(states, ReferenceStatePool):
            raise ConfigError(f"{program.name}: a state pool of another backend")
        executor = ReferenceExecutor(program, self._float32, own, states, limits)
        for op in program.ops:
            for weight in (value for f in fields(op) if isinstance(value := getattr(op, f.name), Weight)):
                self._float32(weight)
        return executor

    def sampler(self, spec: SamplingSpec, prompt_ids: Sequence[int], vocab_size: int) -> Sampler:
        return ReferenceSampler(spec, prompt_ids, vocab_size)

    def step(
        self, executor: Executor, batch: StepBatch, requests: list[DrawRequest], bell: int
    ) -> list[list[Draw] | DrawFault]:
        ring(bell)
        executor.step(batch)
        return self.draw(executor, requests) if requests else []

    def draw(self, executor: Executor, requests: Sequence[DrawRequest]) -> list[list[Draw] | DrawFault]:
        logits = executor.logits()
        return [draw_window(logits, request) for request in requests]

    def logprobs(self, executor: Executor, row: int, token_id: int, num_top: int) -> Draw:
        return log_probabilities(executor.logits()[row], token_id, num_top)

    def _float32(self, weight: Weight) -> Tensor:
        """The weight expanded, once however many ops and programs use it."""
        if weight not in self._weights:
            self._weights[weight] = torch.as_tensor(dequantise_weight(weight))
        return self._weights[weight]
