"""`surefoot bench ...`: the commands. What they measure is in the files beside this one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from ...kernels.errors import ConfigError

Model = Annotated[Path, typer.Argument(metavar="MODEL", help="A GGUF file.")]
Text = Annotated[Path | None, typer.Option(help="File with the prompt; a built-in text by default.")]
KvTypeName = Annotated[str, typer.Option(help="f32, f16, bf16 or q8_0.")]
BackendName = Annotated[str | None, typer.Option("--backend", help="The best of this installation by default.")]
Threads = Annotated[int | None, typer.Option(min=1, help="As many as the process may use by default.")]
JsonOut = Annotated[Path | None, typer.Option("--json", help="Write everything measured here.")]

bench = typer.Typer(help="Measure a server or this machine.")


@bench.callback()
def _bench() -> None:  # pyright: ignore[reportUnusedFunction]
    """Measure a server or this machine."""


@contextmanager
def _usable(name: str) -> Generator[None]:
    """A server that a bench cannot use ends it with one line."""
    from .client import BenchError

    try:
        yield
    except (BenchError, OSError) as error:
        raise ConfigError(f"bench {name}: {error}") from error


@bench.command()
def serve(
    url: Annotated[str, typer.Argument(help="Base URL of an OpenAI-compatible server, without /v1.")],
    against: Annotated[str | None, typer.Option(help="A second server, measured in alternation.")] = None,
    scenario: Annotated[list[str] | None, typer.Option(help="Which loads; all of them by default.")] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Counted runs of each load and side.")] = 5,
    api_key: Annotated[str | None, typer.Option(help="Key for both servers.")] = None,
    json_out: Annotated[Path | None, typer.Option("--json", help="Write every run here.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Write an SVG here.")] = None,
) -> None:
    """Put loads on a server and report tokens per second, time to first token and gaps between tokens."""
    from .client import Target
    from .scenarios import SCENARIOS
    from .serve import publish, run

    names = scenario or list(SCENARIOS)
    if unknown := [name for name in names if name not in SCENARIOS]:
        raise ConfigError(f"--scenario {unknown[0]}: known are {', '.join(SCENARIOS)}")
    urls = [url, against] if against else [url]
    targets = [Target(u, api_key=api_key, label=u) for u in urls]
    with _usable("serve"):
        # The seed comes from the clock: a second call must not find its prompts in a prefix cache.
        report = asyncio.run(run(targets, names, repeats, seed=time.time_ns() % 1_000_000))
    publish(report, json_out, plot)


@bench.command()
def parity(
    model: Model,
    text: Text = None,
    positions: Annotated[int, typer.Option(min=1, help="Tokens to continue the prompt by and compare.")] = 96,
    kv_type: KvTypeName = "f16",
    backend: BackendName = None,
    threads: Threads = None,
    json_out: JsonOut = None,
) -> None:
    """Compare every row of verify steps with the same row computed alone. Exit code 1: exact rows were promised, but
    are not."""
    from . import parity as command

    report = command.run(model, text=text, positions=positions, kv_type=kv_type, backend=backend, threads=threads)
    if json_out:
        json_out.write_text(command.as_json(report))
    raise typer.Exit(1 if report.promise_broken else 0)


@bench.command()
def governor(
    traces: Annotated[Path | None, typer.Argument(help="Recorded answers, read; with --record, written.")] = None,
    record: Annotated[Path | None, typer.Option(metavar="MODEL", help="A GGUF file whose answers to record.")] = None,
    tokens: Annotated[int, typer.Option(min=2, help="Length of recorded answers.")] = 150,
    threads: Threads = None,
    surface: Annotated[list[str] | None, typer.Option(help="Price surfaces; the recording's own by default.")] = None,
    json_out: JsonOut = None,
) -> None:
    """Replay recorded answers under the governors: time lost against plain decoding, fixed windows and foresight.

    Exit code 1: a decision depended on text that was not emitted yet.
    """
    from . import governor as command

    recording = command.obtain(traces, record, tokens, threads)
    reports = command.run(recording, surface)
    if json_out:
        json_out.write_text(command.as_json(recording, reports))
    raise typer.Exit(1 if any(report.causality.different for report in reports) else 0)


@bench.command()
def spec(
    url: Annotated[str, typer.Argument(help="Base URL of a Surefoot server, without /v1.")],
    against: Annotated[str | None, typer.Option(help="Another server, measured in alternation.")] = None,
    api_key: Annotated[str | None, typer.Option(help="Key for both servers.")] = None,
    admin_key: Annotated[str | None, typer.Option(help="Key of /admin, if the server has one.")] = None,
    load: Annotated[
        list[str] | None,
        typer.Option(
            help="Kinds of turns, chat, crowd: all by default; "
            "false-dawn, alternating, after-prose, busy-spell, loaded-machine."
        ),
    ] = None,
    pairs: Annotated[int, typer.Option(min=1, help="Counted runs of each load on every side.")] = 20,
    tokens: Annotated[int, typer.Option(min=2, help="Most tokens of an answer.")] = 200,
    system_words: Annotated[int | None, typer.Option(help="Length of the chats' system prompt.")] = None,
    concurrency: Annotated[str, typer.Option(help="Sizes of crowds.")] = "1,2,4",
    stagger_ms: Annotated[str, typer.Option(help="Milliseconds between a crowd's starts.")] = "0,600",
    type_: Annotated[str | None, typer.Option("--type", help="Algorithm of the `on` side.")] = None,
    governor: Annotated[str | None, typer.Option(help="Governor of the `on` side; unchanged by default.")] = None,
    temperature: Annotated[float, typer.Option(min=0)] = 0.0,
    json_out: JsonOut = None,
) -> None:
    """Switch a live server's speculation off and on in turns: same streams, and how much faster with which certainty.

    Exit code 1: a stream changed.
    """
    from . import spec as command
    from .spec_plan import Plan, measure

    options = command.Options(url, against, api_key, admin_key, type_, governor, temperature, pairs)
    plan = Plan(
        load,
        tokens,
        system_words,
        whole_numbers("--concurrency", concurrency, 1),
        whole_numbers("--stagger-ms", stagger_ms, 0),
    )
    with _usable("spec"):
        report = asyncio.run(measure(options, plan))
    command.publish(report, json_out)
    raise typer.Exit(1 if report.different else 0)


@bench.command()
def kernels(
    model: Model,
    rows: Annotated[str, typer.Option(help="Rows of a step, one table each.")] = "1,2,4,8,16,512",
    context: Annotated[int, typer.Option(min=1, help="Positions in the cache before the step.")] = 128,
    seconds: Annotated[float, typer.Option(min=0.01, help="Time for each row count.")] = 1.5,
    kv_type: KvTypeName = "f16",
    threads: Threads = None,
    json_out: JsonOut = None,
) -> None:
    """Time of every operation of a model by rows of a step, against the memory and arithmetic limits measured here."""
    from . import kernels as command

    counts = whole_numbers("--rows", rows, 1)
    report = command.run(model, counts, context=context, seconds=seconds, kv_type=kv_type, threads=threads)
    if json_out:
        json_out.write_text(command.as_json(report))


@bench.command()
def overhead(
    model: Model,
    streams: Annotated[str, typer.Option(help="How many streams at once, one line each.")] = "1,4,8,16",
    tokens: Annotated[int, typer.Option(min=2, help="Length of every answer.")] = 128,
    pairs: Annotated[int, typer.Option(min=1, help="Counted runs of each side.")] = 5,
    threads: Threads = None,
    json_out: JsonOut = None,
) -> None:
    """Stream answers over HTTP and straight from an engine, in turns: what HTTP and Python take of a model's speed."""
    from . import overhead as command

    counts = whole_numbers("--streams", streams, 1)
    with _usable("overhead"):
        report = command.run(model, counts, tokens=tokens, pairs=pairs, threads=threads)
    command.publish(report, json_out)


def whole_numbers(option: str, text: str, least: int) -> list[int]:
    """A comma-separated list. Raises ConfigError."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) >= least for part in parts):
        raise ConfigError(f"{option} {text!r}: whole numbers of at least {least}, separated by commas, are expected")
    return [int(part) for part in parts]
