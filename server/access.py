"""The outermost layer around the app: request ids, the access log (never a prompt, a key or a query string), counters,
and the end of what a request holds."""

from __future__ import annotations

import logging
import re
import secrets
import time

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..engine.log_fields import fields
from .http_metrics import HttpMetrics
from .visit import NOBODY, Visit, begin_visit

_log = logging.getLogger("surefoot.access")
_SANE_ID = re.compile(r"[A-Za-z0-9._:/+=-]{1,128}")
_ID_HEADER = b"x-request-id"
_MAX_PATH = 200  # characters in the log


class AccessLog:
    """ASGI middleware."""

    def __init__(self, app: ASGIApp, metrics: HttpMetrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        visit = Visit(_request_id(scope))
        begin_visit(visit)
        started = time.perf_counter()
        status = 0

        async def send_tagged(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message = {**message, "headers": [*message["headers"], *visit.headers()]}
            await send(message)

        self._metrics.open_requests.inc()
        try:
            await self._app(scope, receive, send_tagged)
        except Exception:
            status = status or 500  # the layer around this one writes the answer
            raise
        finally:
            visit.leave()
            self._metrics.open_requests.dec()
            self._metrics.count_response(_route(scope), status)
            _write_line(scope, status, time.perf_counter() - started, visit)


def _write_line(scope: Scope, status: int, seconds: float, visit: Visit) -> None:
    client = scope.get("client") or ("-", 0)
    path = scope["path"][:_MAX_PATH]
    shown = path.encode("unicode_escape").decode()  # it may hold line breaks
    _log.info(
        "%s %s %s %d %.1fms %s %s",
        client[0], scope["method"], shown, status, seconds * 1e3, visit.request_id, visit.tenant,
        extra=fields(
            client=client[0], method=scope["method"], path=path, status=status, duration_ms=round(seconds * 1e3, 1),
            request_id=visit.request_id, response_id=visit.response_id,
            key=None if visit.tenant == NOBODY else visit.tenant,
        ),
    )  # fmt: skip


def _request_id(scope: Scope) -> str:
    """The client's X-Request-Id where it is harmless, else a new one."""
    for name, value in scope["headers"]:
        if name == _ID_HEADER:
            sent = value.decode("latin-1")
            if _SANE_ID.fullmatch(sent):
                return sent
    return f"req_{secrets.token_hex(12)}"


def _route(scope: Scope) -> str:
    """The pattern that matched, so that strangers cannot create label values."""
    return getattr(scope.get("route"), "path", "none")
