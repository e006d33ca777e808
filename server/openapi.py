"""The OpenAPI document: routes read their bodies themselves (strictly), so their schemas are added here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

_REFERENCE = "#/components/schemas/{model}"


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
            built.setdefault("components", {}).setdefault("schemas", {}).update(definitions["$defs"])
            app.openapi_schema = built
        return app.openapi_schema

    app.openapi = document
