"""Backends by name. Adding one is a folder beside this file and a line here."""

from __future__ import annotations

import logging
from importlib import import_module
from importlib.util import find_spec
from typing import Protocol, cast

from .backend import Backend
from .errors import ConfigError

BACKENDS: dict[str, str] = {
    "cpu": "cpu.backend:CpuBackend",
    "reference": "reference.backend:ReferenceBackend",
}
_NATIVE = ".cpu._ops"
_log = logging.getLogger(__name__)


class BackendFactory(Protocol):
    """How every backend is made. `threads` None: the backend's own choice."""

    def __call__(self, threads: int | None = None) -> Backend: ...


def create_backend(name: str | None = None, threads: int | None = None) -> Backend:
    """The named backend, or the best one this installation has. Raises ConfigError for a name that is not known, or
    not installed."""
    name = default_backend() if name is None else name
    if name not in BACKENDS:
        raise ConfigError(f"backend {name!r} is not known (known: {', '.join(sorted(BACKENDS))})")
    native = has_native_module()  # whatever the backend: one of another version is in the way of all
    if name == "cpu" and not native:
        raise ConfigError("backend 'cpu' needs the native module, which was not built: install with a C++20 compiler")
    module, factory = BACKENDS[name].split(":")
    return cast("BackendFactory", getattr(import_module(f".{module}", __package__), factory))(threads)


def default_backend() -> str:
    """`cpu`; on an installation without its native module `reference`, with a warning nobody can miss."""
    if has_native_module():
        return "cpu"
    _log.warning(
        "THE NATIVE KERNELS ARE MISSING (surefoot was installed on a machine without a C++20 compiler). "
        "Running on the slow reference kernels: many times slower, more memory, and rows are not exact. "
        "Install a compiler and reinstall surefoot."
    )
    return "reference"


def has_native_module() -> bool:
    """Whether the compiled module is there. One that is there and cannot be loaded, or is of another version, is a
    StartError, not an absence."""
    return find_spec(_NATIVE, __package__) is not None
