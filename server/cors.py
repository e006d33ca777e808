"""What pages of other origins may do in a browser: nothing, unless the operator lists their origins.

Two halves. A listed origin gets CORS headers and its preflights answered. Any other origin's page is refused what
changes or costs something: a browser sends some requests without a preflight (a POST without a body among them), so
on a server without keys every page that its user visits could otherwise drain it.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..kernels.errors import ConfigError, RequestError
from .errors import error_response

_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/\s?#@,*]+")
_SAFE = ("GET", "HEAD", "OPTIONS")
_METHODS = "GET, POST, PATCH, DELETE, HEAD"
_EXPOSED = ", ".join(
    (
        "x-request-id",
        "retry-after",
        "x-ratelimit-limit-requests",
        "x-ratelimit-remaining-requests",
        "x-ratelimit-reset-requests",
    )
)
_ASKED_HEADERS = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~, -]{0,2000}")
_MAX_AGE_S = 600
ANY = "*"


def checked_origins(origins: Sequence[str], has_keys: bool) -> tuple[str, ...]:
    """The origins of --cors-origin, lower-cased. ConfigError for what is none, and for * on a server with keys."""
    found = tuple(dict.fromkeys(origin.rstrip("/").lower() for origin in origins))
    for origin in found:
        if origin != ANY and not _ORIGIN.fullmatch(origin):
            raise ConfigError(f"--cors-origin: '{origin}' is no origin such as https://chat.example.com or *")
    if ANY in found and has_keys:
        raise ConfigError("--cors-origin * would let every web page use the API keys; list the origins instead")
    return found


class CrossOrigin:
    """ASGI middleware. `local` says that the server is open to whoever reaches it, and meant for this machine only:
    then a name that is not this machine's is somebody's attempt to pass for it (DNS rebinding)."""

    def __init__(self, app: ASGIApp, origins: Sequence[str], local: bool) -> None:
        self._app = app
        self._origins = frozenset(origins)
        self._local = local

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        origin = headers.get("origin")
        if origin is None and not self._origins:
            await self._app(scope, receive, send)
            return
        allowed = origin is not None and (ANY in self._origins or origin.lower() in self._origins)
        if allowed and scope["method"] == "OPTIONS" and "access-control-request-method" in headers:
            await _preflight(headers)(scope, receive, send)
        elif not allowed and scope["method"] not in _SAFE and self._is_foreign(headers):
            refusal = RequestError(
                f"Pages of {str(origin)[:200]} may not use this server; --cors-origin lists those that may",
                code="origin_not_allowed",
                status=403,
                kind="permission_error",
            )
            await error_response(refusal, {"Vary": "Origin"})(scope, receive, send)
        else:
            await self._app(scope, receive, _marked(send, origin if allowed else None) if self._origins else send)

    def _is_foreign(self, headers: Headers) -> bool:
        """Whether a browser sends the request for a page that this server did not serve."""
        origin = headers.get("origin")
        if origin is None:
            return False  # no browser
        site = headers.get("sec-fetch-site")
        if site is not None:
            return site not in ("same-origin", "none")
        host = urlsplit(origin).netloc.lower()
        return host != headers.get("host", "").lower() or (self._local and not _is_this_machine(host))


def _is_this_machine(netloc: str) -> bool:
    name = urlsplit(f"//{netloc}").hostname or ""
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True  # an address cannot be rebound


def _allowing(origin: str) -> dict[str, str]:
    return {"Access-Control-Allow-Origin": origin, "Vary": "Origin"}


def _preflight(headers: Headers) -> Response:
    answer = {
        **_allowing(headers["origin"]),
        "Access-Control-Allow-Methods": _METHODS,
        "Access-Control-Max-Age": str(_MAX_AGE_S),
    }
    asked = headers.get("access-control-request-headers", "")
    if asked and _ASKED_HEADERS.fullmatch(asked):
        answer["Access-Control-Allow-Headers"] = asked
    if headers.get("access-control-request-private-network") == "true":
        answer["Access-Control-Allow-Private-Network"] = "true"
    return Response(status_code=204, headers=answer)


def _marked(send: Send, origin: str | None) -> Send:
    """`send` with CORS headers for an allowed origin. Any answer depends on the origin, so caches are told."""

    async def send_marked(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            headers.add_vary_header("Origin")
            if origin is not None:
                headers["Access-Control-Allow-Origin"] = origin
                headers["Access-Control-Expose-Headers"] = _EXPOSED
        await send(message)

    return send_marked
