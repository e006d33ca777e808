"""`GET /v1/models` and `/v1/models/{id}`."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from ..encoding import json_response
from ..service import ServedModel, service_of

router = APIRouter()


def _card(model: ServedModel, name: str) -> dict[str, object]:
    return {
        "id": name,
        "object": "model",
        "created": model.created,
        "owned_by": "surefoot",
        "root": model.names[0],
        "max_model_len": model.max_context,
    }


@router.get("/v1/models")
async def list_models(request: Request) -> Response:
    """The names under which the model is served."""
    service = service_of(request)
    service.gate.tenant(request)
    return json_response({"object": "list", "data": [_card(service.model, name) for name in service.model.names]})


@router.get("/v1/models/{name:path}")
async def get_model(request: Request, name: str) -> Response:
    """One of them."""
    service = service_of(request)
    service.gate.tenant(request)
    return json_response(_card(service.model, service.model.check(name)))
