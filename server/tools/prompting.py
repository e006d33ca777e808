"""Tools for models whose chat template knows none: described in the system message, in the Hermes format, with calls
and results of the history written out as plain messages."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, cast

_INSTRUCTIONS = """# Tools

You may call one or more functions to help with the request. Their signatures are listed within <tools></tools>:
<tools>
{tools}
</tools>

To call a function, answer with a JSON object of its name and arguments within <tool_call></tool_call>:
<tool_call>
{{"name": "function-name", "arguments": {{"argument-name": "value"}}}}
</tool_call>
Call functions only when they are needed; otherwise answer as usual."""

Messages = list[dict[str, Any]]


def described(messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> Messages:
    """The conversation without tools, calls and results in forms of their own."""
    plain = _without_forms(messages)
    if not tools:
        return plain
    text = _INSTRUCTIONS.format(tools="\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools))
    if plain and plain[0]["role"] in ("system", "developer"):
        first = plain[0]
        return [{**first, "content": _joined(_text(first.get("content")), text)}, *plain[1:]]
    return [{"role": "system", "content": text}, *plain]


def _without_forms(messages: Sequence[Mapping[str, Any]]) -> Messages:
    """Calls become an assistant's text; results become a user's, together with what the user says next."""
    plain: Messages = []
    results: list[str] = []
    for message in messages:
        if message["role"] == "tool":
            results.append(f"<tool_response>\n{_text(message.get('content'))}\n</tool_response>")
            continue
        if results and message["role"] == "user":
            plain.append({**message, "content": _joined("\n".join(results), _text(message.get("content")))})
            results = []
            continue
        if results:
            plain.append({"role": "user", "content": "\n".join(results)})
            results = []
        plain.append(_with_calls_written(message))
    if results:
        plain.append({"role": "user", "content": "\n".join(results)})
    return plain


def _with_calls_written(message: Mapping[str, Any]) -> dict[str, Any]:
    calls = cast("Sequence[Mapping[str, Any]]", message.get("tool_calls") or ())
    if not calls:
        return dict(message)
    text = "\n".join(_written(call["function"]) for call in calls)
    content = _text(message.get("content"))
    rest = {name: value for name, value in message.items() if name != "tool_calls"}
    return {**rest, "content": f"{content}\n{text}" if content else text}


def _written(function: Mapping[str, Any]) -> str:
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        with contextlib.suppress(ValueError):  # then it stays as the model wrote it
            arguments = json.loads(arguments or "{}")
    body = json.dumps({"name": function["name"], "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>\n{body}\n</tool_call>"


def _joined(first: str, second: str) -> str:
    return f"{first}\n\n{second}" if first and second else first or second


def _text(content: object) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(part["text"] for part in cast("Sequence[Mapping[str, str]]", content or ()))
