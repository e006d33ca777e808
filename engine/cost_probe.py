"""Measures the cost curve at load: a few steps on the idle machine, in blocks that are given back, within a time limit.

A large model would spend all of it on three steps. So its rows are timed on two copies of its program that hold a few
layers, and a whole step is put together from both:

    step(rows) = one layer with the head(rows) + weights of the other layers * some layers(rows) / weights of those

Both are times of what they stand for, not differences of times, so their noise is not multiplied.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import ceil, prod
from typing import NamedTuple

from ..kernels.backend import Backend, KvPool, Limits, StatePool
from ..kernels.program import KvGroup, KvWrite, Linear, Moe, Program, Rows, Weight
from .kv_cache import KvCache, Match
from .runner import StepRunner
from .scheduler import StepLimits
from .sequence import Rows as RowsOf
from .sequence import Sequence
from .states import load


class Point(NamedTuple):
    """A step to be timed."""

    rows: int
    all_logits: bool = True  # a decode or a verify; else a prefill, of which one row wants them


ESSENTIAL = (Point(1), Point(8), Point(32))  # timed however long it takes: eight rows may be nearly free and 32 not
WANTED = (*ESSENTIAL, Point(4), Point(2), Point(16), Point(64, False))  # by importance
FURTHER = (  # if the others leave time
    *(Point(3), Point(6), Point(16, False), Point(12), Point(256, False), Point(512, False)),
)
WANTED_STEPS = 20  # of a single row, in the time that all wanted points take: more where rows share little
PASSES = 2.5  # over these points, that the time should suffice for
MIN_BYTES = 48 << 20  # of the weights that a few layers read: more than caches keep from one try to the next
MIN_SAVING = 0.25  # of a step: for less, the whole program is timed
SETTLED = 0.03  # the two fastest tries differ by no more: other programs make steps slower, nothing makes them faster
MAX_TRIES = 8
SINGLE_TRIES = 4  # at least, of the single row, which everything is compared with


@dataclass(slots=True)
class Part:
    """A program whose steps are timed, and how often it is in a whole step."""

    runner: StepRunner
    times: float = 1.0
    has_head: bool = True
    tries: dict[Point, list[float]] = field(default_factory=dict[Point, list[float]])  # seconds, ascending


@dataclass(frozen=True, slots=True)
class Measured:
    """Seconds of steps by their rows, and how they were found."""

    decode: Mapping[int, float]
    prefill: Mapping[int, float]
    seconds: float  # that it took
    num_steps: int
    layers: int | None  # on which it was timed; None: on the whole program


def few_layers(program: Program, layers: int) -> Program | None:
    """The program with only so many layers, spread evenly. None where there are no more, or where they are not made of
    equally many operations."""
    starts = [position for position, op in enumerate(program.ops) if isinstance(op, KvWrite)]
    if layers >= len(starts) or len({after - before for before, after in pairwise(starts)}) != 1:
        return None
    kept = [(2 * number + 1) * (len(starts) - 1) // (2 * layers) for number in range(layers - 1)]
    ops = list(program.ops[: starts[0]])  # up to the first layer's keys and values
    for layer in kept:
        ops += program.ops[starts[layer] : starts[layer + 1]]
    return replace(program, ops=(*ops, *program.ops[starts[-1] :]))


def num_layers(program: Program) -> int:
    """Layers that write a cache."""
    return sum(isinstance(op, KvWrite) for op in program.ops)


def product_bytes(program: Program, *, head: bool = True) -> float:
    """Bytes of the weights that a step of one row multiplies by; without `head`, of a row that wants no logits."""
    total = 0.0
    for op in program.ops:
        if isinstance(op, Linear) and (head or op.out.rows is not Rows.LOGITS):
            total += _bytes(op.weight)
        elif isinstance(op, Moe):
            total += sum(_bytes(weight) for weight in (op.gate, op.up, op.down)) * op.top_k / op.gate.shape[0]
    return total


def _bytes(weight: Weight) -> int:
    return prod(weight.shape[:-1]) * weight.row_bytes


class CostProbe:
    """Times steps of one program on scratch blocks of an idle cache."""

    def __init__(
        self,
        backend: Backend,
        pools: Mapping[KvGroup, KvPool],
        cache: KvCache,
        limits: StepLimits,
        states: StatePool | None = None,
    ) -> None:
        self._backend = backend
        self._pools = pools
        self._cache = cache
        self._limits = limits
        self._states = states
        self._deadline = 0.0
        self._num_steps = 0

    def measure(self, runner: StepRunner, program: Program, seconds: float, largest: int) -> Measured:
        """Times steps of up to `largest` rows for at most `seconds`, or what the essential points take."""
        began = time.perf_counter()
        self._deadline, self._num_steps = began + seconds, 0
        parts, layers = self._parts(runner, program, seconds)
        for points in (WANTED, FURTHER):
            possible = [point for point in points if self._is_possible(point, largest)]
            for point in possible:
                for part in parts:
                    self._try(part, point, must=point in ESSENTIAL)
            self._repeat(parts, possible)
        decode, prefill = dict[int, float](), dict[int, float]()
        for point in (*WANTED, *FURTHER):
            if all(point in part.tries for part in parts):
                fastest = sum(part.times * part.tries[point][0] for part in parts)
                (decode if point.all_logits else prefill)[point.rows] = fastest
        return Measured(decode, prefill, time.perf_counter() - began, self._num_steps, layers)

    def _is_possible(self, point: Point, largest: int) -> bool:
        return point.rows <= (min(largest, self._limits.max_logits_rows) if point.all_logits else largest)

    def _parts(self, runner: StepRunner, program: Program, seconds: float) -> tuple[list[Part], int | None]:
        """What is timed: the whole program if the time suffices, else one layer with the head, and some layers."""
        head = few_layers(program, 1)
        if head is None:
            return [Part(runner)], None
        part = Part(self._runner(head))
        for _ in range(2):  # the first faults pages in and wakes threads
            self._try(part, Point(1), must=True)
        whole, with_head = product_bytes(program), product_bytes(head)
        single = part.tries[Point(1)][0] * whole / with_head
        others = product_bytes(program, head=False) - product_bytes(head, head=False)
        layers = max(2, ceil(MIN_BYTES * (num_layers(program) - 1) / others))
        deep = few_layers(program, layers)
        if deep is None or single * WANTED_STEPS * PASSES <= seconds:
            return [Part(runner)], None
        kept = product_bytes(deep, head=False)
        if with_head + kept > (1 - MIN_SAVING) * whole:
            return [Part(runner)], None
        return [part, Part(self._runner(deep), others / kept, has_head=False)], layers

    def _repeat(self, parts: SequenceOf[Part], points: SequenceOf[Point]) -> None:
        """Further tries where there is noise, those with the fewest first, until the fastest of each is confirmed or
        the time is over."""
        while True:
            doubtful = [
                (len(part.tries[point]), number, part, point)
                for number, point in enumerate(points)
                for part in parts
                if point in part.tries and not _is_settled(point, part.tries[point])
            ]
            if not any(self._try(part, point) for _, _, part, point in sorted(doubtful, key=lambda entry: entry[:2])):
                return

    def _try(self, part: Part, point: Point, *, must: bool = False) -> bool:
        """Times a step once, unless it would end too late. Returns whether it did."""
        began = time.perf_counter()
        if not must and began + _expected(part, point) > self._deadline:
            return False
        self._step(part, point)
        took = time.perf_counter() - began
        part.tries[point] = sorted([*part.tries.get(point, ()), took])
        self._num_steps += 1
        return True

    def _runner(self, program: Program) -> StepRunner:
        limits = self._limits
        bounds = Limits(limits.max_rows, limits.max_logits_rows, limits.max_running)
        executor = load(self._backend, program, self._pools, bounds, self._states)
        return StepRunner(self._backend, executor)

    def _step(self, part: Part, point: Point) -> None:
        """One step of an unimportant sequence."""
        cache, rows = self._cache, point.rows
        num_logits = 0 if not part.has_head else rows if point.all_logits else 1
        sequence = Sequence([0] * rows, 0, cache.holding(b""))
        cache.open(sequence.holding, Match([], None))
        try:
            reserved = cache.reserve(sequence.holding, rows)
            assert reserved, "a scratch step needs an idle cache"
            part.runner.forward([RowsOf(sequence, 0, rows, num_logits)])
        finally:
            cache.close(sequence.holding)


def _is_settled(point: Point, tries: SequenceOf[float]) -> bool:
    if len(tries) < (SINGLE_TRIES if point.rows == 1 else 2):
        return False
    return tries[1] <= (1 + SETTLED) * tries[0] or len(tries) >= MAX_TRIES


def _expected(part: Part, point: Point) -> float:
    """Seconds that a step is thought to take: as the fastest so far, or as many rows for which the time is known."""
    if point in part.tries:
        return part.tries[point][0]
    known = [other for other in part.tries if other.all_logits or not point.all_logits]
    if not known:
        return 0.0
    nearest = max((other for other in known if other.rows <= point.rows), default=min(known))
    return part.tries[nearest][0] * max(1.0, point.rows / nearest.rows)
