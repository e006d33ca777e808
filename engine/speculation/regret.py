"""What a governor's choices cost over recorded traces, against what hindsight and clairvoyance would have paid.

All figures are in plain steps. Regret is a policy's cost over a reference's, minus one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .policy import SpeculationPolicy
from .replay import (
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

ALL = "all"


@dataclass(frozen=True, slots=True)
class Row:
    """Costs of one kind of text, by policy; `window` and `pair` say what hindsight chose for it."""

    kind: str
    requests: int
    plain: float
    governors: dict[str, float]
    fixed: float  # the best fixed window for this kind
    window: int
    tuned: float  # the best fixed (window, least match) for this kind
    pair: tuple[int, int]
    clairvoyant: float
    worst_request: dict[str, float]  # by governor: the most that a request paid over plain, as a ratio

    def regret(self, governor: str, reference: str) -> float:
        """`reference` is plain, fixed, tuned, clairvoyant or another governor."""
        base = self.governors[reference] if reference in self.governors else float(getattr(self, reference))
        return self.governors[governor] / base - 1.0

    def as_dict(self) -> dict[str, object]:
        """For JSON."""
        return {
            "kind": self.kind,
            "requests": self.requests,
            "plain": self.plain,
            **self.governors,
            "best_fixed": self.fixed,
            "best_fixed_window": self.window,
            "tuned": self.tuned,
            "tuned_window_and_match": list(self.pair),
            "clairvoyant": self.clairvoyant,
            "worst_request": self.worst_request,
        }


def load_traces(path: Path) -> list[Trace]:
    """Traces as they are stored: a JSON list of {kind, temperature, prompt, output}."""
    stored: list[dict[str, Any]] = json.loads(path.read_text())
    return [Trace(f"{item['kind']} {item['temperature']}", item["prompt"], item["output"]) for item in stored]


def regret_table(
    traces: Sequence[Trace],
    prices: Prices,
    index: Callable[[int], Any],
    governors: Sequence[str] = ("cost", "probe"),
) -> list[Row]:
    """A row for each kind of text, and one for all. Governors serve the traces in their order, one process each."""
    chances = [opportunities(trace, index) for trace in traces]
    costs = {name: _served(traces, prices, name) for name in governors}
    kinds = list(dict.fromkeys(trace.kind for trace in traces))
    rows = [_row(kind, [i for i, t in enumerate(traces) if t.kind == kind], chances, prices, costs) for kind in kinds]
    return [*rows, _row(ALL, list(range(len(traces))), chances, prices, costs)]


def _served(traces: Sequence[Trace], prices: Prices, governor: str) -> list[float]:
    replayer = Replayer(prices, SpeculationPolicy(governor=governor))
    return [sum(prices.rows(1 + window) for window in replayer.run(trace).windows) for trace in traces]


def _row(
    kind: str,
    numbers: Sequence[int],
    chances: Sequence[Sequence[Opportunity]],
    prices: Prices,
    costs: dict[str, list[float]],
) -> Row:
    group = [chances[i] for i in numbers]
    fixed, window, _ = best_fixed(group, prices)
    tuned, *pair = best_fixed(group, prices, MATCHES)
    plain = [plain_units(chance, prices) for chance in group]
    return Row(
        kind=kind,
        requests=len(numbers),
        plain=sum(plain),
        governors={name: sum(spent[i] for i in numbers) for name, spent in costs.items()},
        fixed=fixed,
        window=window,
        tuned=tuned,
        pair=(pair[0], pair[1]),
        clairvoyant=sum(clairvoyant_units(chance, prices) for chance in group),
        worst_request={
            name: max(spent[i] / base for i, base in zip(numbers, plain, strict=True) if base)
            for name, spent in costs.items()
        },
    )
