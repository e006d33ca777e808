"""The OpenAPI document. Routes read their bodies themselves (strictly), so what they take, how they fail, which key
they ask for and what they stream is added here, from what the document already says of them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from http import HTTPStatus
from typing import Any, cast

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from .openapi_answers import ANSWERS, ERROR, EVENT

_REFERENCE = "#/components/schemas/{model}"
_ADMIN = "/admin/"
_PROBES = ("/health", "/livez", "/readyz")
_PUBLIC = (*_PROBES, "/metrics")  # ask for no key
_METHODS = ("get", "put", "post", "delete", "patch")

_BOUNDS = {"ge": "minimum", "gt": "exclusiveMinimum", "le": "maximum", "lt": "exclusiveMaximum"}

_OF_BODIES = (
    HTTPStatus.BAD_REQUEST,
    HTTPStatus.REQUEST_TIMEOUT,
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
    HTTPStatus.SERVICE_UNAVAILABLE,
)
_OF_WORK = (
    HTTPStatus.NOT_FOUND,  # the model
    HTTPStatus.TOO_MANY_REQUESTS,
    HTTPStatus.INTERNAL_SERVER_ERROR,
    HTTPStatus.GATEWAY_TIMEOUT,
)
_RETRIED = {"retry-after": {"description": "Seconds", "schema": {"type": "integer", "minimum": 1}}}
_REQUEST_ID = {"x-request-id": {"description": "As sent, or made up", "schema": {"type": "string"}}}


def takes(schema: type[BaseModel], *, required: bool = True) -> dict[str, Any]:
    """`openapi_extra` of a route whose JSON body is `schema`."""
    content = {"application/json": {"schema": {"$ref": _REFERENCE.format(model=schema.__name__)}}}
    return {"requestBody": {"required": required, "content": content}}


def install_openapi(app: FastAPI, schemas: Sequence[type[BaseModel]]) -> None:
    """Makes the app's document, built when first asked for, define `schemas`."""

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            built = get_openapi(title=app.title, version=app.version, routes=app.routes)
            _, definitions = models_json_schema([(schema, "validation") for schema in schemas], ref_template=_REFERENCE)
            components = built.setdefault("components", {})
            components["schemas"] = {**_plain(definitions["$defs"]), "Error": ERROR}
            components["securitySchemes"] = {
                "api_key": {"type": "http", "scheme": "bearer", "description": "--api-key, where one is set"},
                "admin_key": {"type": "http", "scheme": "bearer", "description": "--admin-key, where a key is set"},
            }
            for path, method, operation in _operations(built):
                _complete(path, method, operation, components["schemas"])
            app.openapi_schema = built
        return app.openapi_schema

    app.openapi = document


def documented_paths(app: FastAPI) -> Collection[str]:
    """The path patterns of the document."""
    return app.openapi()["paths"]


def documented_methods(app: FastAPI, path: str) -> set[str]:
    """The methods of a path pattern, as the document has them; none for a path that it leaves out."""
    return {method.upper() for method in _METHODS if method in app.openapi()["paths"].get(path, ())}


def _plain(schema: Any) -> Any:
    """pydantic's schema in JSON schema's words: it has its own for bounds that it checks behind another validator."""
    if isinstance(schema, list):
        return [_plain(item) for item in cast(list[Any], schema)]
    if not isinstance(schema, dict):
        return schema
    entries = cast(dict[str, Any], schema)
    return {
        _BOUNDS[name] if name in _BOUNDS and isinstance(value, int | float) else name: _plain(value)
        for name, value in entries.items()
    }


def _operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, item in document["paths"].items():
        for method in _METHODS:
            if method in item:
                yield path, method, item[method]


def _complete(path: str, method: str, operation: dict[str, Any], schemas: dict[str, Any]) -> None:
    """Adds security, successes and errors to one operation."""
    responses = operation["responses"]
    for error in [status for status in responses if not status.startswith("2")]:
        del responses[error]  # FastAPI's idea of a validation error
    success = next(iter(responses))
    body = _body(operation, schemas)
    is_public, is_admin = path in _PUBLIC, path.startswith(_ADMIN)
    if not is_public:
        operation["security"] = [{"admin_key" if is_admin else "api_key": []}]
    _describe_success(f"{method.upper()} {path}", responses[success], "stream" in (body or {}).get("properties", {}))
    for status in sorted(_errors(method, operation, body is not None, is_public, is_admin)):
        answer = _error(status)
        if path in _PROBES:
            answer["content"]["application/json"]["schema"] = ANSWERS[f"GET {path}"]
        responses[str(int(status))] = answer
    for response in responses.values():
        response["headers"] = {**response.get("headers", {}), **_REQUEST_ID}


def _body(operation: dict[str, Any], schemas: dict[str, Any]) -> dict[str, Any] | None:
    """The schema of the operation's body."""
    if "requestBody" not in operation:
        return None
    reference = operation["requestBody"]["content"]["application/json"]["schema"]["$ref"]
    return schemas[reference.rpartition("/")[2]]


def _errors(method: str, operation: dict[str, Any], has_body: bool, is_public: bool, is_admin: bool) -> set[HTTPStatus]:
    statuses: set[HTTPStatus] = set()
    if is_public:
        statuses.add(HTTPStatus.SERVICE_UNAVAILABLE)
    else:
        statuses.add(HTTPStatus.UNAUTHORIZED)
    if has_body:
        statuses.update(_OF_BODIES)
    if is_admin or method != "get":
        statuses.add(HTTPStatus.FORBIDDEN)  # no admin key is set; another origin's page
    if is_admin and has_body:
        statuses.add(HTTPStatus.UNPROCESSABLE_ENTITY)
    if has_body and not is_admin:
        statuses.update(_OF_WORK)
    if any(parameter["in"] == "path" for parameter in operation.get("parameters", ())):
        statuses.add(HTTPStatus.NOT_FOUND)
    return statuses


def _describe_success(name: str, response: dict[str, Any], may_stream: bool) -> None:
    """Which types the answer may have, and the shape of its JSON."""
    content = response.setdefault("content", {})
    if content.get("application/json") == {"schema": {}}:
        content["application/json"] = {"schema": ANSWERS.get(name, {"type": "object"})}
    if may_stream:
        content["text/event-stream"] = {"schema": EVENT}


def _error(status: HTTPStatus) -> dict[str, Any]:
    answer: dict[str, Any] = {
        "description": status.phrase,
        "content": {"application/json": {"schema": {"$ref": _REFERENCE.format(model="Error")}}},
    }
    if status in (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE):
        answer["headers"] = dict(_RETRIED)
    return answer
