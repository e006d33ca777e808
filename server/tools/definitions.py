"""The tools of a request, and the types that their schemas give to arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

Schema = Mapping[str, Any]

_JSON_TYPES = frozenset({"string", "number", "integer", "boolean", "null", "object", "array"})
_MAX_REFERENCES = 16


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may call."""

    name: str
    description: str = ""
    parameters: Schema = field(default_factory=dict[str, Any])  # a JSON schema of the arguments; empty: no arguments
    strict: bool = False

    def properties(self) -> Mapping[str, Schema]:
        """Schemas of the arguments that are named."""
        properties = resolved(self.parameters, self.parameters).get("properties")
        if not isinstance(properties, Mapping):
            return {}
        named = cast("Mapping[str, object]", properties)
        return {name: cast("Schema", schema) for name, schema in named.items() if isinstance(schema, Mapping)}

    def required(self) -> frozenset[str]:
        """Names of the arguments that must be there."""
        names = resolved(self.parameters, self.parameters).get("required")
        return frozenset(map(str, cast("list[object]", names))) if isinstance(names, list) else frozenset()

    def types(self, argument: str) -> frozenset[str]:
        """JSON types that an argument may have. Empty: anything."""
        schema = self.properties().get(argument)
        return frozenset() if schema is None else types_of(schema, self.parameters)


class ToolSet:
    """The tools that a request may call."""

    def __init__(self, tools: Sequence[Tool]) -> None:
        self.tools = tuple(tools)
        self._by_name = {tool.name: tool for tool in tools}

    def __contains__(self, name: str) -> bool:
        return name in self._by_name

    def get(self, name: str) -> Tool:
        """The tool, or for an unknown name one that takes anything."""
        return self._by_name.get(name) or Tool(name)

    def only(self, *names: str) -> ToolSet:
        """Some of these tools, in their order."""
        return ToolSet([tool for tool in self.tools if tool.name in names])


def resolved(schema: Schema, root: Schema) -> Schema:
    """The schema that a reference within `root` stands for."""
    for _ in range(_MAX_REFERENCES):
        reference = schema.get("$ref")
        if not isinstance(reference, str) or not reference.startswith("#"):
            break
        target: object = root
        for part in reference.removeprefix("#").strip("/").split("/"):
            if part and isinstance(target, Mapping):
                target = cast("Mapping[str, object]", target).get(part.replace("~1", "/").replace("~0", "~"))
        if not isinstance(target, Mapping):
            return {}
        schema = cast("Schema", target)
    return schema


def types_of(schema: Schema, root: Schema, depth: int = 0) -> frozenset[str]:
    """JSON types that a schema allows. Empty: it does not say."""
    schema = resolved(schema, root)
    named = schema.get("type")
    if isinstance(named, str):
        return frozenset({named}) & _JSON_TYPES
    if isinstance(named, list):
        return frozenset(cast("list[str]", named)) & _JSON_TYPES
    if "const" in schema:
        return frozenset({_type_of(schema["const"])})
    if isinstance(schema.get("enum"), list):
        return frozenset(_type_of(item) for item in schema["enum"])
    for union in ("anyOf", "oneOf", "allOf"):
        parts = schema.get(union)
        if isinstance(parts, list) and depth < _MAX_REFERENCES:
            branches = cast("list[object]", parts)
            found = [types_of(cast("Schema", part), root, depth + 1) for part in branches if isinstance(part, Mapping)]
            return _all_of(found) if union == "allOf" else _any_of(found)
    return frozenset({"object"} if "properties" in schema else {"array"} if "items" in schema else ())


def _any_of(found: Sequence[frozenset[str]]) -> frozenset[str]:
    return frozenset[str]().union(*found) if all(found) else frozenset[str]()


def _all_of(found: Sequence[frozenset[str]]) -> frozenset[str]:
    said = [types for types in found if types]
    return said[0].intersection(*said) if said else frozenset()


def _type_of(value: object) -> str:
    match value:
        case bool():
            return "boolean"
        case int() | float():
            return "number"
        case str():
            return "string"
        case None:
            return "null"
        case list():
            return "array"
        case _:
            return "object"
