"""`surefoot bench overhead`: what serving costs beside computing. The same streams through HTTP and straight into an
engine, in turns, and where the engine thread's time went, by its own metrics."""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from prometheus_client.samples import Sample
from rich.box import SIMPLE
from rich.table import Table

from ...engine.bench.direct import DecodeTurns, decode_turns, drive
from ...engine.config import EngineConfig
from ...engine.engine import Engine
from ...engine.opening import open_engine
from ...engine.settling import settle
from ...kernels.errors import RequestError
from .client import BenchError, Target
from .machine import wide_console
from .quiet_client import stream_all
from .scenarios import Prompts
from .server_process import ServerProcess, served
from .statistics import MachineLoad, Spread, paired_ratios

PROMPT_TOKENS = 64
DIRECT, SERVED = SIDES = ("direct", "served")


@dataclass(frozen=True, slots=True)
class Run:
    """One load on one side. The last two are nothing where no HTTP is spoken."""

    tokens_per_second: float
    turns: DecodeTurns
    loop_us: float | None = None  # CPU time of the server's event loop, per token
    client_us: float | None = None  # CPU time of the process that reads, per token


@dataclass(slots=True)
class Report:
    """All runs; those at the same index were made beside each other."""

    model: str
    threads: int | None
    before: MachineLoad
    after: MachineLoad | None = None
    runs: dict[int, dict[str, list[Run]]] = field(default_factory=dict[int, dict[str, list[Run]]])  # by streams, side

    def note(self, count: int, pair: Mapping[str, Run]) -> None:
        """Adds a run of each side."""
        for side, run in pair.items():
            self.runs.setdefault(count, {side: [] for side in SIDES})[side].append(run)

    def cost(self, count: int) -> Spread:
        """Share of the direct throughput that serving takes, of each pair."""
        ratio = paired_ratios(*([run.tokens_per_second for run in self.runs[count][side]] for side in (SERVED, DIRECT)))
        return Spread(1 - ratio.median, 1 - ratio.high, 1 - ratio.low, ratio.runs)


def run(model: Path, counts: Sequence[int], *, tokens: int, pairs: int, threads: int | None) -> Report:
    """Measures, after one pair that is not counted. Raises StartError or BenchError."""
    most = max(counts)
    chosen = [] if threads is None else ["--threads", str(threads)]
    report = Report(model.stem, threads, MachineLoad.now())
    engine = open_engine(model, EngineConfig(max_running=most), threads=threads).engine
    settle().join()  # as a server does
    engine.start()
    try:
        with served(model, ["--max-running", str(most), *chosen]) as server:
            stock = asyncio.run(Prompts.from_target(Target(server.url)))
            for index, count in enumerate(counts):
                for pair in range(pairs + 1):
                    seed = 1000 * (100 * index + pair)
                    prompts = [stock.make(PROMPT_TOKENS, seed + number) for number in range(count)]
                    order = SIDES if pair % 2 else SIDES[::-1]
                    result = {side: _run_one(side, server, engine, prompts, tokens) for side in order}
                    if pair:
                        report.note(count, result)
    finally:
        engine.stop()
    report.after = MachineLoad.now()
    return report


def _run_one(side: str, server: ServerProcess, engine: Engine, prompts: Sequence[Sequence[int]], tokens: int) -> Run:
    return _drive(engine, prompts, tokens) if side == DIRECT else asyncio.run(_serve(server, prompts, tokens))


def _drive(engine: Engine, prompts: Sequence[Sequence[int]], tokens: int) -> Run:
    before = decode_turns(engine)
    try:
        done = drive(engine, prompts, tokens)
    except RequestError as error:
        raise BenchError(f"the engine ended a stream: {error.message}") from error
    return Run(done.num_tokens / done.seconds, decode_turns(engine).since(before))


async def _serve(server: ServerProcess, prompts: Sequence[Sequence[int]], tokens: int) -> Run:
    target = Target(server.url)
    before = served_turns(await target.metrics())
    loop, own = server.loop_seconds(), time.process_time()
    done = await stream_all(server.url, prompts, tokens)
    own = time.process_time() - own
    after = server.loop_seconds()
    return Run(
        done.num_tokens / done.seconds,
        served_turns(await target.metrics()).since(before),
        None if loop is None or after is None else 1e6 * (after - loop) / done.num_tokens,
        1e6 * own / done.num_tokens,
    )


def served_turns(metrics: Sequence[Sample]) -> DecodeTurns:
    """The same figures as `decode_turns`, from a scrape of the server."""
    values: dict[str, float] = {}
    for sample in metrics:
        if sample.labels.get("kind") == "decode":
            if sample.name == "surefoot_engine_turn_seconds_total":
                values[sample.labels["part"]] = sample.value
            elif sample.name == "surefoot_step_seconds_count":
                values["steps"] = sample.value
    return DecodeTurns(**values)


def publish(report: Report, json_path: Path | None) -> None:
    """Prints the table and writes the file that was asked for."""
    console = wide_console()
    threads = "automatic" if report.threads is None else report.threads
    console.print(f"{report.model}, {threads} threads; medians (lowest-highest)")
    console.print(table(report))
    console.print(
        "Python: microseconds of a decode step in which the engine thread was not in native code, its wait for the GIL "
        "included. Event loop, reader: CPU time of the server's event loop, and of the process that reads the streams."
    )
    console.print(f"machine before: {report.before.text()}")
    console.print(f"machine after:  {report.after.text() if report.after else '?'}")
    if json_path:
        json_path.write_text(json.dumps(asdict(report), indent=1))


def table(report: Report) -> Table:
    """One line per number of streams."""
    shown = Table(box=SIMPLE)
    for name in (
        "streams",
        "direct tok/s",
        "served tok/s",
        "HTTP takes",
        "native ms",
        "Python us, direct",
        "served",
        "of it GIL us",
        "event loop us/token",
        "reader us/token",
    ):
        shown.add_column(name, justify="right")
    for count, sides in report.runs.items():
        direct, served = sides[DIRECT], sides[SERVED]
        cost = report.cost(count)
        shown.add_row(
            str(count),
            Spread.of([run.tokens_per_second for run in direct]).text(0),
            Spread.of([run.tokens_per_second for run in served]).text(0),
            f"{100 * cost.median:.1f} % ({100 * cost.low:.1f}-{100 * cost.high:.1f})",
            _median([1e3 * run.turns.native / run.turns.steps for run in served], 2),
            _median([python_us(run.turns) for run in direct]),
            _median([python_us(run.turns) for run in served]),
            _median([1e6 * run.turns.gil_wait / run.turns.steps for run in served]),
            _median([run.loop_us for run in served]),
            _median([run.client_us for run in served]),
        )
    return shown


def _median(values: Sequence[float | None], digits: int = 0) -> str:
    known = [value for value in values if value is not None]
    return f"{statistics.median(known):.{digits}f}" if known else "?"


def python_us(turns: DecodeTurns) -> float:
    """Microseconds per step outside of native code."""
    return 1e6 * (turns.python + turns.gil_wait) / turns.steps
