"""Tools that cannot be used as they are sent: 400 before any token, naming the field."""

from __future__ import annotations

from typing import Any

import openai
import pytest


def ask(**fields: Any) -> dict[str, Any]:
    return {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], **fields}


def tool(**fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", **fields}}


def odd(**schema: Any) -> dict[str, Any]:
    return {"tools": [tool(parameters=schema)]}


def nested(depth: int) -> dict[str, Any]:
    return {"type": "string"} if depth == 0 else {"type": "array", "items": nested(depth - 1)}


PARAMETERS = "tools.0.function.parameters"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": {}}, "tools"),
        ({"tools": [{}]}, "tools.0.type"),
        ({"tools": [{"type": "web_search"}]}, "tools.0.type"),
        ({"tools": [{"type": "function"}]}, "tools.0.function"),
        ({"tools": [tool(name="a b")]}, "tools.0.function.name"),
        ({"tools": [tool(name="")]}, "tools.0.function.name"),
        ({"tools": [tool(name="x" * 129)]}, "tools.0.function.name"),
        ({"tools": [tool(), tool()]}, "tools"),
        ({"tools": [tool(name=f"f{i}") for i in range(513)]}, "tools"),
        ({"tools": [tool(description="x" * (2**20 + 1))]}, "tools"),
        ({"tools": [tool(parameters=[])]}, "tools.0.function.parameters"),
        ({"tools": [tool(parameters={"type": "string"})]}, "tools.0.function.parameters"),
        (
            {"tools": [tool(parameters={"type": "object", "properties": {"a": {"type": "not-a-type"}}})]},
            "tools.0.function.parameters",
        ),
        ({"tools": [tool(parameters={"properties": {"a": 5}})]}, "tools.0.function.parameters"),
        ({"tools": [tool(parameters={"properties": []})]}, "tools.0.function.parameters"),
        ({"tools": [tool(parameters={"required": "a"})]}, "tools.0.function.parameters"),
        ({"tools": [tool(parameters={"anyOf": []})]}, "tools.0.function.parameters"),
        ({**odd(properties={"a": {"$ref": "#"}}, required=["a"]), "tool_choice": "required"}, "tools"),
        ({**odd(properties={"a": nested(61)}), "tool_choice": "required"}, "tools"),
        ({"tools": [tool()], "tool_choice": "maybe"}, "tool_choice"),
        ({"tools": [tool()], "tool_choice": {"type": "function", "function": {"name": "g"}}}, "tool_choice"),
        ({"tools": [tool()], "tool_choice": {"type": "function"}}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [tool()], "parallel_tool_calls": 1}, "parallel_tool_calls"),
        ({"reasoning_effort": "extreme"}, "reasoning_effort"),
        ({"messages": [{"role": "assistant", "tool_calls": [{}]}]}, "messages.0.tool_calls.0.function"),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": ""}}]}]},
            "messages.0.tool_calls.0.function.name",
        ),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_bad_definitions_name_their_field(plain: Any, fields: Any, param: str, stream: bool) -> None:
    with plain.http() as http:
        response = http.post("/v1/chat/completions", json=ask(**fields, stream=stream))
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["param"] == param
    assert error["message"]


def test_deep_schemas_are_refused(plain: Any) -> None:
    schema: dict[str, Any] = {"type": "object"}
    for _ in range(80):
        schema = {"type": "object", "properties": {"a": schema}}
    with plain.http() as http:
        response = http.post("/v1/chat/completions", json=ask(tools=[tool(parameters=schema)]))
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "tools.0.function.parameters"


@pytest.mark.parametrize("stream", [False, True])
def test_a_schema_that_cannot_be_enforced_is_refused(plain: Any, stream: bool) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", "pattern": "(?=x)"}}, "required": ["a"]}
    fields = {"tools": [tool(parameters=schema)], "tool_choice": "required", "stream": stream}
    with plain.client() as client, pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**ask(**fields))
    assert caught.value.param == "tool_choice"
    assert caught.value.message
