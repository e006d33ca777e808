"""Brings the parts together: settings and a model file in, a service that is ready to be run out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..engine.config import EngineConfig
from ..engine.opening import OpenedModel, open_engine
from ..kernels.errors import StartError
from .embedding import embedding_model
from .service import ServedModel, Service
from .settings import EngineSettings, Settings

if TYPE_CHECKING:
    from .tracing import Tracing


def launch(settings: Settings, path: Path) -> tuple[Service, list[str]]:
    """The service over a model file, and what to tell the operator about it. Raises StartError."""
    asked = settings.engine
    tracing = _tracing() if settings.http.otel else None
    opened = open_engine(
        path, _engine_config(asked), kv_type=asked.kv_type, backend=asked.backend, threads=asked.threads
    )
    service = assemble(opened, settings, path, tracing)
    return service, _banner(path, service.model, opened, asked.threads)


def _tracing() -> Tracing:
    try:
        from .tracing import otlp_tracing
    except ModuleNotFoundError as error:
        raise StartError(f"--otel needs {error.name}, which is not installed: pip install 'surefoot[otel]'") from None
    return otlp_tracing()


def assemble(opened: OpenedModel, settings: Settings, path: Path, tracing: Tracing | None = None) -> Service:
    """The service over an opened model."""
    model, engine = opened.model, opened.engine
    served = ServedModel(
        names=settings.served_names or (path.stem,),
        tokenizer=model.tokenizer,
        template=model.chat_template,
        max_context=engine.context_length,
        vocab_size=model.program.vocab_size,
        embedding=embedding_model(model.pooling, model.program.tap_names, model.config.hidden_size, settings.embedding),
    )
    config = engine.config
    http = replace(
        settings.http,
        max_requests=config.max_running + config.max_waiting,
        embeddings_at_once=max(1, config.max_running // 2),  # the other half stays for those that wait for an answer
    )
    return Service(served, engine, http, tracing)


def _engine_config(asked: EngineSettings) -> EngineConfig:
    """The engine's configuration, its own defaults where nothing was asked."""
    config = EngineConfig(
        kv_memory=asked.kv_memory,
        context_length=asked.ctx_size,
        prefix_cache=asked.prefix_cache,
        speculation=asked.speculation,
        draft_model=None if asked.draft_model is None else str(asked.draft_model),
    )
    if asked.max_running is not None:
        config = replace(config, max_running=asked.max_running)
    if asked.max_waiting is not None:
        config = replace(config, max_waiting=asked.max_waiting)
    if asked.prefill_chunk is not None:
        config = replace(config, prefill_chunk=asked.prefill_chunk)
    return config


def _banner(path: Path, served: ServedModel, opened: OpenedModel, threads: int | None) -> list[str]:
    """Lines for people."""
    state = opened.engine.state()
    model, config = opened.model, opened.engine.config
    facts = {
        "model": f"{', '.join(served.names)} ({model.config.architecture}, {model.file_type}, {path})",
        "context": f"{served.max_context:,} tokens, {config.max_running} requests at once",
        "memory": f"{model.tensor_bytes / 1e6:,.0f} MB weights, {_megabytes(state)} {config.kv_type.value} cache",
        "backend": f"{opened.backend}, {threads or 'automatic'} threads, fingerprint {opened.engine.fingerprint}",
    }
    return [f"  {name:<8} {text}" for name, text in facts.items()]


def _megabytes(state: dict[str, object]) -> str:
    size = state["kv_bytes"]
    assert isinstance(size, int)
    return f"{size / 1e6:,.0f} MB"
