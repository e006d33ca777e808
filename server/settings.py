"""Flags and environment, read in this one file into frozen dataclasses. Every flag has a SUREFOOT_* variable.

Nothing unknown is ignored: an unknown SUREFOOT_* variable stops the start. See foreign.py for other servers' spellings.
"""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import typer

from ..engine.speculation.contract import MAX_WINDOW
from ..engine.speculation.policy import DEFAULT_POLICY, SpeculationPolicy
from ..kernels.errors import ConfigError
from .api_keys import ApiKey as SecretKey
from .api_keys import KeySource
from .limits import UNLIMITED, KeyLimits

_UNITS = {
    "": 1,
    "k": 1000,
    "m": 1000**2,
    "g": 1000**3,
    "t": 1000**4,
    "ki": 2**10,
    "mi": 2**20,
    "gi": 2**30,
    "ti": 2**40,
}


@dataclass(frozen=True, slots=True)
class ReplyTimes:
    """Seconds; None: no limit."""

    keep_alive_s: float = 10.0  # an idle stream writes a comment this often
    send_s: float = 60.0  # a client that accepts no bytes for this long is gone
    total_s: float | None = None


@dataclass(frozen=True, slots=True)
class HttpSettings:
    """How the server listens, admits and answers."""

    host: str = "127.0.0.1"
    port: int = 8000
    api_keys: tuple[str | SecretKey, ...] = field(default=(), repr=False)
    admin_key: str | None = field(default=None, repr=False)
    key_source: KeySource = field(default_factory=KeySource)  # where both were read, and are again on SIGHUP
    key_limits: KeyLimits = UNLIMITED  # of every key that has none of its own; without keys, of all clients together
    cors_origins: tuple[str, ...] = ()  # pages that may use the server from a browser
    max_requests: int = 256  # choices running and waiting; more is 429
    max_body_bytes: int = 32 * 2**20
    drain_s: float = 30.0
    stored_bytes: int = 64 * 2**20  # of responses that clients may go on from; 0: none is kept
    stored_responses: int = 4096
    tool_parser: str | None = None  # None: the one that the chat template teaches
    embeddings_at_once: int = 8  # inputs of one request that are in the engine at the same time
    times: ReplyTimes = field(default_factory=ReplyTimes)
    otel: bool = False  # send OpenTelemetry traces

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can connect."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """What the operator asks of the engine; None: chosen for this machine and model."""

    backend: str | None = None
    threads: int | None = None
    ctx_size: int | None = None
    kv_type: str = "f16"
    kv_memory: int | None = None  # bytes
    max_running: int | None = None
    max_waiting: int | None = None
    prefill_chunk: int | None = None
    prefix_cache: bool = True
    speculation: SpeculationPolicy = DEFAULT_POLICY
    draft_model: Path | None = None


@dataclass(frozen=True, slots=True)
class EmbeddingSettings:
    """How the operator wants embeddings."""

    pooling: str | None = None  # None: as the file says
    dimensions: tuple[int, ...] = ()  # shorter sizes that the model was trained for


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything `surefoot serve` was told."""

    model: Path | None = None  # None: the embedded default
    served_names: tuple[str, ...] = ()  # empty: the file's name
    http: HttpSettings = field(default_factory=HttpSettings)
    engine: EngineSettings = field(default_factory=EngineSettings)
    embedding: EmbeddingSettings = field(default_factory=EmbeddingSettings)


def byte_size(text: str | int) -> int:
    """'8GiB', '500M' or a plain number, in bytes. A number is a default, which typer parses too."""
    if isinstance(text, int):
        return text
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?i?)b?\s*", text.lower())
    if match is None or match[2] == "i":
        raise typer.BadParameter(f"'{text}' is not a size such as 4GiB, 500MB or 1073741824")
    return int(float(match[1]) * _UNITS[match[2]])


def split_list(values: Sequence[str] | None) -> tuple[str, ...]:
    """Repeated and comma-separated values as one tuple."""
    return tuple(part.strip() for value in values or () for part in value.split(",") if part.strip())


def keys(flag: str, given: Sequence[str] | str | None) -> tuple[str, ...]:
    """The keys behind a flag; one string is one key. An empty one, a variable that was not set perhaps, must not open
    the server in silence."""
    values = [given] if isinstance(given, str) else [part for value in given or () for part in value.split(",")]
    if not all(map(str.strip, values)):
        raise ConfigError(f"{flag} is empty; without the flag no key is asked for")
    return tuple(map(str.strip, values))


def sizes(flag: str, given: Sequence[str] | None) -> tuple[int, ...]:
    """Repeated and comma-separated positive numbers."""
    values = split_list(given)
    wrong = [value for value in values if not re.fullmatch(r"[1-9]\d{0,8}", value)]
    if wrong:
        raise ConfigError(f"{flag}: '{wrong[0][:40]}' is not a positive number")
    return tuple(map(int, values))


def home() -> Path:
    """Where Surefoot keeps what it fetched: SUREFOOT_HOME, or ~/.surefoot."""
    return Path(os.environ.get("SUREFOOT_HOME") or Path.home() / ".surefoot")


# --- the flags of `surefoot serve` ---

ModelPath = Annotated[
    Path | None,
    typer.Argument(
        metavar="MODEL", help="A GGUF file. None: SmolLM2-135M-Instruct, fetched once.", envvar="SUREFOOT_MODEL"
    ),
]
Host = Annotated[str, typer.Option("--host", envvar="SUREFOOT_HOST", help="Address to listen on.")]
Port = Annotated[
    int, typer.Option("--port", envvar="SUREFOOT_PORT", min=0, max=65535, help="Port; 0 picks a free one.")
]
Backend = Annotated[
    str | None, typer.Option("--backend", envvar="SUREFOOT_BACKEND", help="Kernels: cpu or reference [the best built].")
]
Threads = Annotated[
    int | None,
    typer.Option("--threads", envvar="SUREFOOT_THREADS", min=1, max=1024, help="Compute threads [one per core]."),
]
CtxSize = Annotated[
    int | None,
    typer.Option(
        "--ctx-size", envvar="SUREFOOT_CTX_SIZE", min=2, help="Tokens of prompt and answer [the model's own limit]."
    ),
]
KvType = Annotated[
    str, typer.Option("--kv-type", envvar="SUREFOOT_KV_TYPE", help="Key/value cache type: f32, f16, bf16 or q8_0.")
]
KvMemory = Annotated[
    int | None,
    typer.Option(
        "--kv-memory", envvar="SUREFOOT_KV_MEMORY", parser=byte_size, metavar="SIZE", help="Cache size, e.g. 4GiB."
    ),
]
MaxRunning = Annotated[
    int | None, typer.Option("--max-running", envvar="SUREFOOT_MAX_RUNNING", min=1, help="Requests computed at once.")
]
PrefillChunk = Annotated[
    int | None,
    typer.Option("--prefill-chunk", envvar="SUREFOOT_PREFILL_CHUNK", min=1, help="Most prompt tokens of one step."),
]
NoPrefixCache = Annotated[
    bool, typer.Option("--no-prefix-cache", envvar="SUREFOOT_NO_PREFIX_CACHE", help="Compute every prompt anew.")
]
ServedModelName = Annotated[
    list[str] | None,
    typer.Option(
        "--served-model-name", envvar="SUREFOOT_SERVED_MODEL_NAME", help="Name for clients; repeat for aliases."
    ),
]
ApiKey = Annotated[
    list[str] | None,
    typer.Option(
        "--api-key", envvar="SUREFOOT_API_KEY", help="Key that clients must send; repeat for several tenants."
    ),
]
AdminKey = Annotated[str | None, typer.Option("--admin-key", envvar="SUREFOOT_ADMIN_KEY", help="Key for /admin.")]
ApiKeyFile = Annotated[
    Path | None,
    typer.Option(
        "--api-key-file",
        envvar="SUREFOOT_API_KEY_FILE",
        help="File of keys: KEY [NAME] [limits] per line; SIGHUP rereads it.",
    ),
]
AdminKeyFile = Annotated[
    Path | None, typer.Option("--admin-key-file", envvar="SUREFOOT_ADMIN_KEY_FILE", help="File with the admin key.")
]
KeyAtOnce = Annotated[
    int | None,
    typer.Option("--key-at-once", envvar="SUREFOOT_KEY_AT_ONCE", min=1, help="Requests of one key answered at once."),
]
KeyPerMinute = Annotated[
    int | None,
    typer.Option("--key-per-minute", envvar="SUREFOOT_KEY_PER_MINUTE", min=1, help="Requests of one key per minute."),
]
Otel = Annotated[
    bool, typer.Option("--otel", envvar="SUREFOOT_OTEL", help="Send OpenTelemetry traces; OTEL_* variables say where.")
]
CorsOrigin = Annotated[
    list[str] | None,
    typer.Option(
        "--cors-origin",
        envvar="SUREFOOT_CORS_ORIGIN",
        help="Origin whose web pages may use the server; repeat for more.",
    ),
]
MaxWaiting = Annotated[
    int | None,
    typer.Option("--max-waiting", envvar="SUREFOOT_MAX_WAITING", min=0, help="Requests that may queue; more get 429."),
]
ToolParser = Annotated[
    str | None,
    typer.Option(
        "--tool-parser", envvar="SUREFOOT_TOOL_PARSER", help="How the model writes tool calls [as its template says]."
    ),
]
Pooling = Annotated[
    str | None,
    typer.Option(
        "--pooling",
        envvar="SUREFOOT_POOLING",
        help="Which rows become an embedding: last, mean, cls, none [as the file says, else last].",
        metavar="NAME",
    ),
]
EmbeddingDimensions = Annotated[
    list[str] | None,
    typer.Option(
        "--embedding-dimensions",
        envvar="SUREFOOT_EMBEDDING_DIMENSIONS",
        help="Shorter embeddings that the model was trained to give, e.g. 128,256.",
        metavar="SIZES",
    ),
]
MaxBody = Annotated[
    int,
    typer.Option(
        "--max-body", envvar="SUREFOOT_MAX_BODY", parser=byte_size, metavar="SIZE", help="Largest request body."
    ),
]
StoredBytes = Annotated[
    int,
    typer.Option(
        "--response-store",
        envvar="SUREFOOT_RESPONSE_STORE",
        parser=byte_size,
        metavar="SIZE",
        help="Memory for responses that later ones go on from; 0: none is kept.",
    ),
]
RequestTimeout = Annotated[
    float | None,
    typer.Option("--request-timeout", envvar="SUREFOOT_REQUEST_TIMEOUT", min=0.001, help="Seconds a request may take."),
]
DrainTimeout = Annotated[
    float,
    typer.Option(
        "--drain-timeout", envvar="SUREFOOT_DRAIN_TIMEOUT", min=0, help="Seconds running streams get at shutdown."
    ),
]
LogFormat = Annotated[
    Literal["text", "json"],
    typer.Option("--log-format", envvar="SUREFOOT_LOG_FORMAT", help="Lines for people, or one JSON object a line."),
]

Spec = Annotated[
    bool,
    typer.Option("--spec/--no-spec", envvar="SUREFOOT_SPEC", help="Speculative decoding; changeable while serving."),
]
SpecType = Annotated[
    str, typer.Option("--spec-type", envvar="SUREFOOT_SPEC_TYPE", help="auto, ngram, draft-model.", metavar="NAME")
]
SpecDraft = Annotated[
    int | None,
    typer.Option(
        "--spec-draft",
        envvar="SUREFOOT_SPEC_DRAFT",
        min=0,
        max=MAX_WINDOW,
        help="Most tokens drafted in a step; the exact window with --spec-governor off [automatic].",
    ),
]
SpecPmin = Annotated[
    float | None,
    typer.Option("--spec-pmin", envvar="SUREFOOT_SPEC_PMIN", min=0, max=1, help="Confidence gate [per algorithm]."),
]
SpecGovernor = Annotated[
    str,
    typer.Option("--spec-governor", envvar="SUREFOOT_SPEC_GOVERNOR", help="cost, probe or off.", metavar="NAME"),
]
SpecMaxBatch = Annotated[
    int,
    typer.Option(
        "--spec-max-batch", envvar="SUREFOOT_SPEC_MAX_BATCH", min=1, help="Requests that may speculate side by side."
    ),
]
DraftModel = Annotated[
    Path | None,
    typer.Option("--draft-model", envvar="SUREFOOT_DRAFT_MODEL", help="GGUF of a smaller model, same vocabulary."),
]
