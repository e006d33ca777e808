"""`surefoot bench serve`: a load generator for any OpenAI-compatible server, alone or alternating with another."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

from .client import Target
from .plot import write_bars
from .scenarios import LOWER_IS_BETTER, SCENARIOS, Prompts
from .statistics import MachineLoad, Spread, paired_ratios


@dataclass(slots=True)
class Report:
    """Runs per figure and side; runs at the same index were made beside each other."""

    sides: list[str]
    before: MachineLoad
    after: MachineLoad | None = None
    runs: dict[str, dict[str, list[float]]] = field(default_factory=dict[str, dict[str, list[float]]])

    def note(self, figure: str, side: str, value: float) -> None:
        """Adds one run's figure."""
        self.runs.setdefault(figure, {s: [] for s in self.sides})[side].append(value)

    def ratio(self, figure: str) -> Spread | None:
        """First side over second, oriented so that above 1 means the first is better; None with one side."""
        if len(self.sides) < 2:
            return None
        ours, theirs = (self.runs[figure][side] for side in self.sides)
        better_low = figure.endswith(LOWER_IS_BETTER)
        return paired_ratios(theirs, ours) if better_low else paired_ratios(ours, theirs)

    def as_json(self) -> str:
        """Everything measured, every run."""
        figures = {
            name: {"runs": sides, "ratio": (r.median, r.low, r.high) if (r := self.ratio(name)) else None}
            for name, sides in self.runs.items()
        }
        load = {"before": self.before.text(), "after": self.after.text() if self.after else None}
        return json.dumps({"sides": self.sides, "load": load, "figures": figures}, indent=1)

    def table(self) -> Table:
        """Medians with spread, and the paired ratio."""
        table = Table(title=f"bench serve: {self.before.text()} -> {self.after.text() if self.after else '?'}")
        table.add_column("figure")
        for side in self.sides:
            table.add_column(side, justify="right")
        if len(self.sides) == 2:
            table.add_column("better by", justify="right")
        for name, sides in self.runs.items():
            cells = [Spread.of(values).text() for values in sides.values()]
            ratio = self.ratio(name)
            table.add_row(name, *cells, *([f"{ratio.text(2)}x"] if ratio else []))
        return table


async def run(targets: list[Target], names: list[str], repeats: int, seed: int = 1) -> Report:
    """Runs each scenario `repeats` times on every target, alternating, after one run that is not counted.

    Raises BenchError if a server answers something unusable.
    """
    prompts = await Prompts.from_target(targets[0])
    report = Report([t.label for t in targets], MachineLoad.now())
    for index, name in enumerate(names):
        for repeat in range(repeats + 1):
            run_seed = seed * 1_000_003 + index * 1009 + repeat * 10
            order = targets if repeat % 2 == 0 else targets[::-1]
            for target in order:
                figures = await SCENARIOS[name](target, prompts, run_seed)
                if repeat > 0:
                    for figure, value in figures.items():
                        report.note(figure, target.label, value)
    report.after = MachineLoad.now()
    return report


def publish(report: Report, json_path: Path | None, plot_path: Path | None) -> None:
    """Prints the table and writes the files that were asked for."""
    Console().print(report.table())
    if json_path:
        json_path.write_text(report.as_json())
    if plot_path:
        write_bars(
            plot_path, {name: {s: Spread.of(v) for s, v in sides.items()} for name, sides in report.runs.items()}
        )
