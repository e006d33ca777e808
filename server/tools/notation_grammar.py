"""Grammars of values in a notation that is not JSON, from JSON schemas: for dialects that write arguments in one of
their own."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from .definitions import Schema, Tool, resolved, types_of
from .grammar import choice, quoted, refuse_unsaid, text_until

_INTEGER = "/-?(0|[1-9][0-9]*)/"
_NUMBER = r"/-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?/"
_ALL_TYPES = ("string", "number", "boolean", "null", "array", "object")


@dataclass(frozen=True, slots=True)
class Notation:
    """How values are written. `quote` is what stands at both ends of a text, as the grammar writes it; None: `text` is
    the body of a rule for texts."""

    key: str  # of a nested object, with {key} replaced
    argument: str  # the same for an argument
    separator: str
    quote: str | None = None
    text: str = '%json {"type": "string"}'
    true: str = "true"
    false: str = "false"
    null: str = "null"
    either_quote: bool = False  # a text in double quotes may be in single ones instead


_SINGLE_QUOTED = r"""/'([^'\\\r\n]|\\[\\'"nrt])*'/"""
PYTHON = Notation(
    key='"{key}": ',
    argument="{key}=",
    separator=", ",
    text=f'({_SINGLE_QUOTED} | %json {{"type": "string"}})',
    true="True",
    false="False",
    null="None",
    either_quote=True,
)


class ValueRules:
    """Rules for values, one per schema. Rules of nested objects refer to each other, so schemas may be recursive."""

    def __init__(self, notation: Notation) -> None:
        self._notation = notation
        self._names: dict[str, str] = {}
        self._bodies: dict[str, str] = {}

    @property
    def rules(self) -> list[str]:
        """All rules that were needed."""
        return [f"{name}: {body}" for name, body in self._bodies.items()]

    def arguments(self, tool: Tool) -> str:
        """The body of a rule for all arguments of a tool; empty if it has none."""
        return self._members(resolved(tool.parameters, tool.parameters), tool, self._notation.argument)

    def _members(self, schema: Schema, tool: Tool, key_layout: str) -> str:
        """Properties in their order, those that are not required at will, with separators between."""
        properties = cast("dict[str, Schema]", schema.get("properties") or {})
        required = set(cast("Sequence[str]", schema.get("required") or ()))
        separator = quoted(self._notation.separator)
        rest = {True: "", False: ""}  # what may follow, by whether nothing came before
        for key, part in reversed(list(properties.items())):
            member = f"{self._quotes(key_layout.replace('{key}', key))} {self._value(part, tool, key)}"
            after = rest[False]
            for first in (True, False):
                one = " ".join(filter(None, ["" if first else separator, member, after]))
                rest[first] = one if key in required else f"[{one}]" if not rest[first] else f"({one} | {rest[first]})"
            rest = {first: self._rule(body) for first, body in rest.items()}
        return rest[True]

    def _rule(self, body: str) -> str:
        name = f"value_{len(self._bodies)}"
        self._bodies[name] = body
        return name

    def _value(self, schema: Schema, tool: Tool, key: str) -> str:
        """The name of the rule for a schema."""
        schema = resolved(schema, tool.parameters)
        identity = json.dumps([tool.name, schema], sort_keys=True)
        if identity not in self._names:
            name = self._names[identity] = self._rule("")
            self._bodies[name] = self._body(schema, tool, key)
        return self._names[identity]

    def _body(self, schema: Schema, tool: Tool, key: str) -> str:
        for union in ("anyOf", "oneOf"):
            branches = schema.get(union)
            if isinstance(branches, list) and branches:
                return choice([self._value(branch, tool, key) for branch in cast("list[Schema]", branches)])
        if "const" in schema:
            return self._literal(schema["const"])
        if isinstance(schema.get("enum"), list) and schema["enum"]:
            return choice([self._literal(item) for item in schema["enum"]])
        types = types_of(schema, tool.parameters)
        if tool.strict:
            refuse_unsaid(tool, key, schema)
        return choice([self._typed(kind, schema, tool, key) for kind in sorted(types or _ALL_TYPES)])

    def _typed(self, kind: str, schema: Schema, tool: Tool, key: str) -> str:
        separator = quoted(self._notation.separator)
        match kind:
            case "string":
                return self._text()
            case "integer":
                return _INTEGER
            case "number":
                return _NUMBER
            case "boolean":
                return choice([quoted(self._notation.true), quoted(self._notation.false)])
            case "null":
                return quoted(self._notation.null)
            case "array":
                item = self._value(cast("Schema", schema.get("items") or {}), tool, key)
                return f'("[" [{item} ({separator} {item})*] "]")'
            case _ if schema.get("properties"):
                return f'("{{" {self._members(schema, tool, self._notation.key)} "}}")'
            case _:
                value = self._value(_mapping(schema.get("additionalProperties")), tool, key)
                head, colon = self._notation.key.split("{key}")
                name = f"{quoted(head)} /[A-Za-z0-9_]+/ {quoted(colon)}"
                return f'("{{" [{name} {value} ({separator} {name} {value})*] "}}")'

    def _text(self) -> str:
        quote = self._notation.quote
        if quote is None:
            return self._notation.text
        if not quote.startswith('"'):
            return f"({quote} /(?s:.*)/ {quote})"
        head, _, body = text_until(json.loads(quote), "quoted_text").partition(": ")
        self._bodies.setdefault(head, body)
        return f"({quote} quoted_text)"

    def _literal(self, held: object) -> str:
        match held:
            case bool():
                return quoted(self._notation.true if held else self._notation.false)
            case None:
                return quoted(self._notation.null)
            case str() if self._notation.quote is not None:
                return f"({self._notation.quote} {quoted(held)} {self._notation.quote})"
            case _:
                return self._quotes(json.dumps(held, ensure_ascii=False))

    def _quotes(self, written: str) -> str:
        """A literal in which double quotes may be single ones where the notation allows it and nothing is escaped."""
        if not self._notation.either_quote or '"' not in written or "\\" in written or "'" in written:
            return quoted(written)
        return choice([quoted(written), quoted(written.replace('"', "'"))])


def _mapping(held: Any) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", held) if isinstance(held, Mapping) else {}
