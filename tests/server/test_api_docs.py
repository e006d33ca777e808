"""docs/api.md names every route and field of the OpenAPI document, and none that is not there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from surefoot.server.tools.registry import NAMES

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "api.md").read_text()
NAMED = set(re.findall(r"`([a-z_]+)`", TEXT))
ROUTE = re.compile(r"`(GET|POST|PATCH|DELETE) (/[^`]*)`(?:, `(POST|DELETE|PATCH|GET) (/[^`]*)`)?")


@pytest.fixture
def document(plain: Any) -> dict[str, Any]:
    with plain.http() as http:
        return http.get("/openapi.json").json()


def test_routes(document: dict[str, Any]) -> None:
    table = TEXT.partition("## Routes")[2].partition("\n## ")[0]
    written = {(method, path) for match in ROUTE.findall(table) for method, path in (match[:2], match[2:]) if method}
    served = {(method.upper(), path) for path, item in document["paths"].items() for method in item}
    assert written == served


def test_every_field_is_named(document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]
    bodies = [
        operation["requestBody"]["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
        for item in document["paths"].values()
        for operation in item.values()
        if "requestBody" in operation
    ]
    assert len(set(bodies)) == 9
    missing = {(body, field) for body in bodies for field in schemas[body]["properties"] if field not in NAMED}
    assert not missing


def test_tables_hold_fields_only(document: dict[str, Any]) -> None:
    fields = {field for schema in document["components"]["schemas"].values() for field in schema.get("properties", ())}
    rows = re.findall(r"^\| ((?:`[a-z_]+`(?:, )?)+) \|", TEXT, re.MULTILINE)
    written = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert len(written) > 30 and written <= fields


def test_the_readme_counts_the_formats_of_calls() -> None:
    assert f"tools ({len(NAMES)} formats" in (ROOT / "README.md").read_text()


OPENAIS = set(  # whose meaning everybody knows
    "model messages stream stream_options stop top_p presence_penalty frequency_penalty n max_tokens "
    "max_completion_tokens logprobs top_logprobs response_format tools parallel_tool_calls reasoning_effort".split()
)


@pytest.mark.parametrize("body", ["ChatRequest", "CompletionRequest"])
def test_fields_that_openai_does_not_have_are_described(document: dict[str, Any], body: str) -> None:
    schemas = document["components"]["schemas"]
    silent = set[str]()
    for name, field in schemas[body]["properties"].items():
        parts = [field, *field.get("anyOf", ())]
        models = [schemas[part["$ref"].rpartition("/")[2]] for part in parts if "$ref" in part]
        if not any("description" in part for part in [*parts, *models]):
            silent.add(name)
    assert silent <= OPENAIS
