"""Traffic on which speculation elsewhere was reported to lose, made of recorded answers and replayed: text that changes
its nature within an answer, company that comes and goes, a machine with other work. Costs are in plain steps."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import pytest

from surefoot.engine.speculation.policy import SpeculationPolicy
from surefoot.engine.speculation.replay import Prices, Replayer, Run, Trace

TRACES = Path(__file__).parents[2] / "data" / "traces"
MODELS = ["smollm2-135m-instruct", "qwen2.5-coder-0.5b-instruct"]
TRIAL = 3.0
Profile = Callable[[int], float]


def large_model(rows: int) -> float:
    return 1 + 0.043 * (rows - 1) if rows <= 8 else 1.3 + 0.11 * (rows - 8)


def small_model(rows: int) -> float:
    return 1 + 0.17 * (rows - 1)


def dear_rows(rows: int) -> float:
    return 1.0 if rows == 1 else (16 + 3.7 * rows) / 15


every_case = pytest.mark.parametrize(
    ("model", "profile"),
    [(m, p) for m in MODELS for p in (large_model, small_model, dear_rows)],
    ids=lambda x: getattr(x, "__name__", x),
)


@cache
def answers(model: str, kind: str) -> list[Trace]:
    """The longer recorded answers of a kind, greedy ones of quotes and code, sampled ones of prose."""
    stored = json.loads((TRACES / f"{model}.json").read_text())
    temperature = 0.8 if kind == "prose" else 0
    chosen = [t for t in stored if t["kind"] == kind and t["temperature"] == temperature and len(t["output"]) >= 150]
    assert chosen
    return [Trace(kind, t["prompt"], t["output"]) for t in chosen]


def units(run: Run, profile: Profile, start: int = 0, stop: int = 1 << 30) -> float:
    """Cost of the steps at output positions from `start` to before `stop`."""
    return sum(
        profile(1 + window)
        for position, window in zip(run.positions, run.windows, strict=True)
        if start <= position < stop
    )


def quoting(model: str) -> Trace:
    """Prompt and answer of a quote: the answer is the prompt's own text, so that a copy is perfect."""
    source = answers(model, "prose")[0].output[:150]
    return Trace("quote", [*answers(model, "quote")[0].prompt[:20], *source, 7, 8], [*source, 7])


def served(prices: Prices, *traces: Trace) -> list[Run]:
    """One process serves them in turn."""
    replayer = Replayer(prices, SpeculationPolicy())
    return [replayer.run(trace) for trace in traces]


@every_case
def test_forty_perfect_tokens_before_free_prose(model: str, profile: Profile) -> None:
    quote, prose = quoting(model), answers(model, "prose")[1]
    trace = Trace("false dawn", quote.prompt, [*quote.output[:40], *prose.output])
    run = served(Prices(profile, noise=0.1), trace)[0]
    plain = len(trace.output) - 1
    assert units(run, profile) <= plain / 0.98
    assert units(run, profile, start=40) <= 1.02 * len(prose.output) + TRIAL, (
        "the prose pays for what the quote promised"
    )
    assert units(run, profile, stop=40) < 0.7 * 40, "the quote is not drafted"


@every_case
def test_a_quote_in_the_same_answer_after_long_prose(model: str, profile: Profile) -> None:
    quote = quoting(model)
    prose = answers(model, "prose")[1].output
    both = Trace("after prose", quote.prompt, [*prose, *quote.output])
    alone, after = served(Prices(profile, noise=0.1), quote)[0], served(Prices(profile, noise=0.1), both)[0]
    assert units(after, profile, start=len(prose)) <= units(alone, profile) / 0.9 + TRIAL


@every_case
def test_code_and_prose_in_turns(model: str, profile: Profile) -> None:
    """P17: stretches of low acceptance inside one answer must not keep the window of the good ones."""
    code, prose = quoting(model), answers(model, "prose")[1].output
    output: list[int] = []
    stretches: list[tuple[int, int]] = []
    for part in range(3):
        output += code.output[50 * part : 50 * part + 50]
        stretches.append((len(output), len(output) + 80))
        output += prose[80 * part : 80 * part + 80]
    trace = Trace("alternating", code.prompt, output)
    run = served(Prices(profile, noise=0.1), trace)[0]
    for start, stop in stretches:
        assert units(run, profile, start + 1, stop) <= 1.02 * (stop - start) + TRIAL
    assert units(run, profile) <= 0.85 * len(output)


@every_case
def test_a_busy_spell_between_two_solo_spells(model: str, profile: Profile) -> None:
    """P13: alone again, a request drafts as well as if it had been alone all the time."""
    trace = quoting(model)
    prices = Prices(profile, noise=0.1)
    undisturbed = served(prices, trace)[0]
    run = Replayer(prices, SpeculationPolicy()).run(trace, crowded=range(40, 80))
    assert not any(w for at, w in zip(run.positions, run.windows, strict=True) if 40 <= at < 80)
    share = (len(trace.output) - 80) / len(trace.output)
    assert units(run, profile, start=80) <= 1.1 * share * units(undisturbed, profile) + 1
    after = [(w, h) for at, w, h in zip(run.positions, run.windows, run.accepted, strict=True) if at >= 80]
    assert sum(hits for _, hits in after) == sum(window for window, _ in after) > 50


@dataclass(frozen=True, slots=True)
class LoadedMachine(Prices):
    """Prices of a machine that other programs slow down two to four times, for spells of some dozen steps."""

    state: list[float] = field(default_factory=lambda: [1.0, 0.0])  # factor, steps that it lasts
    dice: random.Random = field(default_factory=lambda: random.Random(3))

    def seconds(self, rows: int, sequences: int, context: int) -> float:
        if self.state[1] <= 0:
            self.state[:] = [self.dice.choice((1.0, 1.0, 2.0, 4.0)), self.dice.randrange(10, 60)]
        self.state[1] -= 1
        return self.unit * self.rows(rows) * self.state[0]


def total(replayer: Replayer, traces: Sequence[Trace], profile: Profile) -> float:
    return sum(units(replayer.run(trace), profile) for trace in traces)


@every_case
def test_a_loaded_machine_changes_few_decisions(model: str, profile: Profile) -> None:
    traces = [trace for kind in ("prose", "quote", "code", "json") for trace in answers(model, kind)]
    quiet = total(Replayer(Prices(profile, noise=0.1), SpeculationPolicy()), traces, profile)
    loaded = Replayer(LoadedMachine(profile, noise=0.2), SpeculationPolicy(), curve=Prices(profile))
    assert total(loaded, traces, profile) <= 1.05 * quiet
    prose = answers(model, "prose")
    assert total(loaded, prose, profile) <= 1.02 * sum(len(trace.output) for trace in prose) + TRIAL
