"""Replays recorded answers under governors and says how much time each lost against what could have been done.

Times are in plain steps: a step of n rows costs what the price surface says. Everything is deterministic.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from ..speculation.governor.shape import FixedShape
from ..speculation.ngram_index import NgramIndex
from ..speculation.policy import SpeculationPolicy
from ..speculation.replay import (
    MATCHES,
    Opportunity,
    Prices,
    Replayer,
    Trace,
    best_fixed,
    clairvoyant_units,
    opportunities,
    plain_units,
)

Surface = Callable[[int], float]
GOVERNORS = ("cost", "probe")
WHOLE = "all"
NOISE = 0.1  # standard deviation of the logarithm of a step's time, as governors see it


def _small_model(rows: int) -> float:
    return 1 + 0.17 * (rows - 1)


def _large_model(rows: int) -> float:
    return 1 + 0.043 * (rows - 1) if rows <= 8 else 1.3 + 0.11 * (rows - 8)


def _wide_device(rows: int) -> float:
    return 1.0 if rows == 1 else 1.10 + 0.015 * (rows - 1)


def _dear_rows(rows: int) -> float:
    return 1.0 if rows == 1 else (16 + 3.7 * rows) / 15


# Plain steps by rows, for recordings without costs of their own.
SURFACES: Mapping[str, Surface] = {
    "small model": _small_model,  # little memory traffic to share
    "large model": _large_model,  # eight rows are nearly free, later ones are arithmetic
    "wide device": _wide_device,  # a step up for any verify, then almost flat
    "dear rows": _dear_rows,
}


def measured_surface(costs: Mapping[int, float]) -> Surface:
    """The surface of a measured cost table, rows (from 1) to seconds."""
    rows = sorted(costs)
    shape = FixedShape(rows, [costs[count] for count in rows])
    return lambda count: shape.seconds(count, 1, 0) / shape.costs[0]


@dataclass(frozen=True, slots=True)
class Regret:
    """One kind of text. Plain steps; windows and matches are those that hindsight picks."""

    kind: str
    tokens: int
    plain: float
    fixed: float
    fixed_window: int
    tuned: float
    tuned_window: int
    tuned_match: int
    clairvoyant: float
    governed: Mapping[str, float]  # by governor

    def over(self, reference: float, governor: str = "cost") -> float:
        """Time lost against a reference, as a share of it; negative: gained."""
        return self.governed[governor] / reference - 1


def regrets(
    traces: Sequence[Trace], surface: Surface, *, governors: Sequence[str] = GOVERNORS, noise: float = NOISE
) -> list[Regret]:
    """One line per kind, in the order of first appearance, and one for all. One process serves the traces in order."""
    prices = Prices(surface, noise=noise)
    chances = [opportunities(trace, NgramIndex) for trace in traces]
    spent: dict[str, list[float]] = {}
    for governor in governors:
        replayer = Replayer(prices, SpeculationPolicy(governor=governor), curve=replace(prices, noise=0.0))
        spent[governor] = [sum(surface(1 + w) for w in replayer.run(trace).windows) for trace in traces]
    kinds: dict[str, list[int]] = {}
    for number, trace in enumerate(traces):
        kinds.setdefault(trace.kind, []).append(number)
    lines = [_line(kind, numbers, chances, spent, prices) for kind, numbers in kinds.items()]
    return [*lines, _line(WHOLE, list(range(len(traces))), chances, spent, prices)]


def _line(
    kind: str,
    numbers: Sequence[int],
    chances: Sequence[Sequence[Opportunity]],
    spent: Mapping[str, Sequence[float]],
    prices: Prices,
) -> Regret:
    group = [chances[number] for number in numbers]
    fixed, fixed_window, _ = best_fixed(group, prices)
    tuned, tuned_window, tuned_match = best_fixed(group, prices, MATCHES)
    return Regret(
        kind=kind,
        tokens=sum(len(each) for each in group),
        plain=sum(plain_units(each, prices) for each in group),
        fixed=fixed,
        fixed_window=fixed_window,
        tuned=tuned,
        tuned_window=tuned_window,
        tuned_match=tuned_match,
        clairvoyant=sum(clairvoyant_units(each, prices) for each in group),
        governed={governor: sum(costs[number] for number in numbers) for governor, costs in spent.items()},
    )


@dataclass(frozen=True, slots=True)
class Causality:
    """Decisions made twice, with and without the text's future changed, and how many came out different."""

    compared: int
    different: int


def causality(
    traces: Sequence[Trace], surface: Surface, *, governors: Sequence[str] = GOVERNORS, noise: float = NOISE
) -> Causality:
    """Serves each trace twice with the same past: as recorded, and with everything from its middle on replaced by
    other tokens. No window chosen before the texts part may differ."""
    compared = different = 0
    for governor in governors:
        for number, trace in enumerate(traces):
            cut = len(trace.output) // 2
            if cut < 1:
                continue
            other = traces[(number + 1) % len(traces)].output
            future = [other[i % len(other)] for i in range(len(trace.output) - cut)]
            if future[0] == trace.output[cut]:
                future[0] += 1
            changed = replace(trace, output=[*trace.output[:cut], *future])
            past = traces[max(0, number - 1) : number]
            first, second = (_decisions([*past, t], surface, governor, noise, cut) for t in (trace, changed))
            compared += len(first)
            different += sum(a != b for a, b in zip(first, second, strict=False)) + abs(len(first) - len(second))
    return Causality(compared, different)


def _decisions(
    traces: Sequence[Trace], surface: Surface, governor: str, noise: float, cut: int
) -> list[tuple[int, int]]:
    """(output position, window) of the last trace's steps that knew nothing from `cut` on."""
    prices = Prices(surface, noise=noise)
    replayer = Replayer(prices, SpeculationPolicy(governor=governor), curve=replace(prices, noise=0.0))
    run = [replayer.run(trace) for trace in traces][-1]
    return [(at, window) for at, window in zip(run.positions, run.windows, strict=True) if at <= cut]
