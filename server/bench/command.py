"""`surefoot bench ...`: the commands. What they measure is in the files beside this one."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Annotated

import typer

from ...kernels.errors import ConfigError

bench = typer.Typer(help="Measure a server or this machine.", no_args_is_help=True)


@bench.callback()
def _bench() -> None:  # pyright: ignore[reportUnusedFunction]
    """Measure a server or this machine."""


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
    from .client import BenchError, Target
    from .scenarios import SCENARIOS
    from .serve import publish, run

    names = scenario or list(SCENARIOS)
    if unknown := [name for name in names if name not in SCENARIOS]:
        raise ConfigError(f"--scenario {unknown[0]}: known are {', '.join(SCENARIOS)}")
    urls = [url, against] if against else [url]
    targets = [Target(u, api_key=api_key, label=u) for u in urls]
    try:
        # The seed comes from the clock: a second call must not find its prompts in a prefix cache.
        report = asyncio.run(run(targets, names, repeats, seed=time.time_ns() % 1_000_000))
    except (BenchError, OSError) as error:
        raise ConfigError(f"bench serve: {error}") from error
    publish(report, json_out, plot)
