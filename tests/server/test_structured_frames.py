"""Structured output beside tools and reasoning: what the grammar of the whole answer allows, and how it is read."""

from __future__ import annotations

import json
from typing import Any

import pytest
from grammar_cases import takes_bytes
from tool_templates import ALWAYS_THINKING, HERMES, MISTRAL, THINKING, template

MESSAGES: Any = [{"role": "user", "content": "hi"}]
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"a": {"type": "integer"}},
    "required": ["a"],
    "additionalProperties": False,
}
FORMAT: dict[str, Any] = {"type": "json_schema", "json_schema": {"name": "thing", "schema": SCHEMA, "strict": True}}
NUMBERS = {"type": "object", "properties": {"n": {"type": "number"}}, "required": ["n"]}
SUM: dict[str, Any] = {"type": "function", "function": {"name": "sum", "parameters": NUMBERS}}
CALL = '<tool_call>\n{"name": "sum", "arguments": {"n": 2}}\n</tool_call>'
JSON = '{"a": 1}'


@pytest.fixture
def asked(start: Any, script: Any) -> Any:
    """Asks a model with a template, which answers with a text: the response, and the grammar that held it."""

    def ask(source: str, text: str = "", **fields: Any) -> Any:
        live = start(script(text=lambda _: text.encode()), template=template(source), max_context=100_000)
        with live.http() as http:
            response = http.post("/v1/chat/completions", json={"model": "tiny", "messages": MESSAGES, **fields})
        grammar = live.engine.submissions[0].params.grammar if live.engine.submissions else None
        return response, grammar

    return ask


@pytest.mark.parametrize(
    ("source", "fields", "good", "bad"),
    [
        (HERMES, {}, [JSON], [CALL, "x", ""]),
        (HERMES, {"tools": [SUM], "tool_choice": "none"}, [JSON], [CALL, "x"]),
        (HERMES, {"tools": [SUM]}, [JSON, CALL, f"{CALL}\n{CALL}"], ["x", f"x {CALL}", f"{JSON}{CALL}", '{"a": "x"}']),
        (HERMES, {"tools": [SUM], "parallel_tool_calls": False}, [JSON, CALL], [f"{CALL}\n{CALL}"]),
        (HERMES, {"tools": [SUM], "tool_choice": "required"}, [CALL], [JSON, "x"]),
        (MISTRAL, {"tools": [SUM]}, [JSON, '[TOOL_CALLS][{"name": "sum", "arguments": {"n": 2}}]'], ["x"]),
        (THINKING, {}, [JSON, f"<think>\nhm {{}}</think>\n\n{JSON}"], ["x", f"x{JSON}", f"<think>hm{JSON}"]),
        (THINKING, {"tools": [SUM]}, [JSON, CALL, f"<think>hm</think>\n{JSON}", f"<think>hm</think>\n\n{CALL}"], ["x"]),
        (THINKING, {"chat_template_kwargs": {"enable_thinking": False}}, [JSON, f"\n\n{JSON}"], ["x", "<think>x"]),
        (ALWAYS_THINKING, {}, [f"so {{'a'}}</think>\n\n{JSON}", f"</think>{JSON}"], [JSON, f"x</think>y{JSON}"]),
    ],
)
def test_the_grammar_of_the_whole_answer(
    asked: Any, source: str, fields: dict[str, Any], good: list[str], bad: list[str]
) -> None:
    response, grammar = asked(source, "x", response_format=FORMAT, **fields)
    assert response.status_code == 200, response.text
    for text in good:
        assert takes_bytes(grammar, text), text
    for text in bad:
        assert not takes_bytes(grammar, text), text


def test_an_answer_after_reasoning_is_only_the_json(asked: Any) -> None:
    for text in (f"<think>\nthe set {{1}}\n</think>\n\n{JSON}", JSON):
        message = asked(THINKING, text, response_format=FORMAT)[0].json()["choices"][0]["message"]
        assert message["content"] == JSON
        assert message.get("reasoning_content") == ("the set {1}" if text != JSON else None)


def test_the_first_end_marker_counts_where_a_grammar_holds(asked: Any) -> None:
    """Without a grammar such a marker is only talked about; with one, the answer begins behind it."""
    text, choice = "<think>I say </think> yes", {"structured_outputs": {"choice": ["yes", "no"]}}
    message = asked(THINKING, text, **choice)[0].json()["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("I say", "yes")
    assert takes_bytes(asked(THINKING, "x", **choice)[1], text)
    free = asked(THINKING, text)[0].json()["choices"][0]["message"]
    assert free["content"] == ""


def test_calls_stay_possible_beside_a_format(asked: Any) -> None:
    choice = asked(HERMES, CALL, response_format=FORMAT, tools=[SUM])[0].json()["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] is None
    assert json.loads(choice["message"]["tool_calls"][0]["function"]["arguments"]) == {"n": 2}
    text = asked(HERMES, JSON, response_format=FORMAT, tools=[SUM])[0].json()["choices"][0]
    assert (text["message"]["content"], text["finish_reason"]) == (JSON, "stop")


def test_a_format_beside_forced_calls_changes_nothing(asked: Any) -> None:
    grammar = asked(HERMES, CALL, response_format=FORMAT, tools=[SUM], tool_choice="required")[1]
    assert grammar.constraint.param == "tool_choice"


@pytest.mark.parametrize("field", ["structured_outputs", "json_schema", "grammar"])
def test_what_holds_for_the_whole_answer_excludes_forced_calls(asked: Any, field: str) -> None:
    values = {"structured_outputs": {"regex": "a"}, "json_schema": SCHEMA, "grammar": 'root ::= "a"'}
    response, grammar = asked(HERMES, CALL, tools=[SUM], tool_choice="required", **{field: values[field]})
    assert (response.status_code, grammar) == (400, None)
    error = response.json()["error"]
    assert error["param"] == "tool_choice" and field in error["message"]
    response, grammar = asked(HERMES, CALL, tools=[SUM], **{field: values[field]})
    assert response.status_code == 200 and takes_bytes(grammar, CALL)


def test_the_faulty_part_is_named(asked: Any) -> None:
    bad = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "nope"}}}
    response, _ = asked(THINKING, "x", response_format=bad, tools=[SUM])
    assert response.status_code == 400
    assert (response.json()["error"]["param"], "nope" in response.text) == ("response_format", True)
