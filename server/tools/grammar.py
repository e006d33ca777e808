"""Grammars of calls in llguidance's dialect of Lark: what the dialects share when they write down their layout."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

from ...engine.grammar.json_schema import enforceable
from ...kernels.errors import RequestError
from .definitions import Schema, Tool, ToolSet, resolved

Spell = Callable[[str], str]  # a marker as a grammar writes it: a control token, or quoted text

_COMPACT = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
_SHARED = ("$defs", "definitions")
_ANY_TEXT = "/(?s:.*)/"
_UNSAID = ("pattern", "format", "minLength", "maxLength")  # of strings that stand in a text as they are


@dataclass(frozen=True, slots=True)
class Grammar:
    """Blocks of calls: `opener block`, then `between opener block` any number of times if there may be several."""

    opener: str  # of a block, as the grammar writes it
    block: str  # what follows it
    rules: Sequence[str]
    between: str | None  # what separates blocks; None: further calls are a part of the block, or there are none

    def blocks(self) -> str:
        """The body of a rule for one block or more."""
        again = "" if self.between is None else f" ({self.between} {self.opener} {self.block})*"
        return f"{self.opener} {self.block}{again}".strip()


def quoted(text: str) -> str:
    """A text as a grammar's literal; nothing for no text."""
    return json.dumps(text, ensure_ascii=False) if text else ""


def layout(text: str, markers: Sequence[str], spell: Spell) -> str:
    """A literal text in which markers may be control tokens."""
    tokens = [marker for marker in markers if spell(marker) != quoted(marker)]
    if not tokens:
        return quoted(text)
    ordered = sorted(tokens, key=len, reverse=True)
    parts = re.split(f"({'|'.join(map(re.escape, ordered))})", text)
    return " ".join(spell(part) if part in tokens else quoted(part) for part in parts if part)


def choice(alternatives: Sequence[str]) -> str:
    """One of several rule bodies."""
    return alternatives[0] if len(alternatives) == 1 else "(" + " | ".join(alternatives) + ")"


def json_value(schema: Schema, root: Schema, strict: bool) -> str:
    """A JSON value of a schema that is a part of `root`. What llguidance does not know of a lax schema is not asked.
    RequestError 400 for one without finite values, and one that is nested too deeply."""
    shared = {name: root[name] for name in _SHARED if name in root}
    options = _COMPACT if strict else {**_COMPACT, "lenient": True}
    try:
        made = enforceable({**shared, **schema})
    except ValueError as fault:
        raise RequestError(f"tools: {fault}", param="tools", code="invalid_value") from None
    return "%json " + json.dumps({**made, "x-guidance": options}, ensure_ascii=False)


def closed_parameters(tool: Tool) -> dict[str, Any]:
    """The schema of all arguments, as an object without others unless it says that there may be."""
    schema = dict(resolved(tool.parameters, tool.parameters))
    for name in _SHARED:
        if name in tool.parameters:
            schema[name] = tool.parameters[name]
    schema.setdefault("type", "object")
    if "anyOf" not in schema and "oneOf" not in schema and "allOf" not in schema:
        schema.setdefault("properties", {})
        if "patternProperties" not in schema:
            schema.setdefault("additionalProperties", False)
    return schema


def json_arguments(tool: Tool) -> str:
    """All arguments of a tool as one JSON object."""
    schema = closed_parameters(tool)
    return json_value(schema, schema, tool.strict)


def json_calls(tools: ToolSet, arguments_key: str = "arguments") -> tuple[str, list[str]]:
    """`{"name": ..., "arguments": {...}}` for one of the tools: a rule's name, and the rules."""
    rules: list[str] = []
    for index, tool in enumerate(tools.tools):
        head = quoted('{"name": ' + json.dumps(tool.name) + f', "{arguments_key}": ')
        rules += [f'call_{index}: {head} arguments_{index} "}}"', f"arguments_{index}: {json_arguments(tool)}"]
    rules.append("call: " + choice([f"call_{index}" for index in range(len(tools.tools))]))
    return "call", rules


@dataclass(frozen=True, slots=True)
class MarkedArguments:
    """The layout of an argument whose value stands between markers as it is: `before` with `{key}` and `{is_string}`
    replaced, the value, `after`."""

    before: str
    after: str
    markers: Sequence[str] = ()

    def rules(self, tool: Tool, index: int, spell: Spell) -> tuple[str, list[str]]:
        """The body of a rule for all arguments of a tool, and the rules it needs."""
        rules: list[str] = []
        sequence: list[str] = []
        required = tool.required()
        for number, (key, schema) in enumerate(tool.properties().items()):
            name = f"argument_{index}_{number}"
            rules.append(f"{name}: {self._argument(tool, key, schema, spell)}")
            sequence.append(name if key in required else f"{name}?")
        return " ".join(sequence), rules

    def _argument(self, tool: Tool, key: str, schema: Schema, spell: Spell) -> str:
        types = tool.types(key)
        head, json_head = self._head(key, "true", spell), self._head(key, "false", spell)
        after = layout(self.after, self.markers, spell)
        as_json = f"{json_head} {json_value(schema, tool.parameters, tool.strict)} {after}"
        if types and "string" not in types:
            return as_json
        words = _words(resolved(schema, tool.parameters))
        if words is not None:
            return f"{head} {choice([quoted(word) for word in words if word])} {after}"
        if tool.strict:
            refuse_unsaid(tool, key, schema)
        as_text = f"{head} marked_text"
        return as_text if head == json_head or types == frozenset({"string"}) else choice([as_text, as_json])

    def _head(self, key: str, is_string: str, spell: Spell) -> str:
        return layout(self.before.replace("{key}", key).replace("{is_string}", is_string), self.markers, spell)

    def text_rules(self, spell: Spell) -> list[str]:
        """The rules of a text and what follows it. A control token ends it wherever it is, text where it first is."""
        after = layout(self.after, self.markers, spell)
        if after == quoted(self.after):
            return [text_until(self.after, "marked_text")]
        if not after.startswith('"'):
            return [f"marked_text: {_ANY_TEXT} {after}"]
        head, _, rest = after.partition('" ')
        return [text_until(json.loads(head + '"'), "marked_piece"), f"marked_text: marked_piece+ {rest}"]


def marked_calls(
    tools: ToolSet, spell: Spell, arguments: MarkedArguments, frame: tuple[str, str]
) -> tuple[str, list[str]]:
    """Calls whose arguments stand in a frame, in which `{name}` is replaced: a rule's name, and the rules."""
    rules = arguments.text_rules(spell)
    calls: list[str] = []
    for index, tool in enumerate(tools.tools):
        body, more = arguments.rules(tool, index, spell)
        head = layout(frame[0].replace("{name}", tool.name), arguments.markers, spell)
        calls.append(f"({head} {body} {layout(frame[1], arguments.markers, spell)})")
        rules += more
    rules.append("call: " + choice(calls))
    return "call", rules


def json_list(tools: ToolSet, parallel: bool) -> tuple[str, list[str]]:
    """A JSON list of calls: the body of a rule, and the rules it needs."""
    call, rules = json_calls(tools)
    again = f' (", " {call})*' if parallel else ""
    return f'"[" {call}{again} "]"', rules


def text_until(closer: str, name: str) -> str:
    """A rule: any text up to the first `closer`, and the closer."""
    return f"{name}[suffix={quoted(closer)}]: {_ANY_TEXT}"


def refuse_unsaid(tool: Tool, key: str, schema: Schema) -> None:
    """A strict schema may not ask for what this model's format of calls cannot hold a text to."""
    asked = next((word for word in _UNSAID if word in resolved(schema, tool.parameters)), None)
    if asked is not None:
        raise RequestError(
            f"tools: '{asked}' of '{tool.name}.{key[:80]}' cannot be enforced in this model's format of tool calls",
            param="tools",
            code="invalid_value",
        )


def _words(schema: Schema) -> list[str] | None:
    """The texts that a schema lists, if it lists them."""
    if "const" in schema:
        return [str(schema["const"])]
    listed = schema.get("enum")
    return [str(item) for item in cast("list[object]", listed)] if isinstance(listed, list) and listed else None
