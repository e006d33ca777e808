"""JSON out, fast: pydantic-core's serialiser, which writes floats with all the digits that identify them."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic_core import to_json
from starlette.responses import Response


def json_response(content: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """An application/json response."""
    return Response(to_json(content), status_code=status, headers=dict(headers or {}), media_type="application/json")


def sse_data(content: object) -> bytes:
    """One server-sent event that carries a JSON value."""
    return b"data: " + to_json(content) + b"\n\n"


def sse_event(name: str, content: object) -> bytes:
    """One that has a name too."""
    return b"event: " + name.encode() + b"\n" + sse_data(content)


def sse_error(content: object) -> bytes:
    """An `error` event."""
    return sse_event("error", content)


SSE_DONE = b"data: [DONE]\n\n"
SSE_COMMENT = b": keep-alive\n\n"
