"""`surefoot bench kernels`: a model's time by operation and rows, beside the limits of the machine, as tables."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from rich.box import SIMPLE
from rich.table import Table

from ...engine.bench.opened import open_model
from .machine import loaded_machine, wide_console

if TYPE_CHECKING:
    from ...engine.bench.kernels import KernelsReport, OpTime, RowsReport


def run(
    path: Path, rows: Sequence[int], *, context: int, seconds: float, kv_type: str, threads: int | None
) -> KernelsReport:
    """Measures and prints. Raises StartError."""
    with loaded_machine():
        opened = open_model(path, kv_type=kv_type, backend="cpu", threads=threads)
        from ...engine.bench.kernels import measure  # only where the native module is there

        report = measure(opened, rows=rows, context=context, seconds=seconds, machine_s=min(2.0, 2 * seconds))
    console = wide_console()
    machine = report.machine
    console.print(
        f"{report.model} from position {report.context} on, {machine.threads} threads, {machine.isa}. The machine's "
        f"limits: {machine.bytes / 1e9:.1f} GB/s read, {machine.byte_products / 1e9:.0f} G byte products/s, "
        f"{machine.float_products / 1e9:.0f} G float products/s"
    )
    for part in report.rows:
        console.print(table(part))
    return report


def table(report: RowsReport) -> Table:
    """Operations of one row count, the dearest first. `limit` is what bounds an operation: memory or arithmetic."""
    rate = report.rows / report.seconds
    title = f"{report.rows} rows, {report.logits_rows} with logits: {1e3 * report.seconds:.2f} ms, {rate:.0f} rows/s"
    shown = Table(box=SIMPLE, title=f"{title} ({report.steps} steps)")
    shown.add_column("operation")
    for name in ("times", "ms", "of the step", "GB/s", "limit ms", "limit", "share of limit"):
        shown.add_column(name, justify="right", no_wrap=True)
    for op in report.ops:
        shown.add_row(*_cells(op, report.seconds))
    shown.add_section()
    shown.add_row(*_cells(report.whole, report.seconds))
    return shown


def _cells(op: OpTime, step_seconds: float) -> list[str]:
    bound = "memory" if op.memory_seconds >= op.arithmetic_seconds else "arithmetic"
    share = op.share_of_limit
    return [
        op.label,
        str(op.count),
        f"{1e3 * op.seconds:.3f}",
        f"{100 * op.seconds / step_seconds:.0f} %",
        f"{op.bytes / op.seconds / 1e9:.1f}" if op.bytes and op.seconds else "",
        f"{1e3 * op.limit_seconds:.3f}" if share is not None else "",
        bound if share is not None else "",
        f"{100 * share:.0f} %" if share is not None else "",
    ]


def as_json(report: KernelsReport) -> str:
    """Everything measured, with the derived figures."""
    parts = [
        {
            **asdict(part),
            "rows_per_second": part.rows / part.seconds,
            "share_of_limit": part.whole.share_of_limit,
            "ops": [{**asdict(op), "share_of_limit": op.share_of_limit} for op in part.ops],
        }
        for part in report.rows
    ]
    return json.dumps(asdict(report) | {"rows": parts}, indent=1)
