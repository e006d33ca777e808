"""`GET|PATCH /admin/speculation`: the live policy and what it does."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Request
from starlette.responses import Response

from ..body import read_json
from ..encoding import json_response
from ..openapi import takes
from ..schema.speculation import PolicyChange
from ..service import service_of

router = APIRouter()


@router.get("/admin/speculation")
async def speculation(request: Request) -> Response:
    """The policy in force, settings that have no effect here and why, counters, and the governor's view."""
    service = service_of(request)
    service.gate.admin(request)
    return json_response(await asyncio.wrap_future(service.engine.speculation()))


@router.patch("/admin/speculation", openapi_extra=takes(PolicyChange))
async def change_speculation(request: Request) -> Response:
    """Changes the policy between two steps; running streams go on, their tokens unchanged. 422 changes nothing."""
    service = service_of(request)
    service.gate.admin(request)
    body = await read_json(request, service.settings.max_body_bytes)
    return json_response(await asyncio.wrap_future(service.engine.change_speculation(body)))
