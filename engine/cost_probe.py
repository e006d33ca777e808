"""Measures the cost curve at load: a few steps on the idle machine, in blocks that are given back.

A large model would spend the whole time on three steps. So its rows are timed on shallow copies of its program, which
keep the first operations, the last few layers and the head; a whole step is put together from what a layer adds:

    step(rows) = shallow(rows) + missing layers * (deeper(rows) - shallow(rows)) / layers between the two
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import TypeAlias

from ..kernels.backend import Backend, KvPool, Limits
from ..kernels.program import KvGroup, KvWrite, Program
from .kv_cache import KvCache, Match
from .runner import StepRunner
from .scheduler import StepLimits
from .sequence import Rows, Sequence

POINTS = (  # by importance, (rows, all of them want logits): the time may not suffice for all
    *((8, True), (32, True), (64, False), (4, True), (16, True), (2, True), (16, False)),
    *((3, True), (6, True), (256, False), (12, True), (512, False)),
)
ALWAYS = 3  # points that are worth more than the time allowed: eight rows may be nearly free and 32 not at all
WHOLE_STEPS = 24  # as many single-row steps in the time allowed mean: time the whole program
DEPTH = 6  # a deeper copy has this part of the layers more than the shallow one
TRIES = 2  # the faster one counts
LONG_TRY = 0.03  # seconds after which a second try is not worth it

Measured: TypeAlias = tuple[dict[int, float], dict[int, float]]
Timer: TypeAlias = Callable[[int, bool], float]  # (rows, all of them want logits) -> seconds


def shallow(program: Program, layers: int) -> Program | None:
    """The program with only its last `layers` layers. None where layers are not made of equally many operations."""
    starts = [position for position, op in enumerate(program.ops) if isinstance(op, KvWrite)]
    if layers >= len(starts):
        return None
    if len({after - before for before, after in pairwise(starts)}) != 1:
        return None
    return replace(program, ops=program.ops[: starts[0]] + program.ops[starts[-layers] :])


def num_layers(program: Program) -> int:
    """Layers that write a cache."""
    return sum(isinstance(op, KvWrite) for op in program.ops)


class CostProbe:
    """Times steps of one program on scratch blocks of an idle cache."""

    def __init__(self, backend: Backend, pools: Mapping[KvGroup, KvPool], cache: KvCache, limits: StepLimits) -> None:
        self._backend = backend
        self._pools = pools
        self._cache = cache
        self._limits = limits

    def measure(self, runner: StepRunner, program: Program, seconds: float, largest: int) -> Measured:
        """(decode, prefill) points, rows to seconds, of steps of up to `largest` rows. Takes about `seconds`, or what
        the first points take."""
        self._step(runner, 1, True)  # faults pages in and wakes threads; says nothing about steps to come
        deadline = time.perf_counter() + seconds
        single = self._time(runner, 1, True)
        decode, prefill = {1: single}, dict[int, float]()
        timer = partial(self._time, runner)
        if single * WHOLE_STEPS > seconds and time.perf_counter() < deadline:
            timer = self._shallow_timer(program, single) or timer
        for number, (rows, all_logits) in enumerate(POINTS):
            if number >= ALWAYS and time.perf_counter() >= deadline:
                break
            if rows > (min(largest, self._limits.max_logits_rows) if all_logits else largest):
                continue
            (decode if all_logits else prefill)[rows] = timer(rows, all_logits)
        return decode, prefill

    def _shallow_timer(self, program: Program, single: float) -> Timer | None:
        """Times shallow copies and scales the result so that a single row costs what a whole step did."""
        layers = num_layers(program)
        deeper = 1 + max(1, layers // DEPTH)
        small, large = shallow(program, 1), shallow(program, deeper)
        if small is None or large is None:
            return None
        runners = [self._runner(small), self._runner(large)]
        for runner in runners:
            self._step(runner, 1, True)

        def estimate(rows: int, all_logits: bool) -> float:
            low, high = (self._time(runner, rows, all_logits) for runner in runners)
            return low + max(0.0, high - low) * (layers - 1) / (deeper - 1)

        scale = single / estimate(1, True)
        return lambda rows, all_logits: scale * estimate(rows, all_logits)

    def _runner(self, program: Program) -> StepRunner:
        limits = self._limits
        executor = self._backend.load(
            program, self._pools, Limits(limits.max_rows, limits.max_logits_rows, limits.max_running)
        )
        return StepRunner(self._backend, executor)

    def _time(self, runner: StepRunner, rows: int, all_logits: bool) -> float:
        """The fastest of some tries; one, if that took long."""
        best = float("inf")
        for _ in range(TRIES):
            started = time.perf_counter()
            self._step(runner, rows, all_logits)
            best = min(best, time.perf_counter() - started)
            if best > LONG_TRY:
                break
        return best

    def _step(self, runner: StepRunner, rows: int, all_logits: bool) -> None:
        """One step of an unimportant sequence."""
        cache = self._cache
        sequence = Sequence([0] * rows, 0, cache.holding(b""))
        cache.open(sequence.holding, Match([], None))
        try:
            reserved = cache.reserve(sequence.holding, rows)
            assert reserved, "a scratch step needs an idle cache"
            runner.forward([Rows(sequence, 0, rows, rows if all_logits else 1)])
        finally:
            cache.close(sequence.holding)
