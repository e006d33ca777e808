"""Every error a client can see, in OpenAI's one shape. Knows HTTP; the faults themselves are raised anywhere below."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from http import HTTPStatus
from typing import cast

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from ..kernels.errors import RequestError
from .encoding import json_response
from .foreign import our_route
from .openapi import documented_methods, documented_paths
from .visit import current_visit

_log = logging.getLogger("surefoot.server")

CLIENT_CLOSED_REQUEST = 499  # for the access log; no client reads it

_MAX_FAULTS = 5  # validation faults named in one message
_MAX_MESSAGE = 1000  # characters
_ENDS_CONNECTION = (HTTPStatus.REQUEST_ENTITY_TOO_LARGE, HTTPStatus.REQUEST_TIMEOUT)
_RETRY_AFTER_S = 5  # where nobody knows better
_OF_VALUES = (HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY)
_CODES = {"missing": "missing_required_parameter", "extra_forbidden": "unknown_parameter"}  # pydantic's and OpenAI's


def error_body(error: RequestError) -> dict[str, object]:
    """The JSON body of an error; also the data of an `error` event inside a stream."""
    message = error.message if len(error.message) <= _MAX_MESSAGE else error.message[: _MAX_MESSAGE - 1] + "…"
    code = error.code or ("invalid_value" if error.status in _OF_VALUES else None)
    return {"error": {"message": message, "type": error.kind, "param": error.param, "code": code}}


def error_response(error: RequestError, headers: Mapping[str, str] | None = None) -> Response:
    """The HTTP answer to an error, with Retry-After where one is known."""
    all_headers = dict(headers or {})
    if error.status in (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE):
        all_headers["Retry-After"] = str(error.retry_after or _RETRY_AFTER_S)
    if error.status == HTTPStatus.UNAUTHORIZED:
        all_headers["WWW-Authenticate"] = "Bearer"
    if error.status in _ENDS_CONNECTION:
        all_headers["Connection"] = "close"  # the rest of the body is not worth reading
    return json_response(error_body(error), status=error.status, headers=all_headers)


def validation_error(faults: Sequence[Mapping[str, object]], status: int = 400, body: object = None) -> RequestError:
    """One error out of pydantic's list: the first field becomes `param`, a few more are named in the message.

    With the `body` that was refused, the path to a field is the one in it.
    """
    named = [(_location(fault, body), _words(fault)) for fault in faults[:_MAX_FAULTS]]
    message = "; ".join(f"{where}: {what}" if where else what for where, what in named)
    if len(faults) > _MAX_FAULTS:
        message += f"; and {len(faults) - _MAX_FAULTS} more"
    return RequestError(message, param=named[0][0] or None, code=_code(str(faults[0].get("type"))), status=status)


def _words(fault: Mapping[str, object]) -> str:
    """What pydantic says, with limits to their last digit: it rounds those beyond 2^53. No names of our classes."""
    if fault.get("type") == "model_type":
        return "Input should be an object"
    words, context = str(fault.get("msg", "invalid")), cast(Mapping[str, object], fault.get("ctx") or {})
    limit = next((context[kind] for kind in ("ge", "gt", "le", "lt") if kind in context), None)
    return f"{words.rpartition(' ')[0]} {limit}" if isinstance(limit, int) else words


def _code(kind: str) -> str:
    """OpenAI's code for one of pydantic's kinds of fault."""
    return _CODES.get(kind, "invalid_type" if kind.endswith("_type") else "invalid_value")


def _location(fault: Mapping[str, object], body: object) -> str:
    parts = cast(tuple[object, ...], fault.get("loc", ()))
    return ".".join(str(part) for part in (parts if body is None else _steps_in(body, parts)))[:200]


def _steps_in(body: object, parts: Sequence[object]) -> Iterator[object]:
    """The steps of a path that lead through the body. pydantic writes the names of a union's members between them."""
    here = body
    for at, part in enumerate(parts):
        if isinstance(here, list) and isinstance(part, int):
            here = cast(list[object], here)[part]
        elif isinstance(here, dict) and (part in here or at == len(parts) - 1):  # the last may be what is missing
            here = cast(dict[object, object], here).get(part)
        else:
            continue
        yield part


def _from_http(error: HTTPException, request: Request) -> RequestError:
    status = error.status_code
    if status == HTTPStatus.NOT_FOUND:
        text, code = f"There is no {request.method} {request.url.path[:200]}", "unknown_url"
        instead = our_route(request.url.path[:200], documented_paths(request.app))
        text += "" if instead is None else f"; use {instead}"
    elif status == HTTPStatus.METHOD_NOT_ALLOWED:
        text, code = f"{request.url.path[:200]} does not accept {request.method}", "method_not_allowed"
    else:
        text, code = str(error.detail), None
    return RequestError(text, code=code, status=status)


def _allowed(request: Request, of_one_route: str) -> str:
    """All methods of a path: the framework names those of one of its routes."""
    path = getattr(request.scope.get("route"), "path", "")
    methods = {method.strip() for method in of_one_route.split(",") if method.strip()}
    return ", ".join(sorted(methods | documented_methods(request.app, path)))


def install_error_handlers(app: FastAPI) -> None:
    """Makes every way to fail end in OpenAI's error body."""

    async def on_request_error(_: Request, error: Exception) -> Response:
        assert isinstance(error, RequestError)
        return error_response(error)

    async def on_http_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        headers = dict(error.headers or {})
        if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
            headers["Allow"] = _allowed(request, headers.get("Allow", ""))
        return error_response(_from_http(error, request), headers)

    async def on_validation_error(_: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        return error_response(validation_error(error.errors()))

    async def on_disconnect(_: Request, error: Exception) -> Response:
        return Response(status_code=CLIENT_CLOSED_REQUEST)

    async def on_bug(request: Request, error: Exception) -> Response:
        visit = current_visit()
        request_id = "-" if visit is None else visit.request_id
        _log.error("%s %s failed, request %s", request.method, request.url.path, request_id, exc_info=error)
        bug = RequestError(
            f"Internal error; the log has its trace under {request_id}",
            code="internal_error",
            status=500,
            kind="api_error",
        )
        return error_response(bug, {"X-Request-Id": request_id, "Connection": "close"})  # uvicorn closes it now

    app.add_exception_handler(RequestError, on_request_error)
    app.add_exception_handler(HTTPException, on_http_error)
    app.add_exception_handler(RequestValidationError, on_validation_error)
    app.add_exception_handler(ClientDisconnect, on_disconnect)
    app.add_exception_handler(Exception, on_bug)
