"""From a model file to an engine that is ready to start: the one place where model, backend and engine meet."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, replace

from prometheus_client import CollectorRegistry

from ..kernels.errors import ConfigError
from ..kernels.formats import KvType
from ..kernels.registry import create_backend
from ..models.load import LoadedModel, load_model
from .config import EngineConfig
from .engine import Engine
from .grammar.compiler import Grammars
from .speculation.governor import GOVERNORS
from .speculation.policy import check_policy
from .speculation.registry import Registry


@dataclass(frozen=True, slots=True)
class OpenedModel:
    """A model and the engine that serves it, not started yet."""

    model: LoadedModel
    engine: Engine
    backend: str  # its name, for people


def open_engine(
    path: str | os.PathLike[str],
    config: EngineConfig,
    *,
    kv_type: str = "f16",
    backend: str | None = None,
    threads: int | None = None,
    registry: CollectorRegistry | None = None,
) -> OpenedModel:
    """Loads a file onto a backend (None: the best of this installation). Raises StartError.

    `kv_type` is a name, so that callers need no kernel types; it replaces the one in `config`.
    """
    known = {kind.value: kind for kind in KvType}
    if kv_type not in known:
        raise ConfigError(f"KV type '{kv_type}' is not known (known: {', '.join(known)})")
    check_policy(config.speculation, Registry().names, GOVERNORS)
    model = load_model(path)
    chosen = create_backend(backend, threads)
    grammars = Grammars(model.tokenizer, model.program.vocab_size)
    preparing = threading.Thread(target=grammars.prepare, name="surefoot-vocabulary")
    preparing.start()  # beside the packing of weights: it holds the GIL, which would stop every stream later
    engine = Engine(model, chosen, replace(config, kv_type=known[kv_type]), registry, grammars)
    preparing.join()
    return OpenedModel(model, engine, chosen.name)
