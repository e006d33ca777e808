"""Where a step's time goes, by kind of operation and number of rows, against what the machine could do at best.

The limits are measured in the same run with the same threads: reading as many bytes as the model's weights have, over
and over, and multiplying in registers. A product can be no faster than the slower of both.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter

from ...kernels.cpu import _ops
from ...kernels.cpu.backend import CpuBackend, CpuExecutor
from ...kernels.cpu.work import StageWork, stage_work
from ...kernels.errors import ConfigError
from ...kernels.formats import KvType
from .opened import OpenedModel
from .scratch import Scratch

ROWS = (1, 2, 4, 8, 16, 512)
KV_BYTES: Mapping[KvType, float] = {KvType.F32: 4.0, KvType.F16: 2.0, KvType.BF16: 2.0, KvType.Q8_0: 34 / 32}


@dataclass(frozen=True, slots=True)
class Machine:
    """Limits of the machine with `threads` threads, per second."""

    isa: str
    threads: int
    bytes: float
    byte_products: float
    float_products: float


@dataclass(slots=True)
class OpTime:
    """All operations of one kind in one step: the median over steps, and the least that the machine needs for them."""

    label: str
    count: int = 0  # stages of this kind
    seconds: float = 0.0
    bytes: float = 0.0
    memory_seconds: float = 0.0
    arithmetic_seconds: float = 0.0

    @property
    def limit_seconds(self) -> float:
        """The slower of both limits; 0 where nothing bounds the operation from below that is worth a figure."""
        return max(self.memory_seconds, self.arithmetic_seconds)

    @property
    def share_of_limit(self) -> float | None:
        """1: as fast as the machine can be."""
        return self.limit_seconds / self.seconds if self.limit_seconds and self.seconds else None


@dataclass(slots=True)
class RowsReport:
    """Steps of so many rows. `seconds` is a whole step's median, the spaces between operations included."""

    rows: int
    logits_rows: int
    steps: int
    seconds: float
    ops: list[OpTime] = field(default_factory=list[OpTime])

    @property
    def whole(self) -> OpTime:
        """The step as one operation."""
        total = OpTime("step", sum(op.count for op in self.ops), self.seconds)
        for op in self.ops:
            total.bytes += op.bytes
            total.memory_seconds += op.memory_seconds
            total.arithmetic_seconds += op.arithmetic_seconds
        return total


@dataclass(frozen=True, slots=True)
class KernelsReport:
    """All row counts."""

    model: str
    machine: Machine
    context: int
    rows: list[RowsReport]


def measure(
    opened: OpenedModel, *, rows: Sequence[int] = ROWS, context: int = 128, seconds: float = 1.5, machine_s: float = 2.0
) -> KernelsReport:
    """Steps of each row count that start at position `context`, about `seconds` of each. Up to as many rows as a verify
    can have, all of them want logits; larger steps are prefills. Raises ConfigError for a backend without a profile."""
    backend = opened.backend
    if not isinstance(backend, CpuBackend):
        raise ConfigError(f"backend {backend.name!r} does not tell its time by operation; bench kernels needs 'cpu'")
    largest = max(rows)
    scratch = Scratch(opened, [1] * (context + largest), chunk=max(largest, 32))
    executor = scratch.resources.runner.executor
    assert isinstance(executor, CpuExecutor)
    work = stage_work(opened.model.program)
    scratch.prefill(context)
    machine = _measure_machine(backend, sum(stage.weight_bytes(1 << 20) for stage in work), machine_s)
    reports: list[RowsReport] = []
    for count in rows:
        logits = count if count <= scratch.resources.limits.max_logits_rows else 1
        stages, whole = _time(scratch, executor, context, count, logits, seconds)
        report = RowsReport(count, logits, len(whole), _median(whole))
        report.ops = _by_kind(work, stages, report, context, KV_BYTES[opened.kv_type], machine)
        reports.append(report)
    return KernelsReport(opened.model.config.name, machine, context, reports)


def _measure_machine(backend: CpuBackend, weight_bytes: float, seconds: float) -> Machine:
    rates = _ops.measure_machine(backend.runtime, backend.isa, int(weight_bytes), seconds)
    return Machine(backend.isa, backend.runtime.threads, rates.bytes, rates.byte_products, rates.float_products)


def _time(
    scratch: Scratch, executor: CpuExecutor, context: int, rows: int, logits: int, seconds: float
) -> tuple[list[list[float]], list[float]]:
    """(seconds by step and stage, seconds by step), after one step that does not count."""
    by_stage: list[list[float]] = []
    whole: list[float] = []
    executor.native.profiling = True
    deadline = time.perf_counter() + seconds
    while len(by_stage) < 4 or time.perf_counter() < deadline:
        before = executor.profile()  # adds up from step to step
        scratch.step(context, rows, logits=logits)
        by_stage.append([after - sofar for (_, after), (_, sofar) in zip(executor.profile(), before, strict=True)])
        whole.append(executor.last_seconds)
    return by_stage[1:], whole[1:]


def _by_kind(
    work: Sequence[StageWork],
    steps: Sequence[Sequence[float]],
    report: RowsReport,
    context: int,
    kv_bytes: float,
    machine: Machine,
) -> list[OpTime]:
    """Stages of one label together, the dearest kind first."""
    assert all(len(step) == len(work) for step in steps), "the profile has other stages than the plan"
    kinds: dict[str, list[int]] = {}
    for number, stage in enumerate(work):
        kinds.setdefault(stage.label, []).append(number)
    ops: list[OpTime] = []
    for label, numbers in kinds.items():
        op = OpTime(label, len(numbers), _median([sum(step[n] for n in numbers) for step in steps]))
        for stage in (work[n] for n in numbers):
            rows = report.logits_rows if stage.of_logits else report.rows
            op.bytes += stage.weight_bytes(rows) + kv_bytes * stage.cached_values(context + report.rows)
            op.arithmetic_seconds += stage.products(rows, quantised=True) / machine.byte_products
            floats = stage.products(rows, quantised=False) + stage.attended(context, rows)
            op.arithmetic_seconds += floats / machine.float_products
        op.memory_seconds = op.bytes / machine.bytes
        ops.append(op)
    return sorted(ops, key=attrgetter("seconds"), reverse=True)


def _median(values: Sequence[float]) -> float:
    ordered = sorted(values)
    return ordered[len(ordered) // 2]
