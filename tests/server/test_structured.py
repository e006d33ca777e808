"""Structured output over HTTP: what reaches the engine as a grammar, what is refused and why. Scripted answers."""

from __future__ import annotations

from typing import Any

import pytest
from grammar_cases import takes_bytes

MESSAGES: Any = [{"role": "user", "content": "hi"}]
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"a": {"type": "integer"}},
    "required": ["a"],
    "additionalProperties": False,
}


def named(schema: Any = SCHEMA, **fields: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "thing", "schema": schema, **fields}}


def post(live: Any, route: str = "chat/completions", **fields: Any) -> Any:
    asked = {"messages": MESSAGES} if route == "chat/completions" else {"prompt": "hi"}
    with live.http() as http:
        return http.post(f"/v1/{route}", json={"model": "tiny", **asked, **fields})


def nested(depth: int) -> dict[str, Any]:
    return {"type": "string"} if depth == 0 else {"type": "array", "items": nested(depth - 1)}


ACCEPTED: dict[str, tuple[dict[str, Any], str, list[str], list[str]]] = {
    "json_object": ({"response_format": {"type": "json_object"}}, "response_format", ['{"b":[1]}'], ["[1]", "x"]),
    "json_object with a schema": (
        {"response_format": {"type": "json_object", "schema": SCHEMA}}, "response_format", ['{"a":1}'], ['{"b":1}']),
    "schema": ({"response_format": named()}, "response_format", ['{"a": 12}'], ['{"a":"x"}', '{"a":1,"b":2}']),
    "strict": ({"response_format": named(strict=True, description="A thing")}, "response_format", ['{"a":1}'], ["1"]),
    "lenient": (
        {"response_format": named({"type": "array", "items": {"type": "integer"}, "uniqueItems": True}, strict=False)},
        "response_format", ["[1, 2]"], ['["a"]']),
    "json": ({"structured_outputs": {"json": SCHEMA}}, "structured_outputs.json", ['{"a": 1}'], ["{}"]),
    "json text": ({"structured_outputs": {"json": '{"type": "integer"}'}}, "structured_outputs.json", ["12"], ["x"]),
    "compact": (
        {"structured_outputs": {"json": SCHEMA, "disable_any_whitespace": True}}, "structured_outputs.json",
        ['{"a":1}'], ['{"a": 1}']),
    "white space": (
        {"structured_outputs": {"json": SCHEMA, "whitespace_pattern": "_"}}, "structured_outputs.json",
        ['{"a":_1}'], ['{"a": 1}']),
    "object": ({"structured_outputs": {"json_object": True}}, "structured_outputs.json_object", ["{}"], ["1"]),
    "regex": ({"structured_outputs": {"regex": "[a-c]{2}"}}, "structured_outputs.regex", ["ab", "cc"], ["a d"]),
    "choice": ({"structured_outputs": {"choice": ["yes", "no"]}}, "structured_outputs.choice", ["no"], ["nay"]),
    "gbnf": (
        {"structured_outputs": {"grammar": 'root ::= "a" root "b" | "ab"'}}, "structured_outputs.grammar",
        ["aabb"], ["aba"]),
    "lark": ({"structured_outputs": {"grammar": 'start: "x" /[0-9]+/'}}, "structured_outputs.grammar", ["x1"], ["1"]),
    "llama.cpp's schema": ({"json_schema": SCHEMA}, "json_schema", ['{"a":1}'], ["1"]),
    "llama.cpp's any schema": ({"json_schema": {}}, "json_schema", ["1", '{"a":1}'], ["x"]),
    "llama.cpp's grammar": ({"grammar": 'root ::= [ab]+ "."'}, "grammar", ["ab."], ["c"]),
    "llama.cpp's lark": ({"grammar": '%llguidance {}\nstart: "x"'}, "grammar", ["x"], ["y"]),
}  # fmt: skip


@pytest.mark.parametrize("route", ["chat/completions", "completions"])
@pytest.mark.parametrize("name", ACCEPTED)
def test_a_constraint_reaches_the_engine(plain: Any, route: str, name: str) -> None:
    fields, param, good, bad = ACCEPTED[name]
    response = post(plain, route, **fields)
    assert response.status_code == 200, response.text
    grammar = plain.engine.submissions[-1].params.grammar
    assert grammar.constraint.param == param
    assert all(takes_bytes(grammar, text) for text in good)
    assert not any(takes_bytes(grammar, text) for text in bad)


FREE: list[dict[str, Any]] = [
    {"response_format": {"type": "text"}},
    {"response_format": None, "structured_outputs": None, "json_schema": None, "grammar": None},
    {"grammar": "", "guided_json": None, "guided_json_object": False, "regex": "", "ebnf": None},
]


@pytest.mark.parametrize("fields", FREE)
def test_neutral_values_constrain_nothing(plain: Any, fields: dict[str, Any]) -> None:
    assert post(plain, **fields).status_code == 200
    assert plain.engine.submissions[-1].params.grammar is None


REFUSED: dict[str, tuple[dict[str, Any], str, str]] = {  # fields, param, words of the message
    "not-a-type": ({"response_format": named({"type": "not-a-type"})}, "response_format", "not-a-type"),
    "itself": ({"response_format": named({"$ref": "#"})}, "response_format", "'#' refers to itself"),
    "endless": (
        {"response_format": named({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]})},
        "response_format", "refers to itself"),
    "depth": ({"response_format": named(nested(61))}, "response_format", "60 levels"),
    "no such definition": (
        {"response_format": named({"$ref": "#/$defs/x"})}, "response_format", "there is no '/$defs/x'"),
    "remote": ({"response_format": named({"$ref": "https://example.com/x"})}, "response_format", "nothing is fetched"),
    "keyword": (
        {"response_format": named({"type": "array", "uniqueItems": True})}, "response_format",
        "keywords 'uniqueItems'"),
    "pattern": ({"response_format": named({"type": "string", "pattern": "("})}, "response_format", "unclosed"),
    "size": ({"response_format": named({"enum": ["x" * 140_000]})}, "response_format", "characters"),
    "no schema": ({"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}, "schema", "required"),
    "no name": ({"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}}, "name", "required"),
    "name": ({"response_format": named(name="a b")}, "name", "pattern"),
    "no json_schema": ({"response_format": {"type": "json_schema"}}, "json_schema", "required"),
    "unknown type": ({"response_format": {"type": "structural_tag"}}, "response_format", "json_object"),
    "no type": ({"response_format": {}}, "response_format", "type"),
    "false": ({"response_format": False}, "response_format", ""),
    "empty": ({"response_format": ""}, "response_format", ""),
    "false object": ({"response_format": {"type": "json_object", "schema": False}}, "schema", ""),
    "empty object": ({"response_format": {"type": "json_object", "schema": ""}}, "schema", ""),
    "unknown key": ({"response_format": {"type": "json_object", "mode": 1}}, "mode", "not permitted"),
    "json_object false": ({"structured_outputs": {"json_object": False}}, "json_object", "must be true"),
    "json empty": ({"structured_outputs": {"json": ""}}, "json", "not valid JSON"),
    "json list": ({"structured_outputs": {"json": "[]"}}, "json", "object"),
    "none of them": ({"structured_outputs": {}}, "structured_outputs", "exactly one"),
    "two of them": ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs", "regex and choice"),
    "no choice": ({"structured_outputs": {"choice": []}}, "choice", "at least 1"),
    "option": ({"structured_outputs": {"regex": "a", "disable_any_whitespace": True}}, "structured_outputs", "space"),
    "tag": ({"structured_outputs": {"structural_tag": "{}"}}, "structural_tag", "not permitted"),
    "regex": ({"structured_outputs": {"regex": "(?=a)"}}, "structured_outputs.regex", "look-ahead"),
    "lark": ({"structured_outputs": {"grammar": "start: ("}}, "structured_outputs.grammar", "Expected token"),
    "gbnf": ({"grammar": "root ::= x"}, "grammar", "line 1"),
    "two fields": ({"response_format": named(), "json_schema": {}}, "json_schema", "response_format"),
    "three fields": ({"json_schema": {}, "grammar": 'root ::= "a"'}, "grammar", "json_schema"),
    "guided_json": ({"guided_json": {}}, "guided_json", "structured_outputs.json"),
    "guided_regex": ({"guided_regex": "a"}, "guided_regex", "structured_outputs.regex"),
    "guided_choice": ({"guided_choice": ["a"]}, "guided_choice", "structured_outputs.choice"),
    "guided_grammar": ({"guided_grammar": "a"}, "guided_grammar", "structured_outputs.grammar"),
    "guided_backend": ({"guided_decoding_backend": "xgrammar"}, "guided_decoding_backend", "structured_outputs"),
    "sglang's regex": ({"regex": "a"}, "regex", "structured_outputs.regex"),
}  # fmt: skip


@pytest.mark.parametrize("route", ["chat/completions", "completions"])
@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_held_is_refused(plain: Any, route: str, name: str) -> None:
    fields, param, words = REFUSED[name]
    sent = len(plain.engine.submissions)
    response = post(plain, route, stream=True, **fields)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["param"] is not None and error["param"].endswith(param)
    assert words in error["message"]
    assert len(plain.engine.submissions) == sent
