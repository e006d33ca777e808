"""What models get wrong, and what only looks like the end of something."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tool_texts import NOW_CALL, PARIS, Message, parsed

from surefoot.server.tools.definitions import Tool, ToolSet
from surefoot.server.tools.registry import detect
from surefoot.server.tools.typed_values import as_json


def both(dialect: str, text: str, **options: Any) -> Message:
    whole = parsed(dialect, [text], **options)
    assert parsed(dialect, list(text), **options) == whole
    return whole


@pytest.mark.parametrize(
    ("body", "arguments"),
    [
        ('{"name":"f","arguments":{"a":1}}', {"a": 1}),
        ('{ "arguments" : {"a" : 1.50e3 } , "name" : "f" }', {"a": 1500.0}),
        ('{"id": "x", "type": "function", "name": "f", "parameters": {"a": []}}', {"a": []}),
        ('{"type": "function", "function": {"name": "f", "arguments": {"a": {}}}}', {"a": {}}),
        ('{"function": "f", "args": {"a": "b"}}', {"a": "b"}),
        ('{"name": "f", "arguments": "{\\"a\\": \\"b\\\\n\\"}"}', {"a": "b\n"}),
        ('{"name": "f", "arguments": ""}', {}),
        ('{"name": "f", "arguments": null}', {}),
        ('{"name": "f"}', {}),
        ('{"name": "f", "arguments": {"a": True, "b": None, "c": [False,],}}', {"a": True, "b": None, "c": [False]}),
        ('{"name": "f", "arguments": {"a": "one\ntwo\tthree"}}', {"a": "one\ntwo\tthree"}),
        ('{"name": "f", "arguments": {"re": "\\d+\\.\\w \\\' \\u12"}}', {"re": "\\d+\\.\\w ' \\u12"}),
        ('{"name": "f", "arguments": {"a": "\\ud83d\\ude00 \\u00e9"}}', {"a": "😀 é"}),
        ('{"name": "f", "arguments": {"a": "</tool_call>"}}', {"a": "</tool_call>"}),
        ('{"name": "f", "args": {"a": "\\"}\\n</tool_call>\\n<tool_call>"}}', {"a": '"}\n</tool_call>\n<tool_call>'}),
    ],
)  # fmt: skip
def test_json_as_models_write_it(body: str, arguments: dict[str, Any]) -> None:
    message = both("hermes", f"<tool_call>\n{body}\n</tool_call>")
    assert (message.meaning(), message.content) == ([("f", arguments)], "")
    assert both("hermes", f"<tool_call>{body}").meaning() == [("f", arguments)]


@pytest.mark.parametrize(
    "body",
    [
        "", "{}", "[]", "null", '"f"', "f", '{"name": 1}', '{"name": ""}', '{"name": "a b"}', '{"arguments": {}}',
        '{"name": "f", "arguments": [1]}', '{"name": "f", "arguments": "x"}', '{"name": "f", "arguments": {a: 1}}',
        '{"name": "f", "arguments": {"a": 01}}', '{"name": "f", "arguments": {"a": NaN}}',
        '{"name": "f" "arguments": {}}', '{"name": "f", "arguments": {"a": 1}',
        '{"name": "f", "arguments": {"a" 1}}', '{"name": "f", "arguments": {"a": [1}}', "{'name': 'f'}",
        '{"name": "f", "arguments": {"a": "unended}}', '{"name": "f", "colour": 1}',
        '{"name": "f", "arguments": {"a": ' + "[" * 70 + "]" * 70 + "}}",
    ],
)  # fmt: skip
def test_unparseable_calls_are_text(body: str) -> None:
    text = f"<tool_call>\n{body}\n</tool_call>"
    message = both("hermes", text)
    assert (message.content, message.calls) == (text, [])


def test_a_long_call_that_breaks_keeps_what_was_given_out() -> None:
    """Its rest is text; nothing is lost or doubled."""
    start = '<tool_call>\n{"name": "f", "arguments": {"a": "' + "x" * 300 + '", "b": '
    message = both("hermes", start + "oops}}\n</tool_call>")
    assert message.calls == [["id0", "f", '{"a": "' + "x" * 300 + '", "b": ', False]]
    assert message.content == "oops}}\n</tool_call>"


def test_a_long_call_that_is_cut_off_leaves_no_scraps() -> None:
    start = '<tool_call>\n{"name": "f", "arguments": {"a": "' + "x" * 300
    for rest in ("\\", '", "b": 12', '", "b": tr', '", ', '", "b"'):
        message = both("hermes", start + rest)
        assert message.content == ""
        assert not message.calls[0][3]


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "get_weather", "arguments": {"city": "Paris", "days": 3}}',
        '```json\n{"name": "get_weather", "arguments": {"city": "Paris", "days": 3}}\n```',
        '```\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris", "days": 3}}\n</tool_call>\n```',
        '<tools>\n{"name": "get_weather", "arguments": {"city": "Paris", "days": 3}}\n</tools>',
        ' <tool_call>[{"name": "get_weather", "arguments": {"city": "Paris", "days": 3}}]</tool_call> ',
    ],
)
def test_hermes_without_its_markers(text: str) -> None:
    message = both("hermes", text)
    assert (message.meaning(), message.content) == ([PARIS], "")


@pytest.mark.parametrize("end", ["}}", "}"])
@pytest.mark.parametrize("frame", ["%s", "<tool_call>\n%s\n</tool_call>", "```json\n%s\n```"])
def test_doubled_braces_as_the_templates_of_qwen_show_them(frame: str, end: str) -> None:
    call = '{{"name": "get_weather", "arguments": {"city": "Paris", "days": 3}' + end
    message = both("hermes", frame % call)
    assert (message.meaning(), message.content) == ([PARIS], "")
    assert both("hermes", '{{"name": "Ann", "arguments": {}}}').calls == []


def test_white_space_parts_texts_but_no_text_from_a_call() -> None:
    call = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
    for text, content in (
        (f"\n{call}\n\nDone. ", "Done. "),
        (f"One moment.\n{call}\n\nDone.\n", "One moment.\n\nDone.\n"),
        (f"{call}\n{call}\n <tool_call>oops", "<tool_call>oops"),
        (f"{call} \n", ""),
    ):
        message = both("hermes", text)
        assert message.content == content
        assert set(map(str, message.meaning())) == {str(NOW_CALL)}


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "Ann", "arguments": {"city": "Paris"}}',
        '{"title": "get_weather"}',
        '```json\n{"name": "Ann"}\n```',
        "```python\nprint(1)\n```",
        'See {"name": "get_weather", "arguments": {}}',
    ],
)
def test_json_that_is_no_call(text: str) -> None:
    message = both("hermes", text)
    assert (message.content, message.calls) == (text, [])


def test_llama_joins_calls_by_semicolons_and_may_tag_them() -> None:
    text = '<|python_tag|>{"type": "function", "name": "now", "parameters": {}}; {"name": "now", "parameters": {}}'
    assert both("llama3_json", text).meaning() == [NOW_CALL, NOW_CALL]
    code = '<|python_tag|>brave_search.call(query="x")'
    assert both("llama3_json", code).content == code


def test_end_markers_inside_bare_values_are_text() -> None:
    value = "a</parameter> b\n</parameter>\nc </function> <parameter=text> </tool_call>"
    head = "<tool_call>\n<function=save>\n<parameter=path>\np\n</parameter>\n<parameter=text>\n"
    text = f"{head}{value}\n</parameter>\n</function>\n</tool_call>"
    assert both("qwen_coder", text).meaning() == [("save", {"path": "p", "text": value})]
    value = "a</arg_value> b</arg_key><arg_key>"
    head = "<tool_call>save\n<arg_key>path</arg_key>\n<arg_value>p</arg_value>\n<arg_key>text</arg_key>\n<arg_value>"
    text = f"{head}{value}</arg_value>\n</tool_call>"
    assert both("glm", text).meaning() == [("save", {"path": "p", "text": value})]


def test_qwen_coder_without_its_outer_marker() -> None:
    text = "Sure.\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n<parameter=days>\n3\n</parameter>\n"
    text += "</function>"
    message = both("qwen_coder", text)
    assert (message.content, message.meaning()) == ("Sure.", [PARIS])
    assert both("qwen_coder", text + "\n</tool_call>").content == "Sure."
    inline = "<function=get_weather><parameter=city>Paris</parameter><parameter=days>3</parameter></function>"
    assert both("qwen_coder", f"<tool_call>{inline}</tool_call>").meaning() == [PARIS]
    assert both("qwen_coder", '<tool_call>{"name": "now", "arguments": {}}</tool_call>').meaning() == [NOW_CALL]


def test_bare_values_keep_their_own_line_breaks() -> None:
    text = "<tool_call>\n<function=save>\n<parameter=path>\n\n p \n\n</parameter>\n</function>\n</tool_call>"
    assert both("qwen_coder", text).meaning() == [("save", {"path": "\n p \n"})]


@pytest.mark.parametrize(
    ("text", "types", "value"),
    [
        ("3", {"integer"}, 3),
        (" -3.0\n", {"integer"}, -3),
        ("3.5", {"integer"}, "3.5"),
        ("3.50", {"number"}, 3.5),
        ("0123", {"number"}, "0123"),
        ("true", {"boolean"}, True),
        ("False", {"boolean"}, False),
        ("yes", {"boolean"}, "yes"),
        ("3", {"string"}, "3"),
        ("null", {"string"}, "null"),
        ("null", {"string", "null"}, None),
        ("None", {"integer", "null"}, None),
        (" x ", {"string", "null"}, " x "),
        ('{"a": [1]}', {"object"}, {"a": [1]}),
        ("{'a': (1, None, True)}", {"object"}, {"a": [1, None, True]}),
        ("[1, 2", {"array"}, "[1, 2"),
        ("[1]", {"object"}, "[1]"),
        ("[NaN]", {"array"}, "[NaN]"),
        ("[1e999]", {"array"}, "[1e999]"),
        ("__import__('os')", {"array"}, "__import__('os')"),
        ("12", (), 12),
        ("true", (), True),
        ("hello", (), "hello"),
        ('["x"]', (), ["x"]),
        ('"x"', (), '"x"'),
        ('["\\ud800"]', {"array"}, ["\ud800"]),
    ],
)
def test_types_of_bare_values(text: str, types: Any, value: Any) -> None:
    written = as_json(text, frozenset(types))
    written.encode()  # no lone surrogate may reach the response
    assert json.loads(written) == value
    assert type(json.loads(written)) is type(value)


def test_types_of_schemas() -> None:
    def types(schema: Any, **root: Any) -> set[str]:
        return set(Tool("f", parameters={"properties": {"x": schema}, **root}).types("x"))

    assert types({"type": "string"}) == {"string"}
    assert types({"type": ["string", "null"]}) == {"string", "null"}
    assert types({"anyOf": [{"type": "integer"}, {"const": None}]}) == {"integer", "null"}
    assert types({"anyOf": [{"type": "integer"}, {}]}) == set()
    assert types({"allOf": [{"type": ["integer", "string"]}, {"description": "x"}, {"type": "string"}]}) == {"string"}
    assert types({"enum": ["a", 1, 2.5, None, True]}) == {"string", "number", "null", "boolean"}
    assert types({"$ref": "#/$defs/T"}, **{"$defs": {"T": {"type": "array"}}}) == {"array"}
    assert types({"$ref": "#/properties/x"}) == set()  # itself
    assert types({"$ref": "https://x"}) == set()
    assert types({"properties": {}}) == {"object"}
    assert types({"items": {}}) == {"array"}
    assert types({"type": "not-a-type"}) == set()
    assert Tool("f").types("anything") == frozenset()


def test_python_literals() -> None:
    text = (
        '[f(a=\'it\\\'s\', b="""x\n"y" """, c=-1.5e3, d=+7, e=(1, 2,), f={\'k\': {"n": None}}, g=1_000, '
        "h='\\x41\\u00e9\\q', i=[], j='', k=false)]"
    )
    tools = ToolSet([Tool("f")])
    arguments = {
        "a": "it's", "b": 'x\n"y" ', "c": -1500.0, "d": 7, "e": [1, 2], "f": {"k": {"n": None}}, "g": 1000,
        "h": "Aé\\q", "i": [], "j": "", "k": False,
    }  # fmt: skip
    assert both("pythonic", text, tools=tools).meaning() == [("f", arguments)]


@pytest.mark.parametrize(
    "call", ["f(1)", "f(a=g())", "f(a=1", "f(a=x)", "f(a={1: 2})", "f(a=1e999)", "f a=1)", "f(a=1) + 2", "f(a=01)"]
)
def test_python_that_is_no_literal(call: str) -> None:
    text = f"[{call}]"
    message = both("pythonic", text, tools=ToolSet([Tool("f")]))
    if call.endswith("+ 2"):
        assert (message.meaning(), message.content) == ([("f", {"a": 1})], "+ 2]")
    else:
        assert (message.content, message.calls) == (text, [])


def test_gemma_strings_need_no_escapes() -> None:
    text = '<|tool_call>call:f{"a":"x\\n",<|"|>b<|"|>:<|"|>{"k": [1,2]}\n\\<|"|>,c:null,d:[ 1 , true ]}<tool_call|>'
    message = both("gemma", text + "<|tool_response>")
    assert message.meaning() == [("f", {"a": "x\n", "b": '{"k": [1,2]}\n\\', "c": None, "d": [1, True]})]
    assert message.content == "<|tool_response>"


def test_mistral_writes_ids_of_its_own() -> None:
    text = "[TOOL_CALLS]now[CALL_ID]abc123DEF[ARGS]{}[TOOL_CALLS]now{}"
    assert both("mistral_v11", text).meaning() == [NOW_CALL, NOW_CALL]
    text = '[TOOL_CALLS][{"name": "now", "arguments": {}, "id": "abc123DEF"}]'
    assert both("mistral", text).meaning() == [NOW_CALL]


@pytest.mark.parametrize(
    ("sign", "name"),
    [
        ('<tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>', "hermes"),
        ("<tool_call>\n<function=example_function_name>\n<parameter=example_parameter_1>", "qwen_coder"),
        ("<tool_call>{function-name}\n<arg_key>{arg-key-1}</arg_key>", "glm"),
        ("<tool_call>{function-name}<arg_key>{arg-key-1}</arg_key>", "glm_compact"),
        ("{{- '<|tool_call>call:' + function['name'] + '{' -}}", "gemma"),
        ("'<\uff5ctool▁calls▁begin\uff5c>' ... '\\n' + '```json'", "deepseek_v3"),
        ("'<\uff5ctool▁calls▁begin\uff5c><\uff5ctool▁call▁begin\uff5c>'", "deepseek_v31"),
        ('set dsml_token = "\uff5cDSML\uff5c" <{{ dsml_token }}function_calls>', "deepseek_v32"),
        ('set dsml_token = "\uff5cDSML\uff5c" <{{ dsml_token }}tool_calls>', "deepseek_v4"),
        ("<TOOLCALL>[{{", "nemotron"),
        ("[TOOL_CALLS] [", "mistral"),
        ("[TOOL_CALLS]' + name + '[ARGS]'", "mistral_v11"),
        ("<|tool_call_start|>[", "lfm2"),
        ('{"name": function name, "parameters": dictionary of argument name and its value}', "llama3_json"),
        ("{{ message.content }}", None),
    ],
)
def test_detection(sign: str, name: str | None) -> None:
    assert detect(sign) == name
