"""Tools in request bodies: definitions, choice, and calls in a conversation's history."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, cast

from pydantic import Field, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from ..tools.definitions import Tool, ToolSet
from .sampling import Strict

_MAX_TOOLS = 512
_MAX_SIZE = 2**20  # characters of all definitions as JSON
_MAX_DEPTH = 64  # of a parameter schema
_MAX_CALLS = 512  # of one message
_TYPES = frozenset({"string", "number", "integer", "boolean", "null", "object", "array"})
_SCHEMAS = ("items", "additionalProperties", "not", "contains", "propertyNames", "if", "then", "else")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")

ToolName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.:/-]+$", max_length=128)]


class FunctionDefinition(Strict):
    """A function that the model may call. No `parameters`: it takes none."""

    name: ToolName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None

    @field_validator("parameters")
    @classmethod
    def _usable(cls, parameters: dict[str, Any] | None) -> dict[str, Any] | None:
        if parameters:
            if parameters.get("type", "object") != "object":
                raise PydanticCustomError("schema", "must describe an object: its 'type' is not 'object'")
            check_schema(parameters)
        return parameters


class ToolDefinition(Strict):
    """One of `tools`."""

    type: Literal["function"]
    function: FunctionDefinition

    def tool(self) -> Tool:
        """The tool as parsers and grammars know it."""
        made = self.function
        return Tool(made.name, made.description or "", made.parameters or {}, bool(made.strict))

    def shown(self) -> dict[str, Any]:
        """The definition as chat templates expect it."""
        made = self.function
        parameters = made.parameters or {"type": "object", "properties": {}}
        return {
            "type": "function",
            "function": {"name": made.name, "description": made.description or "", "parameters": parameters},
        }


class HistoryFunction(Strict):
    """What a call in the history called. `arguments` is JSON text; an object is accepted too."""

    name: Annotated[str, Field(min_length=1, max_length=256)]
    arguments: str | dict[str, Any] = "{}"


class HistoryCall(Strict):
    """A call that an assistant's message made."""

    id: str | None = None
    type: Literal["function"] = "function"
    function: HistoryFunction


HistoryCalls = Annotated[list[HistoryCall], Field(max_length=_MAX_CALLS)]


@dataclass(frozen=True, slots=True)
class CallPlan:
    """What an answer may call."""

    tools: ToolSet  # those it may call
    shown: list[dict[str, Any]]  # those the model sees
    required: bool  # it has to call one
    parallel: bool  # it may call several

    @property
    def is_strict(self) -> bool:
        """Whether some tool's arguments are promised to fit its schema."""
        return any(tool.strict for tool in self.tools.tools)


class ToolFields(Strict):
    """`tools` and how they may be called."""

    tools: Annotated[list[ToolDefinition], Field(max_length=_MAX_TOOLS)] | None = None
    tool_choice: Any = Field(None, json_schema_extra={"description": "auto, none, required, or a named function"})
    parallel_tool_calls: bool | None = None

    @field_validator("tools")
    @classmethod
    def _bounded(cls, tools: list[ToolDefinition] | None) -> list[ToolDefinition] | None:
        names: set[str] = set()
        size = 0
        for definition in tools or ():
            made = definition.function
            if made.name in names:
                raise PydanticCustomError("tools", "'{name}' is defined twice", {"name": made.name})
            names.add(made.name)
            size += len(made.description or "") + len(json.dumps(made.parameters))
        if size > _MAX_SIZE:
            raise PydanticCustomError("tools", "the definitions are longer than {size} characters", {"size": _MAX_SIZE})
        return tools

    @field_validator("tool_choice")
    @classmethod
    def _choice(cls, choice: Any, info: ValidationInfo) -> str | None:
        """'auto', 'none', 'required', or a name behind a colon."""
        if choice is None or choice in ("auto", "none"):
            return choice
        tools = cast("list[ToolDefinition] | None", info.data.get("tools"))
        match choice:
            case "required":
                if not tools:
                    raise PydanticCustomError("tool_choice", "needs 'tools'")
                return "required"
            case {"type": "function", "function": {"name": str(name)}} | {"type": "function", "name": str(name)}:
                if not any(definition.function.name == name for definition in tools or ()):
                    raise PydanticCustomError("tool_choice", "'{name}' is not one of the tools", {"name": name[:128]})
                return ":" + name
            case _:
                problem = 'must be "auto", "none", "required" or {"type": "function", "function": {"name": ...}}'
                raise PydanticCustomError("tool_choice", "{problem}", {"problem": problem})

    def may_call(self) -> bool:
        """Whether the answer may call tools."""
        return bool(self.tools) and self.tool_choice != "none"

    def call_plan(self) -> CallPlan | None:
        """What the answer may call; None: nothing, and the model sees no tools."""
        choice = cast("str | None", self.tool_choice)
        if not self.tools or not self.may_call():
            return None
        tools = ToolSet([definition.tool() for definition in self.tools])
        shown = [definition.shown() for definition in self.tools]
        if choice is not None and choice.startswith(":"):
            return CallPlan(tools.only(choice[1:]), shown, required=True, parallel=False)
        return CallPlan(tools, shown, choice == "required", self.parallel_tool_calls is not False)


def check_schema(schema: object, depth: int = 0) -> None:
    """PydanticCustomError for what is no JSON Schema. Only its shape is looked at."""
    if isinstance(schema, bool):
        return
    if not isinstance(schema, Mapping):
        raise PydanticCustomError("schema", "a schema must be an object")
    if depth > _MAX_DEPTH:
        raise PydanticCustomError("schema", "the schema is nested too deeply")
    known = cast("Mapping[str, object]", schema)
    _check_type(known.get("type"))
    for name in _SCHEMAS:
        if name in known and not (name == "items" and isinstance(known[name], list)):
            check_schema(known[name], depth + 1)
    for name in _LISTS:
        if name in known:
            for part in _list(name, known[name]):
                check_schema(part, depth + 1)
    for name in _MAPS:
        if name in known:
            for part in _mapping(name, known[name]).values():
                check_schema(part, depth + 1)
    if "enum" in known:
        _list("enum", known["enum"])
    if "required" in known and not all(
        isinstance(item, str) for item in _list("required", known["required"], empty=True)
    ):
        raise PydanticCustomError("schema", "'required' must be a list of names")


def _check_type(named: object) -> None:
    names = cast("list[object]", named) if isinstance(named, list) else [] if named is None else [named]
    for name in names:
        if name not in _TYPES:
            raise PydanticCustomError("schema", "'{name}' is not a type", {"name": str(name)[:40]})


def _list(name: str, held: object, empty: bool = False) -> list[object]:
    if not isinstance(held, list) or not (held or empty):
        raise PydanticCustomError("schema", "'{name}' must be a list", {"name": name})
    return cast("list[object]", held)


def _mapping(name: str, held: object) -> Mapping[str, object]:
    if not isinstance(held, Mapping):
        raise PydanticCustomError("schema", "'{name}' must be an object", {"name": name})
    return cast("Mapping[str, object]", held)
