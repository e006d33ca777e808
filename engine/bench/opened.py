"""A model file on a backend, for measurements that step it by hand: callers need no kernel types."""

from __future__ import annotations

import os
from dataclasses import dataclass

from ...kernels.backend import Backend
from ...kernels.errors import ConfigError
from ...kernels.formats import KvType
from ...kernels.registry import create_backend
from ...models.load import LoadedModel, load_model


@dataclass(frozen=True, slots=True)
class OpenedModel:
    """Ready to be stepped."""

    model: LoadedModel
    backend: Backend
    kv_type: KvType


def open_model(
    path: str | os.PathLike[str], *, kv_type: str = "f16", backend: str | None = None, threads: int | None = None
) -> OpenedModel:
    """Loads a file onto a backend (None: the best of this installation). Raises StartError."""
    known = {kind.value: kind for kind in KvType}
    if kv_type not in known:
        raise ConfigError(f"KV type '{kv_type}' is not known (known: {', '.join(known)})")
    return OpenedModel(load_model(path), create_backend(backend, threads), known[kv_type])
