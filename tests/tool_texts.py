"""Answers with tool calls as models write them, per dialect, and what they mean."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from surefoot.server.message_events import CallArguments, CallEnd, CallStart, Content, Event, Reasoning
from surefoot.server.tools.call_parser import CallParser
from surefoot.server.tools.definitions import Tool, ToolSet
from surefoot.server.tools.registry import load

WEATHER = Tool(
    "get_weather",
    "Weather of a place",
    {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer"},
            "exact": {"type": "boolean"},
            "factor": {"type": "number"},
            "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
            "tags": {"type": "array", "items": {"type": "string"}},
            "where": {"$ref": "#/$defs/Place"},
            "unit": {"enum": ["c", "f"]},
        },
        "required": ["city"],
        "$defs": {"Place": {"type": "object", "properties": {"lat": {"type": "number"}, "lon": {"type": "number"}}}},
    },
)
SAVE = Tool(
    "save",
    "Writes a file",
    {
        "type": "object",
        "properties": {"path": {"type": "string"}, "text": {"type": "string"}},
        "required": ["path", "text"],
    },
)
NOW = Tool("now", "The time", {"type": "object", "properties": {}})
TOOLS = ToolSet([WEATHER, SAVE, NOW])


@dataclass
class Message:
    """All events of an answer as one message."""

    content: str = ""
    reasoning: str = ""
    calls: list[list[Any]] = field(default_factory=list)  # [id, name, arguments as text, complete]

    def add(self, events: list[Event]) -> Message:
        for event in events:
            match event:
                case Content(text):
                    assert text
                    self.content += text
                case Reasoning(text):
                    assert text
                    self.reasoning += text
                case CallStart(index, id, name):
                    assert index == len(self.calls)
                    self.calls.append([id, name, "", False])
                case CallArguments(index, text):
                    assert text
                    assert index == len(self.calls) - 1
                    assert not self.calls[index][3]
                    self.calls[index][2] += text
                case CallEnd(index):
                    assert index == len(self.calls) - 1
                    assert not self.calls[index][3]
                    self.calls[index][3] = True
        return self

    def meaning(self) -> list[tuple[str, Any]]:
        """Names and arguments of the calls, all of which must be complete."""
        assert all(call[3] for call in self.calls)
        return [(name, json.loads(text)) for _, name, text, _ in self.calls]


def parser(dialect: str, tools: ToolSet = TOOLS, **options: Any) -> CallParser:
    ids = iter(range(1000))
    return CallParser(load(dialect), tools, lambda: f"id{next(ids)}", **options)


def parsed(dialect: str, pieces: list[str], tools: ToolSet = TOOLS, **options: Any) -> Message:
    reader, message = parser(dialect, tools, **options), Message()
    for piece in pieces:
        message.add(reader.feed(piece))
    return message.add(reader.end())


PARIS: tuple[str, dict[str, Any]] = ("get_weather", {"city": "Paris", "days": 3})
FULL_ARGUMENTS: dict[str, Any] = {
    "city": 'Žďár "nad" Sázavou\n{}',
    "days": -2,
    "exact": True,
    "factor": 0.5,
    "tags": ["a", "b c"],
    "where": {"lat": 1.5, "lon": -2},
}
FULL: tuple[str, dict[str, Any]] = ("get_weather", FULL_ARGUMENTS)
NOW_CALL: tuple[str, dict[str, Any]] = ("now", {})
CODE = 'if x < 3 && "</tool_call>" != y:\n\tprint("{\\n}")\n\n'
SAVE_CALL: tuple[str, dict[str, Any]] = ("save", {"path": "a/b.py", "text": CODE})


def _json(call: tuple[str, dict[str, Any]], key: str = "arguments", **options: Any) -> str:
    return json.dumps({"name": call[0], key: call[1]}, ensure_ascii=False, **options)


def hermes(*calls: tuple[str, dict[str, Any]]) -> str:
    return "\n".join(f"<tool_call>\n{_json(call)}\n</tool_call>" for call in calls)


def qwen_coder(*calls: tuple[str, dict[str, Any]]) -> str:
    def body(arguments: dict[str, Any]) -> str:
        return "".join(f"<parameter={key}>\n{_bare(value)}\n</parameter>\n" for key, value in arguments.items())

    return "\n".join(f"<tool_call>\n<function={name}>\n{body(args)}</function>\n</tool_call>" for name, args in calls)


def _bare(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def glm(*calls: tuple[str, dict[str, Any]], line: str = "\n") -> str:
    def body(arguments: dict[str, Any]) -> str:
        return "".join(
            f"<arg_key>{key}</arg_key>{line}<arg_value>{_bare(value)}</arg_value>{line}"
            for key, value in arguments.items()
        )

    return line.join(f"<tool_call>{name}{line}{body(args)}</tool_call>" for name, args in calls)


def llama3(*calls: tuple[str, dict[str, Any]]) -> str:
    return "; ".join(_json(call, "parameters") for call in calls)


def python(*calls: tuple[str, dict[str, Any]]) -> str:
    def body(arguments: dict[str, Any]) -> str:
        return ", ".join(f"{key}={value!r}" for key, value in arguments.items())

    return "[" + ", ".join(f"{name}({body(arguments)})" for name, arguments in calls) + "]"


def mistral(*calls: tuple[str, dict[str, Any]]) -> str:
    return "[TOOL_CALLS] [" + ", ".join(_json(call) for call in calls) + "]"


def mistral_v11(*calls: tuple[str, dict[str, Any]]) -> str:
    return "".join(f"[TOOL_CALLS]{name}[ARGS]{json.dumps(arguments, ensure_ascii=False)}" for name, arguments in calls)


def nemotron(*calls: tuple[str, dict[str, Any]]) -> str:
    return "<TOOLCALL>[" + ", ".join(_json(call) for call in calls) + "]</TOOLCALL>"


def gemma(
    *calls: tuple[str, dict[str, Any]], quote: str = '<|"|>', marks: Any = ("<|tool_call>", "<tool_call|>")
) -> str:
    def value(held: Any) -> str:
        if isinstance(held, str):
            return quote + held + quote
        if isinstance(held, dict):
            return "{" + ",".join(f"{key}:{value(item)}" for key, item in held.items()) + "}"
        if isinstance(held, list):
            return "[" + ",".join(map(value, held)) + "]"
        return json.dumps(held)

    return "".join(f"{marks[0]}call:{name}{value(arguments)}{marks[1]}" for name, arguments in calls)


def deepseek_v3(*calls: tuple[str, dict[str, Any]]) -> str:
    one = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>{}\n```json\n{}\n```<｜tool▁call▁end｜>"  # noqa: RUF001
    body = "\n".join(one.format(name, json.dumps(arguments, ensure_ascii=False)) for name, arguments in calls)
    return f"<｜tool▁calls▁begin｜>{body}<｜tool▁calls▁end｜>"  # noqa: RUF001


def deepseek_v31(*calls: tuple[str, dict[str, Any]]) -> str:
    one = "<｜tool▁call▁begin｜>{}<｜tool▁sep｜>{}<｜tool▁call▁end｜>"  # noqa: RUF001
    body = "".join(one.format(name, json.dumps(arguments, ensure_ascii=False)) for name, arguments in calls)
    return f"<｜tool▁calls▁begin｜>{body}<｜tool▁calls▁end｜>"  # noqa: RUF001


def dsml(*calls: tuple[str, dict[str, Any]], word: str = "function_calls") -> str:
    bar = "｜DSML｜"  # noqa: RUF001

    def parameter(key: str, value: Any) -> str:
        is_string = "true" if isinstance(value, str) else "false"
        return f'<{bar}parameter name="{key}" string="{is_string}">{_bare(value)}</{bar}parameter>\n'

    body = "".join(
        f'<{bar}invoke name="{name}">\n' + "".join(parameter(*item) for item in arguments.items()) + f"</{bar}invoke>\n"
        for name, arguments in calls
    )
    return f"<{bar}{word}>\n{body}</{bar}{word}>"


WRITERS: dict[str, Any] = {
    "hermes": hermes,
    "qwen_coder": qwen_coder,
    "glm": glm,
    "glm_compact": lambda *calls: glm(*calls, line=""),
    "llama3_json": llama3,
    "pythonic": python,
    "lfm2": lambda *calls: f"<|tool_call_start|>{python(*calls)}<|tool_call_end|>",
    "llama4_pythonic": lambda *calls: f"<|python_start|>{python(*calls)}<|python_end|>",
    "mistral": mistral,
    "mistral_v11": mistral_v11,
    "nemotron": nemotron,
    "gemma": gemma,
    "functiongemma": lambda *calls: gemma(
        *calls, quote="<escape>", marks=("<start_function_call>", "<end_function_call>")
    ),
    "deepseek_v3": deepseek_v3,
    "deepseek_v31": deepseek_v31,
    "deepseek_v32": dsml,
    "deepseek_v4": lambda *calls: dsml(*calls, word="tool_calls"),
}
UNMARKED = ("llama3_json", "pythonic")  # their calls are the whole answer
