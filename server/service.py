"""What the routes share: the served model, its engine, and the parts of the server around them. Built once at start."""

from __future__ import annotations

import asyncio
import secrets
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fastapi import Request

from ..kernels.errors import RequestError
from .body import BodyBudget, SchemaT, read_json, validated
from .bridge import Bridge
from .chat_format import ChatFormat
from .embedding import EmbeddingModel
from .http_metrics import HttpMetrics
from .ports import ChatTemplate, Engine, Tokenizer
from .prompts import Prompter
from .responses.store import ResponseStore
from .settings import HttpSettings
from .tenants import Gate, Keyring

if TYPE_CHECKING:  # an extra, which need not be installed
    from .tracing import Tracing

_BODIES_AT_ONCE = 8  # of the largest size


@dataclass(frozen=True, slots=True)
class ServedModel:
    """The model as clients see it."""

    names: tuple[str, ...]  # the first is the one written in answers
    tokenizer: Tokenizer
    template: ChatTemplate | None
    max_context: int
    vocab_size: int  # width of a logits row
    embedding: EmbeddingModel
    created: int = field(default_factory=lambda: int(time.time()))

    def check(self, name: str | None) -> str:
        """The name to answer under; RequestError 404 for a model that is not served."""
        if name is None:
            return self.names[0]
        if name not in self.names:
            served = ", ".join(f"'{known}'" for known in self.names)
            raise RequestError(
                f"The model '{name[:200]}' does not exist; this server has {served}",
                param="model",
                code="model_not_found",
                status=404,
            )
        return name


class Service:
    """The parts a route works with."""

    def __init__(
        self, model: ServedModel, engine: Engine, settings: HttpSettings, tracing: Tracing | None = None
    ) -> None:
        self.model = model
        self.engine = engine
        self.settings = settings
        self.tracing = tracing  # None: nothing of it runs
        self.gate = Gate(settings.api_keys, settings.admin_key, settings.key_limits)
        self.metrics = HttpMetrics(engine.registry)
        template, tokenizer = model.template, model.tokenizer
        chat = None if template is None else ChatFormat(template, tokenizer, settings.tool_parser)
        self.prompter = Prompter(tokenizer, chat, model.max_context)
        self.bridge = Bridge(engine, settings.max_requests)
        self.responses = ResponseStore(settings.stored_bytes, settings.stored_responses, self.gate.salts)
        self.body_budget = BodyBudget(_BODIES_AT_ONCE * settings.max_body_bytes)
        self._drain: asyncio.Task[None] | None = None  # kept: the loop holds tasks weakly

    @property
    def is_local(self) -> bool:
        """Whether the server is meant for this machine only, and asks nobody there for a key."""
        return self.gate.is_open and self.settings.is_loopback

    def change_keys(self, ring: Keyring) -> str:
        """Other keys from now on; see Gate.change. What was stored for those that are gone is forgotten."""
        change = self.gate.change(ring)
        self.responses.share(self.gate.salts)
        return change

    def start_drain(self, deadline_s: float) -> asyncio.Task[None]:
        """Refuses new requests from now on; the task ends when the running ones have, or were ended at the deadline."""
        self.bridge.draining = True
        self._drain = asyncio.create_task(self.bridge.drain(deadline_s))
        return self._drain

    async def read(self, request: Request, schema: type[SchemaT]) -> SchemaT:
        """A validated request body."""
        return validated(schema, await read_json(request, self.settings.max_body_bytes, self.body_budget), self.metrics)


def new_id(prefix: str) -> str:
    """A request's id."""
    return f"{prefix}-{secrets.token_hex(12)}"


def service_of(request: Request) -> Service:
    """The service of the app that handles `request`."""
    service = request.app.state.service
    assert isinstance(service, Service)
    return service
