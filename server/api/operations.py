"""`GET /health`, `/livez`, `/readyz`, `/metrics` and `/admin/state`; `POST /admin/drain` and `/admin/cache/reset`."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Request
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import Field
from starlette.responses import PlainTextResponse, Response

from ..body import SchemaT, read_json, validated_exactly
from ..encoding import json_response
from ..openapi import takes
from ..schema.sampling import Strict
from ..service import Service, service_of

router = APIRouter()


class DrainRequest(Strict):
    """`POST /admin/drain`: what still runs after `deadline_s` is ended."""

    deadline_s: float | None = Field(None, ge=0, le=86400)


class ResetRequest(Strict):
    """`POST /admin/cache/reset` takes no settings."""


async def _read(request: Request, schema: type[SchemaT]) -> SchemaT:
    """A body that may be missing."""
    service = service_of(request)
    has_body = request.headers.get("content-length", "0") != "0" or "transfer-encoding" in request.headers
    body = await read_json(request, service.settings.max_body_bytes) if has_body else {}
    return validated_exactly(schema, body)


@router.head("/health", include_in_schema=False)
@router.get("/health")
@router.head("/readyz", include_in_schema=False)
@router.get("/readyz")
async def ready(request: Request) -> Response:
    """200 while the engine makes progress or is idle; 503 when it is stuck, and when the server takes no new work."""
    health = _health(request)
    return json_response(health, status=200 if health["status"] == "ok" else 503)


@router.head("/livez", include_in_schema=False)
@router.get("/livez")
async def alive(request: Request) -> Response:
    """503 when the engine is stuck, so that only a new process helps; 200 else, also while the server drains."""
    health = _health(request)
    return json_response(health, status=503 if health["status"] == "stuck" else 200)


def _health(request: Request) -> dict[str, object]:
    service = service_of(request)
    engine = service.engine.health()
    if not engine.ok:
        return {"status": "stuck", "reason": engine.reason}
    if service.bridge.draining:
        return {"status": "draining", "reason": "the server is shutting down"}
    return {"status": "ok"}


@router.get("/metrics", response_class=PlainTextResponse)
async def metrics(request: Request) -> Response:
    """Prometheus text."""
    text = await asyncio.to_thread(generate_latest, service_of(request).engine.registry)
    return Response(text, media_type=CONTENT_TYPE_LATEST)


@router.get("/admin/state")
async def state(request: Request) -> Response:
    """What the engine and the server are doing."""
    service = service_of(request)
    service.gate.admin(request)
    return json_response({"server": _server_state(service), "engine": service.engine.state()})


def _server_state(service: Service) -> dict[str, object]:
    bridge = service.bridge
    return {
        "model": service.model.names[0],
        "fingerprint": service.engine.fingerprint,
        "draining": bridge.draining,
        "requests": bridge.num_running,
        "max_requests": bridge.max_requests,
        **service.responses.state(),
    }


@router.post("/admin/drain", status_code=202, openapi_extra=takes(DrainRequest, required=False))
async def drain(request: Request) -> Response:
    """Refuses new requests and lets the running ones finish. Answers at once; /admin/state shows the rest."""
    service = service_of(request)
    service.gate.admin(request)
    asked = (await _read(request, DrainRequest)).deadline_s
    service.start_drain(service.settings.drain_s if asked is None else asked)
    return json_response(_server_state(service), status=202)


@router.post("/admin/cache/reset", openapi_extra=takes(ResetRequest, required=False))
async def reset_cache(request: Request) -> Response:
    """Forgets all that is cached of prompts, and answers when it has: what starts later finds nothing from before."""
    service = service_of(request)
    service.gate.admin(request)
    await _read(request, ResetRequest)
    return json_response(await asyncio.wrap_future(service.engine.reset_cache()))
