"""The app factory: routes, errors, and the engine's life around them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from .access import AccessLog
from .api import chat, completions, embeddings, models, operations, page, responses, speculation, tokens
from .cors import CrossOrigin
from .errors import install_error_handlers
from .openapi import install_openapi
from .schema.chat import ChatRequest
from .schema.completions import CompletionRequest
from .schema.embeddings import EmbeddingRequest
from .schema.responses import ResponseRequest
from .schema.speculation import PolicyChange
from .schema.tokens import DetokenizeRequest, TokenizeRequest
from .service import Service

_BODIES = (
    ChatRequest,
    CompletionRequest,
    EmbeddingRequest,
    ResponseRequest,
    TokenizeRequest,
    DetokenizeRequest,
    operations.DrainRequest,
    operations.ResetRequest,
    PolicyChange,
)
_ROUTERS = (
    chat.router,
    completions.router,
    embeddings.router,
    responses.router,
    models.router,
    tokens.router,
    operations.router,
    speculation.router,
    page.router,
)


def create_app(service: Service) -> FastAPI:
    """An app that serves `service`. Its engine is started with the app and stopped with it."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncGenerator[None]:
        service.bridge.attach(asyncio.get_running_loop())
        service.engine.start()
        try:
            yield
        finally:
            await asyncio.to_thread(service.engine.stop)
            service.bridge.detach()
            service.prompter.close()
            if service.tracing is not None:
                await asyncio.to_thread(service.tracing.close)

    app = FastAPI(title="Surefoot", lifespan=lifespan, redirect_slashes=False, docs_url=None, redoc_url=None)
    app.state.service = service
    if service.tracing is not None:
        from .tracing import TracedRequests

        app.add_middleware(TracedRequests, tracing=service.tracing)
    app.add_middleware(CrossOrigin, origins=service.settings.cors_origins, local=service.is_local)
    app.add_middleware(AccessLog, metrics=service.metrics)
    install_error_handlers(app)
    for router in _ROUTERS:
        app.include_router(router)
    install_openapi(app, _BODIES)
    return app
