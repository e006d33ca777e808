"""The CPU backend: programs as native stages, one call a step without the GIL, same bits on every instruction set."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from ..backend import DrawRequest, Executor, KvPool, Limits, NativeTime, RowHandle, Sampler, StatePool, StepBatch
from ..errors import ConfigError, StepCancelled, StepError
from ..formats import KvType
from ..program import KvGroup, Program, RecurrentGroup
from ..sampling import Draw, DrawFault, SamplingSpec
from . import _ops, sampling
from .lower import WeightStore, lower, state_layout

ARITHMETIC = "cpu-1"  # raise whenever a result changes in any bit
ISA_VARIABLE = "SUREFOOT_ISA"  # amx | avx512 | avx2 | portable; for tests: results are the same
_KV_FORMATS = {KvType.F32: 0, KvType.F16: 1, KvType.BF16: 2, KvType.Q8_0: 3}
_DONE, _CANCELLED = 0, 1  # of a step's statuses
NO_TAPS: list[int] = []


class CpuBackend:
    """Threads, packed weights and kernels of one instruction set. Its executors belong to one thread, because they
    share the pool of worker threads."""

    def __init__(self, threads: int | None = None, isa: str | None = None) -> None:
        """`threads` None: as many as the process may use. `isa` None: the best that the machine has."""
        threads = len(os.sched_getaffinity(0)) if threads is None else threads
        if threads < 1:
            raise ConfigError(f"{threads} threads")
        known = _ops.instruction_sets()
        isa = isa or os.environ.get(ISA_VARIABLE) or known[0]
        if isa not in known:
            raise ConfigError(f"this machine cannot run {isa!r} (it can: {', '.join(known)})")
        self.isa = isa
        self.runtime = _ops.Runtime(isa, threads)
        self._store = WeightStore(self.runtime)
        self._drawer = sampling.Drawer(self.runtime)

    @property
    def name(self) -> str:
        return "cpu"

    @property
    def rows_exact(self) -> bool:
        return True

    @property
    def arithmetic(self) -> str:
        return ARITHMETIC

    @property
    def native_time(self) -> NativeTime:
        return NativeTime(*self.runtime.native_time)

    def block_bytes(self, group: KvGroup, kv_type: KvType) -> int:
        return _ops.block_bytes(_KV_FORMATS[kv_type], group.key_dim, group.value_dim, group.num_layers, group.kv_heads)

    def allocate_kv(self, group: KvGroup, kv_type: KvType, num_blocks: int, slots: int, max_blocks: int) -> KvPool:
        return CpuKvPool(self.runtime, group, kv_type, num_blocks, slots, max_blocks)

    def state_bytes(self, group: RecurrentGroup) -> int:
        return _ops.state_bytes(state_layout(group), group.num_layers)

    def log_bytes(self, group: RecurrentGroup, log_rows: int) -> int:
        return _ops.log_bytes(state_layout(group), group.num_layers, log_rows)

    def allocate_states(self, group: RecurrentGroup, num_blocks: int, slots: int, log_rows: int) -> StatePool:
        return CpuStatePool(group, num_blocks, slots, log_rows)

    def load(
        self, program: Program, pools: Mapping[KvGroup, KvPool], limits: Limits, states: StatePool | None = None
    ) -> Executor:
        own = {group: pool.native for group, pool in pools.items() if isinstance(pool, CpuKvPool)}
        if len(own) != len(pools):
            raise ConfigError(f"{program.name}: a KV pool of another backend")
        for group, pool in pools.items():
            if isinstance(pool, CpuKvPool) and pool.group is not group:
                raise ConfigError(f"{program.name}: KV group {group.name} is bound to another group's pool")
        native = states.native if isinstance(states, CpuStatePool) else None
        group = states.group if isinstance(states, CpuStatePool) else None
        if program.recurrent is not group:
            raise ConfigError(f"{program.name}: no states, or another group's or backend's, for its recurrent layers")
        return CpuExecutor(program, self.runtime, self._store, own, limits, native)

    def sampler(self, spec: SamplingSpec, prompt_ids: Sequence[int], vocab_size: int) -> Sampler:
        return sampling.sampler(spec, prompt_ids, vocab_size)

    def step(
        self, executor: Executor, batch: StepBatch, requests: list[DrawRequest], bell: int
    ) -> list[list[Draw] | DrawFault]:
        assert isinstance(executor, CpuExecutor), "an executor of this backend"
        taps = executor.fill_inputs(batch)
        results = self._drawer.step(executor.native, batch, taps, requests, bell)
        if isinstance(results, int):
            raise executor.fault(results)
        return results

    def draw(self, executor: Executor, requests: Sequence[DrawRequest]) -> list[list[Draw] | DrawFault]:
        return self._drawer.draw(_logits(executor), requests)

    def logprobs(self, executor: Executor, row: int, token_id: int, num_top: int) -> Draw:
        return self._drawer.logprobs(_logits(executor), row, token_id, num_top)


def _logits(executor: Executor) -> sampling.Logits:
    """For drawing: where they are, without an array around them."""
    return executor.native if isinstance(executor, CpuExecutor) else executor.logits()


class CpuKvPool:
    """A KV group's blocks, in untouched anonymous memory until written."""

    def __init__(
        self, runtime: _ops.Runtime, group: KvGroup, kv_type: KvType, num_blocks: int, slots: int, max_blocks: int
    ) -> None:
        self.group = group
        self.native = _ops.KvPool(
            _KV_FORMATS[kv_type],
            group.key_dim,
            group.value_dim,
            group.num_layers,
            group.kv_heads,
            num_blocks,
            slots,
            max_blocks,
        )
        self._runtime = runtime
        self._table = self.native.block_table

    @property
    def num_blocks(self) -> int:
        return self.native.num_blocks

    @property
    def block_bytes(self) -> int:
        return self.native.block_bytes

    @property
    def block_table(self) -> NDArray[np.int32]:
        return self._table

    def fill(self, block: int, value: float) -> None:
        self.native.fill(self._runtime, block, value)


class CpuStatePool:
    """A recurrent group's states and logs, in untouched anonymous memory until written."""

    def __init__(self, group: RecurrentGroup, num_blocks: int, slots: int, log_rows: int) -> None:
        self.group = group
        self.native = _ops.StatePool(state_layout(group), group.num_layers, num_blocks, slots, log_rows)
        self.num_blocks = num_blocks
        self.log_rows = log_rows
        self.table = self.native.table

    def open(self, slot: int) -> None:
        self.native.open(slot)

    def forget(self, block: int) -> None:
        self.native.forget(block)

    def fill(self, block: int, value: float) -> None:
        self.native.fill(block, value)


class CpuExecutor:
    """A program in native form."""

    def __init__(
        self,
        program: Program,
        runtime: _ops.Runtime,
        store: WeightStore,
        pools: Mapping[KvGroup, _ops.KvPool],
        limits: Limits,
        states: _ops.StatePool | None,
    ) -> None:
        lowered = lower(program, runtime, store, pools, limits, states)
        self.native = lowered.native
        self._program = program
        self._taps = lowered.taps
        self._inputs = {buffer.name: lowered.buffer(buffer) for buffer in program.inputs}

    @property
    def program(self) -> Program:
        return self._program

    @property
    def last_seconds(self) -> float:
        """Seconds that native code took for the last step."""
        return self.native.last_seconds

    def step(self, batch: StepBatch) -> None:
        taps = self.fill_inputs(batch)
        status = self.native.step(
            batch.token_ids, batch.positions, batch.row_offsets, batch.slots, batch.logits_rows, taps
        )
        if status != _DONE:
            raise self.fault(status)

    def fill_inputs(self, batch: StepBatch) -> list[int]:
        """Copies the batch's inputs to where the program reads them. Returns the numbers of its taps."""
        if self._inputs or batch.inputs:
            self._fill_inputs(batch)
        return self._tap_numbers(batch.taps) if batch.taps else NO_TAPS

    def fault(self, status: int) -> StepCancelled | StepError:
        """Why the last step was not done."""
        if status == _CANCELLED:
            return StepCancelled(f"{self._program.name}: step cancelled")
        return StepError(f"{self._program.name}: {self.native.error}")

    def _tap_numbers(self, names: Sequence[str]) -> list[int]:
        try:
            return [self._taps[name] for name in names]
        except KeyError as unknown:
            raise StepError(f"{self._program.name} has no output {unknown}") from None

    def logits(self) -> NDArray[np.float32]:
        assert self.native.valid, "the last step did not finish, or none ran"
        return self.native.logits()

    def output(self, name: str) -> NDArray[np.float32]:
        tap = self._taps[name]
        assert self.native.has_output(tap), f"the last step did not finish or did not ask for {name}"
        return self.native.output(tap)

    def cancel(self) -> None:
        self.native.cancel()

    def profile(self) -> list[tuple[str, float]]:
        """Seconds by stage since `native.profiling` was set, in program order."""
        return self.native.profile()

    def _fill_inputs(self, batch: StepBatch) -> None:
        if batch.inputs.keys() != self._inputs.keys():
            raise StepError(f"{self._program.name}: inputs {sorted(batch.inputs)}, not {sorted(self._inputs)}")
        for name, handle in batch.inputs.items():
            self._fill_input(name, handle, len(batch.token_ids))

    def _fill_input(self, name: str, handle: RowHandle, rows: int) -> None:
        source = handle.executor
        if not isinstance(source, CpuExecutor) or handle.name not in source._taps:
            raise StepError(f"{self._program.name}: input {name} is not an output of a cpu executor")
        if handle.count != rows:
            raise StepError(f"{self._program.name}: input {name} has {handle.count} rows for {rows}")
        tap = source._taps[handle.name]
        if not self.native.copy_input(self._inputs[name], source.native, tap, handle.start, handle.count):
            raise StepError(f"{self._program.name}: input {name}: {self.native.error}")
