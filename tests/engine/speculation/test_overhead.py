"""What speculation costs a step that gains nothing from it: propose, commit, shadow scoring and governor together."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from surefoot.engine.speculation.policy import SpeculationPolicy
from surefoot.engine.speculation.replay import PlannedEntry, Prices, Replayer, SimulatedSequence, Trace

pytest.importorskip("surefoot.kernels.cpu._ops", reason="the native kernels are not built")

TRACES = Path(__file__).parents[2] / "data" / "traces" / "smollm2-135m-instruct.json"
BUDGET = 25e-6  # one percent of a plain step of the smallest model served


def seconds_per_step(traces: list[Trace]) -> float:
    """Processor time per step of the session alone, over answers that are free prose."""
    prices = Prices(lambda rows: 1 + 0.17 * (rows - 1), unit=0.005)
    session = Replayer(prices, SpeculationPolicy()).session
    spent, steps = 0.0, 0
    for number, trace in enumerate(traces):
        sequence = SimulatedSequence(f"r{number}", trace)
        while len(sequence.tokens) < sequence.max_length:
            started = time.thread_time()
            session.prepare((sequence,), crowded=False)
            drafts = session.draft((PlannedEntry(sequence, sequence.draft_window),))
            spent += time.thread_time() - started
            emitted = len(sequence.tokens) - sequence.num_prompt
            hits, draft = 0, drafts[0] if drafts else ()
            while hits < len(draft) and draft[hits] == trace.output[emitted + hits]:
                hits += 1
            start = sequence.num_computed
            sequence.tokens += trace.output[emitted : emitted + hits + 1]
            sequence.num_computed = start + 1 + hits
            session._began -= prices.seconds(1 + len(draft), 1, 0)  # as if the step had taken that long
            started = time.thread_time()
            session.accepted(sequence, start, hits)
            session.finish(1, 1 + len(draft), 0)
            spent += time.thread_time() - started
            steps += 1
        session.release(sequence)
    return spent / steps


def test_a_step_of_free_prose_pays_at_most_25_microseconds() -> None:
    stored = [t for t in json.loads(TRACES.read_text()) if t["kind"] == "prose" and t["temperature"] > 0]
    traces = [Trace("prose", t["prompt"], t["output"]) for t in stored]
    best = min(seconds_per_step(traces) for _ in range(5))  # the machine is shared
    assert best < BUDGET, f"{1e6 * best:.1f} microseconds"
