"""What users bring along from other servers: flags, commands, variables and addresses, and what they are called here.

Nothing in here is an alias. Whatever is asked for in another server's words is refused in one sentence that has ours.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable, Mapping, Sequence

from ..kernels.errors import ConfigError

_MODEL = "the MODEL argument: surefoot serve FILE.gguf"
_BUILT_IN = "leave it out: that is always on"
_NO_DEVICES = "leave it out: the weights are in memory, and --threads says how many cores compute"

# What replaces it; a text that begins with "leave it out" where nothing needs to.
_FLAGS: Mapping[str, str] = {
    # TensorSharp
    "--prefill-chunk-size": "--prefill-chunk",
    "--kv-cache-dtype": "--kv-type",
    "--kv-cache-type": "--kv-type",
    "--spec-draft-model": "--draft-model",
    "--mtp-draft-model": "--draft-model",
    "--mtp-draft": "--spec-draft",
    "--mtp-pmin": "--spec-pmin",
    "--mtp-type": "--spec-type",
    "--mtp": "--spec",
    "--no-mtp": "--no-spec",
    # llama.cpp
    "-m": _MODEL,
    "--model": _MODEL,
    "-hf": _MODEL,
    "-hfr": _MODEL,
    "--hf-repo": _MODEL,
    "-c": "--ctx-size",
    "-t": "--threads",
    "-tb": "--threads",
    "--threads-batch": "--threads",
    "-np": "--max-running",
    "--parallel": "--max-running",
    "-b": "--prefill-chunk",
    "--batch-size": "--prefill-chunk",
    "-ub": "--prefill-chunk",
    "--ubatch-size": "--prefill-chunk",
    "-a": "--served-model-name",
    "--alias": "--served-model-name",
    "-ctk": "--kv-type",
    "-ctv": "--kv-type",
    "--cache-type-k": "--kv-type",
    "--cache-type-v": "--kv-type",
    "-md": "--draft-model",
    "--model-draft": "--draft-model",
    "--draft": "--spec-draft",
    "--draft-n": "--spec-draft",
    "--draft-max": "--spec-draft",
    "--draft-p-min": "--spec-pmin",
    "-to": "--request-timeout",
    "--timeout": "--request-timeout",
    "-ngl": _NO_DEVICES,
    "--gpu-layers": _NO_DEVICES,
    "--n-gpu-layers": _NO_DEVICES,
    "-fa": _BUILT_IN,
    "--flash-attn": _BUILT_IN,
    "-cb": _BUILT_IN,
    "--cont-batching": _BUILT_IN,
    "--jinja": _BUILT_IN,
    "--metrics": _BUILT_IN,
    "--slots": _BUILT_IN,
    "--props": _BUILT_IN,
    "--embedding": _BUILT_IN,
    "--embeddings": _BUILT_IN,
    "--mlock": "leave it out: the weights are packed into memory",
    "--no-mmap": "leave it out: the weights are packed into memory",
    # vLLM and SGLang
    "--model-path": _MODEL,
    "--max-model-len": "--ctx-size",
    "--context-length": "--ctx-size",
    "--max-num-seqs": "--max-running",
    "--max-running-requests": "--max-running",
    "--max-num-batched-tokens": "--prefill-chunk",
    "--chunked-prefill-size": "--prefill-chunk",
    "--gpu-memory-utilization": "--kv-memory",
    "--mem-fraction-static": "--kv-memory",
    "--kv-cache-memory-bytes": "--kv-memory",
    "--no-enable-prefix-caching": "--no-prefix-cache",
    "--disable-radix-cache": "--no-prefix-cache",
    "--enable-prefix-caching": _BUILT_IN,
    "--enable-chunked-prefill": _BUILT_IN,
    "--enable-auto-tool-choice": _BUILT_IN,
    "--tool-call-parser": "--tool-parser",
    "--allowed-origins": "--cors-origin",
    "--tensor-parallel-size": _NO_DEVICES,
    "--device": "--backend",
    "--dtype": "leave it out: every weight has the type that the file stores",
    "--quantization": "leave it out: every weight has the type that the file stores",
    "--trust-remote-code": "leave it out: no code comes with a model file",
}  # fmt: skip
_COMMANDS: Mapping[str, str] = {
    "run": "surefoot serve FILE.gguf, and chat at the address that it prints",
    "chat": "surefoot serve FILE.gguf, and chat at the address that it prints",
    "start": "surefoot serve FILE.gguf",
    "server": "surefoot serve FILE.gguf",
    "show": "surefoot inspect FILE.gguf",
    "pull": "surefoot serve alone fetches its default model; others are files that you fetch",
    "list": "models are GGUF files wherever you keep them: surefoot inspect FILE.gguf",
    "version": "surefoot --version",
    "help": "surefoot --help",
}
_VARIABLES: Mapping[str, str] = {
    "TS_SPEC": "SUREFOOT_SPEC",
    "TS_SPEC_TYPE": "SUREFOOT_SPEC_TYPE",
    "TS_SPEC_DRAFT": "SUREFOOT_SPEC_DRAFT",
    "TS_SPEC_PMIN": "SUREFOOT_SPEC_PMIN",
    "TS_SPEC_DRAFT_MODEL": "SUREFOOT_DRAFT_MODEL",
    "TS_SPEC_ADAPTIVE": "SUREFOOT_SPEC_GOVERNOR",
}
_ROUTES: Mapping[str, str] = {
    "/completion": "/v1/completions",
    "/generate": "/v1/completions",
    "/infill": "/v1/completions with 'suffix'",
    "/embedding": "/v1/embeddings",
    "/props": "/v1/models for the context size, /admin/state for the rest",
    "/slots": "/admin/state",
    "/server_info": "/admin/state",
    "/get_server_info": "/admin/state",
    "/get_model_info": "/v1/models",
    "/version": "/openapi.json, whose 'info' has the version",
    "/ping": "/health",
    "/v1/health": "/health",
    "/healthz": "/health",
    "/health/live": "/livez",
    "/health/ready": "/readyz",
    "/ready": "/readyz",
    "/live": "/livez",
    "/docs": "/openapi.json",
    "/redoc": "/openapi.json",
    "/apply-template": "/tokenize with 'messages', and /detokenize",
    "/api/chat": "/v1/chat/completions",
    "/api/generate": "/v1/completions",
    "/api/tags": "/v1/models",
    "/api/ps": "/v1/models",
    "/api/show": "/v1/models",
    "/api/version": "/openapi.json, whose 'info' has the version",
    "/api/embed": "/v1/embeddings",
    "/api/embeddings": "/v1/embeddings",
    "/v1/messages": "/v1/chat/completions",
    "/v1/completion": "/v1/completions",
    "/v1/chat": "/v1/chat/completions",
    "/v1": "/v1/models",
}

_KUBERNETES_LINK = re.compile(r"SUREFOOT(_\w+)?_(SERVICE_(HOST|PORT(_\w+)?)|PORT(_\d+_(TCP|UDP)(_\w+)?)?)")
_OWN_EXTRA = ("SUREFOOT_HOME", "SUREFOOT_ISA")


def check_flags(arguments: Sequence[str]) -> None:
    """ConfigError for a flag of another server, naming ours."""
    for argument in arguments:
        if argument == "--":
            return
        flag = argument.partition("=")[0]
        if flag in _FLAGS:
            ours = _FLAGS[flag]
            raise ConfigError(
                f"{flag} is not a flag of surefoot; {ours if ours.startswith('leave it out') else f'use {ours}'}"
            )
        if flag.startswith(("--mtp-", "--no-mtp")):
            raise ConfigError(
                f"{flag} is not a flag of surefoot; its replacement begins with --spec- (see surefoot serve --help)"
            )


def check_command(name: str, known: Collection[str]) -> None:
    """ConfigError for a first argument that is a model file, or a command of another server."""
    if name.startswith("-") or name in known:
        return
    if name.endswith(".gguf"):
        raise ConfigError(f"{name[:200]} is not a command; did you mean: surefoot serve {name[:200]}")
    if name in _COMMANDS:
        raise ConfigError(f"there is no command '{name}'; {_COMMANDS[name]}")


def check_environment(environment: Mapping[str, str], known: Iterable[str]) -> list[str]:
    """Warnings about variables of another server. ConfigError for a SUREFOOT_* variable that nothing reads."""
    warnings: list[str] = []
    names = {*known, *_OWN_EXTRA}
    for name, value in sorted(environment.items()):
        if name.startswith(("TS_SPEC", "TS_MTP_")):
            ours = _VARIABLES.get(name, "a SUREFOOT_SPEC_* variable (see surefoot serve --help)")
            warnings.append(f"{name} is not read; use {ours}")
        elif name.startswith("SUREFOOT_"):
            if _KUBERNETES_LINK.fullmatch(name) and ("://" in value or name not in names):
                if name in names:
                    raise ConfigError(
                        f"{name}={value} was set by Kubernetes for a service called 'surefoot'; "
                        "set enableServiceLinks: false in the pod, or rename the service"
                    )
            elif name not in names:
                near = difflib.get_close_matches(name, names, 1)
                raise ConfigError(f"unknown variable {name}" + (f"; did you mean {near[0]}?" if near else ""))
    return warnings


def our_route(path: str, known: Collection[str]) -> str | None:
    """What to use instead of an address that is not there: another server's, or one of `known` with /v1 missing,
    doubled, or a slash too many."""
    bare = re.sub(r"/+", "/", path).rstrip("/")
    if bare in _ROUTES:
        return _ROUTES[bare]
    while bare.startswith("/v1/v1/"):
        bare = bare.removeprefix("/v1")
    return next((way for way in (bare, f"/v1{bare}", bare.removeprefix("/v1")) if way in known and way != path), None)
