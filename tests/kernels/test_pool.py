"""The thread pool: every chunk once, stages in order, cancelling between stages, and grace on a busy machine."""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from multiprocessing.synchronize import Event
from pathlib import Path
from statistics import median

import numpy as np
import pytest

from surefoot.kernels.cpu import _ops

ISA = _ops.instruction_sets()[-1]


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
def test_every_chunk_runs_once_and_stages_keep_their_order(threads: int) -> None:
    runtime, order = _ops.Runtime(ISA, threads), np.random.default_rng(threads)
    assert runtime.threads == threads
    for _ in range(100):
        chunks = order.choice([0, 1, 2, 5, 40], 30).tolist()
        result = runtime.probe(chunks)
        assert result.completed
        assert result.runs == chunks
        assert result.out_of_order == 0
        assert sum(result.by_worker) == sum(chunks)


def test_jobs_after_sleep_are_shared_again() -> None:
    """Workers that went to sleep between two jobs wake up and take part."""
    runtime = _ops.Runtime(ISA, 2)
    taken = 0
    for _ in range(20):
        time.sleep(0.002)  # far beyond the time that a worker spins
        taken += runtime.probe([40], 200.0).by_worker[1]
    assert taken > 0


def test_cancel_ends_the_job_after_the_open_stage() -> None:
    runtime = _ops.Runtime(ISA, 2)
    result = runtime.probe([4, 4, 4, 4], cancel_after=6)
    assert not result.completed
    assert result.runs == [4, 4, 0, 0]
    assert runtime.probe([3, 3]).completed


def test_pools_do_not_disturb_each_other() -> None:
    """Two pools of two threads each, driven at once from two threads: all work done, nothing lost."""
    faults: list[list[int]] = []

    def drive() -> None:
        runtime = _ops.Runtime(ISA, 2)
        for _ in range(200):
            result = runtime.probe([7, 1, 9])
            if result.runs != [7, 1, 9] or result.out_of_order:
                faults.append(result.runs)

    drivers = [threading.Thread(target=drive) for _ in range(2)]
    for driver in drivers:
        driver.start()
    for driver in drivers:
        driver.join()
    assert faults == []


def _burn(stop: Event) -> None:
    while not stop.is_set():
        for _ in range(10_000):
            pass


def _busy_cores(seconds: float = 0.5) -> float:
    """Cores that somebody uses now; the load average still remembers what ended a minute ago."""

    def idle_ticks() -> int:
        return sum(map(int, Path("/proc/stat").read_text().split("\n")[0].split()[4:6]))

    before = idle_ticks()
    time.sleep(seconds)
    idle = (idle_ticks() - before) / os.sysconf("SC_CLK_TCK") / seconds
    return max(0.0, len(os.sched_getaffinity(0)) - idle)


@pytest.mark.slow
@pytest.mark.quiet
def test_beside_a_busy_process_two_threads_lose_at_most_a_factor_of_two_and_a_half() -> None:
    """150 stages of about 60 microseconds, as a decode step has them. Needs a machine that is otherwise quiet."""
    busy_cores = _busy_cores()
    if busy_cores > 0.3:
        pytest.skip(f"the machine is busy ({busy_cores:.1f} cores)")
    runtime, stages = _ops.Runtime(ISA, 2), [8] * 150
    quiet = median(runtime.probe(stages, 15.0).seconds for _ in range(50))
    context = multiprocessing.get_context("spawn")
    stop = context.Event()
    burner = context.Process(target=_burn, args=(stop,))
    burner.start()
    time.sleep(1.0)
    busy = median(runtime.probe(stages, 15.0).seconds for _ in range(50))
    stop.set()
    burner.join()
    assert busy < 2.5 * quiet
