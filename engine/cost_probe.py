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
    *((8, True), (32, True), (4, True), (64, False), (16, True), (2, True), (16, False)),
    *((3, True), (6, True), (256, False), (12, True), (512, False)),
)
ALWAYS = 4  # points that are worth more than the time allowed: eight rows may be nearly free and 32 not at all
WHOLE_STEPS = 8  # as many single-row steps in the time allowed mean: time the whole program
DEPTH = 4  # a deeper copy has this part of the layers more than the shallow one
TRIES = 3  # the fastest one counts: other programs make steps slower, nothing makes them faster than they are
SINGLE_TRIES = 5  # of the single row, which everything is compared with
LONG_TRY = 0.1  # seconds after which no further try is worth it
SUSPICIOUS = 1.1  # a point so far above the line through its neighbours is timed again: somebody may have disturbed it

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


def suspicious(points: Mapping[int, float]) -> list[int]:
    """Row counts whose time lies well above the line through the times of their neighbours. More rows share more, until
    arithmetic is all that is left: there is little reason for such a bend but a busy machine."""
    rows = sorted(points)
    found: list[int] = []
    for before, count, after in zip(rows, rows[1:], rows[2:], strict=False):
        share = (count - before) / (after - before)
        if points[count] > SUSPICIOUS * (points[before] + share * (points[after] - points[before])):
            found.append(count)
    return found


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
        single = self._time(runner, 1, True, SINGLE_TRIES)
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
        for rows in suspicious(decode):
            decode[rows] = min(decode[rows], timer(rows, True))
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

    def _time(self, runner: StepRunner, rows: int, all_logits: bool, tries: int = TRIES) -> float:
        """The fastest of some tries; fewer, if they take long."""
        best, spent = float("inf"), 0.0
        for _ in range(tries):
            started = time.perf_counter()
            self._step(runner, rows, all_logits)
            seconds = time.perf_counter() - started
            best, spent = min(best, seconds), spent + seconds
            if spent > LONG_TRY:
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
