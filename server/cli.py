"""The `surefoot` command. Every start error is one line on stderr and exit code 2."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from typer.core import TyperGroup
from typer.exceptions import TyperException

from .. import __version__
from ..engine.speculation.policy import SpeculationPolicy
from ..kernels.errors import StartError
from . import settings as flags
from .api_keys import KeySource
from .bench.command import bench
from .console import say, unwritable
from .foreign import check_command, check_environment, check_flags
from .limits import KeyLimits
from .logs import JSON, asked_format, begin_logs
from .settings import (
    EmbeddingSettings,
    EngineSettings,
    HttpSettings,
    ReplyTimes,
    Settings,
    keys,
    sizes,
    split_list,
)

app = typer.Typer(
    name="surefoot",
    help="OpenAI-compatible inference server for GGUF models.",
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode=None,  # it takes the [brackets] of the help texts for markup
)
app.add_typer(bench, name="bench")


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"surefoot {__version__}")
        raise typer.Exit


@app.callback()
def _surefoot(  # pyright: ignore[reportUnusedFunction]
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """OpenAI-compatible inference server for GGUF models."""


@app.command()
def serve(
    model: flags.ModelPath = None,
    host: flags.Host = "127.0.0.1",
    port: flags.Port = 8000,
    backend: flags.Backend = None,
    threads: flags.Threads = None,
    ctx_size: flags.CtxSize = None,
    kv_type: flags.KvType = "f16",
    kv_memory: flags.KvMemory = None,
    max_running: flags.MaxRunning = None,
    prefill_chunk: flags.PrefillChunk = None,
    no_prefix_cache: flags.NoPrefixCache = False,
    served_model_name: flags.ServedModelName = None,
    api_key: flags.ApiKey = None,
    admin_key: flags.AdminKey = None,
    api_key_file: flags.ApiKeyFile = None,
    admin_key_file: flags.AdminKeyFile = None,
    key_at_once: flags.KeyAtOnce = None,
    key_per_minute: flags.KeyPerMinute = None,
    cors_origin: flags.CorsOrigin = None,
    otel: flags.Otel = False,
    max_waiting: flags.MaxWaiting = None,
    tool_parser: flags.ToolParser = None,
    pooling: flags.Pooling = None,
    embedding_dimensions: flags.EmbeddingDimensions = None,
    max_body: flags.MaxBody = 32 * 2**20,
    response_store: flags.StoredBytes = 64 * 2**20,
    request_timeout: flags.RequestTimeout = None,
    drain_timeout: flags.DrainTimeout = 30.0,
    spec: flags.Spec = True,
    spec_type: flags.SpecType = "auto",
    spec_draft: flags.SpecDraft = None,
    spec_pmin: flags.SpecPmin = None,
    spec_governor: flags.SpecGovernor = "cost",
    spec_max_batch: flags.SpecMaxBatch = 1,
    draft_model: flags.DraftModel = None,
    log_format: flags.LogFormat = "text",
) -> None:
    """Serve MODEL over HTTP."""
    from .cors import checked_origins
    from .run import run

    begin_logs(log_format)
    source = KeySource(keys("--api-key", api_key), api_key_file, keys("--admin-key", admin_key), admin_key_file)
    given = source.read()
    for warning in given.warnings:
        _warn(warning)
    origins = checked_origins(split_list(cors_origin), has_keys=bool(given.api))
    run(
        Settings(
            model=model,
            served_names=split_list(served_model_name),
            http=HttpSettings(
                host=host,
                port=port,
                api_keys=given.api,
                admin_key=given.admin,
                key_source=source,
                key_limits=KeyLimits(key_at_once, key_per_minute),
                cors_origins=origins,
                otel=otel,
                max_body_bytes=max_body,
                drain_s=drain_timeout,
                stored_bytes=response_store,
                tool_parser=tool_parser,
                times=ReplyTimes(total_s=request_timeout),
            ),
            engine=EngineSettings(
                backend=backend,
                threads=threads,
                ctx_size=ctx_size,
                kv_type=kv_type,
                kv_memory=kv_memory,
                max_running=max_running,
                max_waiting=max_waiting,
                prefill_chunk=prefill_chunk,
                prefix_cache=not no_prefix_cache,
                speculation=SpeculationPolicy(spec, spec_type, spec_draft, spec_pmin, spec_governor, spec_max_batch),
                draft_model=draft_model,
            ),
            embedding=EmbeddingSettings(pooling, sizes("--embedding-dimensions", embedding_dimensions)),
        )
    )


@app.command()
def inspect(model: Annotated[Path, typer.Argument(metavar="MODEL", help="A GGUF file.")]) -> None:
    """Print what a GGUF file holds."""
    from ..models.inspect import describe

    print(describe(model))


def _group() -> TyperGroup:
    group = typer.main.get_command(app)
    assert isinstance(group, TyperGroup)
    return group


def known_variables() -> list[str]:
    """The variables that the commands read."""
    return [
        variable
        for command in _group().commands.values()
        for parameter in command.params
        for variable in ([parameter.envvar] if isinstance(parameter.envvar, str) else parameter.envvar or ())
    ]


def _warn(text: str) -> None:
    say(text, logging.WARNING)


def _one_line(error: StartError | TyperException) -> str:
    text = str(error) if isinstance(error, StartError) else error.format_message()
    return " ".join(text.split())


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of the console script."""
    given = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    if given[0] == "serve" and asked_format(given, os.environ) == JSON:
        begin_logs(JSON)
    try:
        check_command(given[0], _group().commands)
        check_flags(given)
        for warning in check_environment(os.environ, known_variables()):
            _warn(warning)
        code = app(args=given, prog_name="surefoot", standalone_mode=False)
        sys.stdout.flush()
    except (StartError, TyperException) as error:
        say(_one_line(error), logging.ERROR)
        raise SystemExit(2) from None
    except MemoryError:
        say("not enough memory for this model with these settings", logging.ERROR)
        raise SystemExit(2) from None
    except OSError as error:
        reason = unwritable(error)
        if reason is None:
            raise
        if reason:
            say(reason, logging.ERROR)
        raise SystemExit(1) from None
    raise SystemExit(code or 0)
