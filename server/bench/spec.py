"""`surefoot bench spec`: speculation off and on in turns on a live server, perhaps beside another server.

The policy is switched by PATCH between requests, without a reload. Both sides of a pair ask the same question one after
the other, the first of them alternating, and their streams must be the same tokens.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.box import SIMPLE
from rich.table import Table

from .client import Target
from .comparison import Comparison, compare
from .machine import wide_console
from .spec_loads import Load, Result, lower_is_better, summed
from .spec_sides import OFF, ON, Side
from .statistics import MachineLoad, Spread


@dataclass(frozen=True, slots=True)
class Options:
    """What the sides are and how they are asked."""

    url: str
    against: str | None = None
    api_key: str | None = None
    admin_key: str | None = None
    type: str | None = None
    governor: str | None = None
    temperature: float = 0.0
    pairs: int = 20


@dataclass(slots=True)
class Report:
    """All runs: by load and side, in the order of the pairs."""

    sides: list[str]
    before: str
    after: str = "?"
    runs: dict[str, dict[str, list[Result]]] = field(default_factory=dict[str, dict[str, list[Result]]])

    @property
    def compared(self) -> int:
        """Pairs of streams that must be the same."""
        return sum(len(off.streams) for sides in self.runs.values() for off in sides[OFF])

    @property
    def different(self) -> list[str]:
        """Streams that speculation changed, in words."""
        return [
            f"{load}, pair {pair}, stream {stream}: different from token {parting(a, b)} on"
            for load, sides in self.runs.items()
            for pair, (off, on) in enumerate(zip(sides[OFF], sides[ON], strict=True))
            for stream, (a, b) in enumerate(zip(off.streams, on.streams, strict=True))
            if a != b
        ]

    def figures(self, load: str) -> dict[str, dict[str, list[float]]]:
        """Figure -> side -> values of the pairs in which both states of our server have it."""
        sides = self.runs[load]
        found: dict[str, dict[str, list[float]]] = {}
        for pair in range(len(sides[ON])):
            for name in sides[ON][pair].figures:
                if name in sides[OFF][pair].figures:
                    row = found.setdefault(name, {side: [] for side in sides})
                    for side, results in sides.items():
                        if name in results[pair].figures:
                            row[side].append(results[pair].figures[name])
        return found

    def comparison(self, load: str, figure: str, side: str) -> Comparison | None:
        """Speculation on against another side; None where not every pair has the figure on both."""
        values = self.figures(load)[figure]
        if not values[side] or len(values[side]) != len(values[ON]):
            return None
        return compare(values[ON], values[side], lower_is_better(figure))


def parting(a: Sequence[int], b: Sequence[int]) -> int:
    """The first position at which two different streams differ."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def say(line: str) -> None:
    """Progress, for whoever waits: not part of the report."""
    print(line, file=sys.stderr, flush=True)


async def run(options: Options, loads: Sequence[Load], sides: Sequence[Side], seed: int) -> Report:
    """Runs every load in alternation on all sides, after one round that does not count. Puts the server's policy back.

    Raises BenchError where a server answers something unusable.
    """
    admin = Target(options.url, api_key=options.admin_key or options.api_key, label=options.url)
    old: Mapping[str, Any] = (await admin.get_json("/admin/speculation"))["policy"]
    report = Report([side.label for side in sides], MachineLoad.now().text())
    try:
        for load in loads:
            kept = report.runs[load.name] = {side.label: list[Result]() for side in sides}
            say(f"bench spec: {load.name}")
            for pair in range(-1, options.pairs):
                for side in sides if pair % 2 == 0 else reversed(sides):
                    await side.prepare(load.max_batch)
                    result = await load.run(side, max(pair, 0), f"{seed}-{load.name}-{pair}-{side.label}")
                    if pair >= 0:
                        kept[side.label].append(result)
    finally:
        settings = {key: value for key, value in old.items() if key != "generation"}
        await admin.post_json("/admin/speculation", settings, method="PATCH")
    report.after = MachineLoad.now().text()
    return report


def make_sides(options: Options, model: str | None, other: str | None) -> list[Side]:
    """Off, on, and the other server if there is one."""
    admin = Target(options.url, api_key=options.admin_key or options.api_key, label=options.url)
    target = Target(options.url, model, options.api_key, label=options.url)
    fields = {"temperature": options.temperature, "seed": 1}
    chosen = {"type": options.type, "governor": options.governor}
    policy = {"enabled": True, **{key: value for key, value in chosen.items() if value is not None}}
    sides = [
        Side(OFF, target, admin, {"enabled": False}, fields),
        Side(ON, target, admin, policy, fields),
    ]
    if options.against is not None:
        theirs = Target(options.against, other, options.api_key, label=options.against)
        sides.append(Side(options.against, theirs, fields=fields))
    return sides


# --- showing ---------------------------------------------------------------------------------------------------------


def publish(report: Report, json_path: Path | None) -> None:
    """Prints tables and verdicts, and writes the file that was asked for."""
    console = wide_console()
    console.print(f"machine: {report.before} -> {report.after}")
    for load in report.runs:
        console.print(table(report, load))
        console.print(counters(report, load))
    different = report.different
    for line in different:
        console.print(line)
    console.print(f"streams that speculation changed: {len(different)} of {report.compared}")
    if json_path:
        json_path.write_text(as_json(report))


def table(report: Report, load: str) -> Table:
    """Medians by side, and how much better speculation is, with the interval that holds it with 95 %."""
    shown = Table(box=SIMPLE, title=f"{load}: {len(report.runs[load][ON])} pairs")
    shown.add_column("figure")
    for side in report.sides:
        shown.add_column(side, justify="right")
    others = [side for side in report.sides if side != ON]
    for side in others:
        shown.add_column(f"on better than {side} by", justify="right")
    for figure, sides in report.figures(load).items():
        medians = [f"{Spread.of(values).median:.1f}" if values else "" for values in sides.values()]
        ratios = [report.comparison(load, figure, side) for side in others]
        shown.add_row(figure, *medians, *(ratio.text() if ratio else "" for ratio in ratios))
    return shown


def counters(report: Report, load: str) -> str:
    """What speculation did over all runs of a load."""
    total = summed([result.counters for result in report.runs[load][ON]])
    verified, accepted = total.get("verified", 0), total.get("accepted", 0)
    share = f" ({100 * accepted / verified:.0f} %)" if verified else ""
    steps = ", ".join(f"{int(value)} {name}" for name, value in total.items() if name.endswith(" steps"))
    return f"  on: {int(total['tokens'])} tokens, {int(accepted)} of {int(verified)} drafts accepted{share}; {steps}"


def as_json(report: Report) -> str:
    """Everything measured, every run."""
    loads = {
        load: {
            "runs": {side: [asdict(result) for result in results] for side, results in sides.items()},
            "ratios": {
                f"{figure}, on against {side}": asdict(ratio) | {"verdict": ratio.verdict}
                for figure in report.figures(load)
                for side in report.sides
                if side != ON and (ratio := report.comparison(load, figure, side)) is not None
            },
        }
        for load, sides in report.runs.items()
    }
    machine = {"before": report.before, "after": report.after}
    return json.dumps({"machine": machine, "different": report.different, "loads": loads}, indent=1)
