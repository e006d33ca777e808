"""The examples of docs/structured.md are requests that work; the fields and metrics it names are there."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

TEXT = (Path(__file__).parents[2] / "docs" / "structured.md").read_text()
EXAMPLES = re.findall(r"```json\n(.*?)```", TEXT, re.DOTALL)


@pytest.mark.parametrize("example", EXAMPLES)
def test_examples(plain: Any, example: str) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}], **json.loads(example)}
    with plain.http() as http:
        response = http.post("/v1/chat/completions", json=body)
    assert response.status_code == 200, response.text
    assert plain.engine.submissions[-1].params.grammar is not None


def test_metrics(real: Any) -> None:
    with real.http() as http:
        http.post("/v1/completions", json={"prompt": "x", "structured_outputs": {"regex": "[ab]"}})
        shown = http.get("/metrics").text
    (line,) = re.findall(r"\*\*Metrics\*\*: (.*?)\n\n", TEXT, re.DOTALL)
    names = re.findall(r"`(?:surefoot_grammar)?(_\w+)(?:\{.*?\})?`", line)
    assert len(names) == 9
    for name in names:
        assert f"surefoot_grammar{name}" in shown, name


def test_the_document_describes_the_fields(plain: Any) -> None:
    with plain.http() as http:
        schemas = http.get("/openapi.json").json()["components"]["schemas"]
    for route in ("ChatRequest", "CompletionRequest"):
        assert {"response_format", "structured_outputs", "json_schema", "grammar"} <= set(schemas[route]["properties"])
    kinds = schemas["ChatRequest"]["properties"]["response_format"]["anyOf"][0]["discriminator"]["mapping"]
    assert set(kinds) == {"text", "json_object", "json_schema"}
    assert {"json", "regex", "choice", "grammar"} <= set(schemas["StructuredOutputs"]["properties"])
    assert {"name", "schema"} == set(schemas["NamedSchema"]["required"])
