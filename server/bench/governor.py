"""`surefoot bench governor`: records answers, replays them under the governors, and prints what each lost in time."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.box import SIMPLE
from rich.table import Table

from ...engine.bench.recording import Recording, load_recording, record
from ...engine.bench.regret import SURFACES, Causality, Regret, causality, measured_surface, regrets
from ...kernels.errors import ConfigError
from .machine import loaded_machine, wide_console

MEASURED = "measured"


@dataclass(frozen=True, slots=True)
class SurfaceReport:
    """All kinds on one price surface."""

    surface: str
    lines: list[Regret]
    causality: Causality


def obtain(traces: Path | None, model: Path | None, tokens: int, threads: int | None) -> Recording:
    """The recording to replay: read from `traces`, or made with `model` and, if asked, written there."""
    if model is None:
        if traces is None:
            raise ConfigError("bench governor needs a file of recorded answers, or --record MODEL to make one")
        return load_recording(traces)
    with loaded_machine():
        made = record(model, tokens, threads=threads)
    if traces is not None:
        made.save(traces)
    return made


def run(recording: Recording, surfaces: Sequence[str] | None) -> list[SurfaceReport]:
    """Replays on the named surfaces: the measured one if there is one, else all the built-in ones."""
    known = ({MEASURED: measured_surface(recording.costs)} if recording.costs else {}) | dict(SURFACES)
    names = surfaces or ([MEASURED] if recording.costs else list(SURFACES))
    if unknown := [name for name in names if name not in known]:
        raise ConfigError(f"--surface {unknown[0]!r}: known are {', '.join(known)}")
    traces = [answer.trace for answer in recording.answers]
    reports: list[SurfaceReport] = []
    with loaded_machine():
        for name in names:
            surface = known[name]
            reports.append(SurfaceReport(name, regrets(traces, surface), causality(traces, surface)))
    console = wide_console()
    for report in reports:
        console.print(table(recording, report))
        checked = report.causality
        console.print(f"decisions that saw the future: {checked.different} of {checked.compared}")
    return reports


def table(recording: Recording, report: SurfaceReport) -> Table:
    """One line per kind of text: what `cost` took, and what it lost (+) or gained (-) against everything else."""
    title = f"{recording.model}, prices: {report.surface}. Governor `cost` against ..."
    shown = Table(box=SIMPLE, title=title)
    shown.add_column("kind")
    headings = ("tokens", "steps", "plain", "probe", "best K", "K", "best K, match", "K, match", "clairvoyant")
    for name in headings:
        shown.add_column(name, justify="right", no_wrap=True)
    for line in report.lines:
        shown.add_row(
            line.kind,
            str(line.tokens),
            f"{line.governed['cost']:.0f}",
            _percent(line.over(line.plain)),
            _percent(line.over(line.governed["probe"])),
            _percent(line.over(line.fixed)),
            str(line.fixed_window),
            _percent(line.over(line.tuned)),
            f"{line.tuned_window}, {line.tuned_match}",
            _percent(line.over(line.clairvoyant)),
        )
    return shown


def _percent(share: float) -> str:
    return f"{100 * share:+.1f} %"


def as_json(recording: Recording, reports: Sequence[SurfaceReport]) -> str:
    """Everything computed."""
    return json.dumps({"model": recording.model, "surfaces": [asdict(report) for report in reports]}, indent=1)
