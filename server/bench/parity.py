"""`surefoot bench parity`: whether verifies compute what plain decoding computes, as a table."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from rich.box import SIMPLE
from rich.table import Table

from ...engine.bench.opened import open_model
from ...engine.bench.parity import ParityReport, measure
from .machine import loaded_machine, prompt_ids, wide_console

SHOWN_FLIPS = 20


def run(
    path: Path, *, text: Path | None, positions: int, kv_type: str, backend: str | None, threads: int | None
) -> ParityReport:
    """Measures and prints. Raises StartError."""
    with loaded_machine():
        opened = open_model(path, kv_type=kv_type, backend=backend, threads=threads)
        report = measure(opened, prompt_ids(opened, text), positions)
    console = wide_console()
    console.print(table(report))
    flips = [flip for row_class in report.classes for flip in row_class.flips]
    for flip in flips[:SHOWN_FLIPS]:
        console.print(
            f"position {flip.position}, {flip.rows} rows: token {flip.verify} instead of {flip.plain}, "
            f"which plain preferred by {flip.margin:.6g}"
        )
    if len(flips) > SHOWN_FLIPS:
        console.print(f"... and {len(flips) - SHOWN_FLIPS} more (--json has all)")
    console.print(verdict(report))
    return report


def verdict(report: ParityReport) -> str:
    """What the figures mean, in a line."""
    if not report.num_different:
        return "verifies are the same bits as plain decoding"
    promise = "although the backend says that its rows are exact" if report.exact else "as this backend's rows may"
    return f"{report.num_different} verify rows differ from plain decoding, {promise}"


def table(report: ParityReport) -> Table:
    """One line per row class."""
    kind = "exact rows" if report.exact else "inexact rows"
    shown = Table(
        box=SIMPLE, title=f"parity: {report.model} on {report.backend} ({kind}), {report.positions} positions"
    )
    for name in ("rows of a step", "rows compared", "differ in a bit", "largest logit error", "argmax flips"):
        shown.add_column(name, justify="right")
    for row_class in report.classes:
        shown.add_row(
            str(row_class.rows),
            str(row_class.compared),
            str(row_class.different),
            f"{row_class.largest_error:.3g}",
            str(len(row_class.flips)),
        )
    return shown


def as_json(report: ParityReport) -> str:
    """Everything measured."""
    return json.dumps(asdict(report), indent=1)
