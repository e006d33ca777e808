"""Tools in request bodies: definitions, choice, and calls in a conversation's history."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, cast

from pydantic import Field, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from ..tools.definitions import Tool, ToolSet
from .sampling import Strict

MAX_TOOLS = 512
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

    def tool(self) -> Tool:
        """The function as parsers and grammars know it."""
        return Tool(self.name, self.description or "", self.parameters or {}, bool(self.strict))

    def shown(self) -> dict[str, Any]:
        """The definition as chat templates expect it."""
        parameters = self.parameters or {"type": "object", "properties": {}}
        return {
            "type": "function",
            "function": {"name": self.name, "description": self.description or "", "parameters": parameters},
        }


class ToolDefinition(Strict):
    """One of `tools`."""

    type: Literal["function"]
    function: FunctionDefinition


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
        """Whether calls have to be held to something: to a tool's schema, or to a part of the tools that are shown."""
        return any(tool.strict for tool in self.tools.tools) or len(self.tools.tools) < len(self.shown)


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """What `tool_choice` says."""

    may_call: bool = True
    required: bool = False
    names: tuple[str, ...] | None = None  # the tools that may be called; None: all
    one: bool = False  # exactly one call


AUTO = ToolChoice()
_CHOICES = {"auto": AUTO, "none": ToolChoice(may_call=False), "required": ToolChoice(required=True)}


class ToolFields(Strict):
    """`tools` and how they may be called."""

    tools: Annotated[list[ToolDefinition], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: Any = Field(None, json_schema_extra={"description": "auto, none, required, or a named function"})
    parallel_tool_calls: bool | None = None

    @field_validator("tools")
    @classmethod
    def _bounded(cls, tools: list[ToolDefinition] | None) -> list[ToolDefinition] | None:
        check_definitions([definition.function for definition in tools or ()])
        return tools

    @field_validator("tool_choice")
    @classmethod
    def _choice(cls, choice: Any, info: ValidationInfo) -> ToolChoice:
        if "tools" not in info.data:  # they are wrong themselves, which is said of them
            return AUTO
        tools = cast("list[ToolDefinition] | None", info.data["tools"])
        return chosen(choice, [definition.function.name for definition in tools or ()])

    def may_call(self) -> bool:
        """Whether the answer may call tools."""
        return bool(self.tools) and (self.tool_choice or AUTO).may_call

    def call_plan(self) -> CallPlan | None:
        """What the answer may call; None: nothing, and the model sees no tools."""
        functions = [definition.function for definition in self.tools or ()]
        return planned(functions, self.tool_choice or AUTO, self.parallel_tool_calls)


def check_definitions(functions: Sequence[FunctionDefinition]) -> None:
    """PydanticCustomError if a name comes twice or all are too long."""
    names: set[str] = set()
    size = 0
    for made in functions:
        if made.name in names:
            raise PydanticCustomError("tools", "'{name}' is defined twice", {"name": made.name})
        names.add(made.name)
        size += len(made.description or "") + len(json.dumps(made.parameters))
    if size > _MAX_SIZE:
        raise PydanticCustomError("tools", "the definitions are longer than {size} characters", {"size": _MAX_SIZE})


def chosen(choice: Any, names: Sequence[str]) -> ToolChoice:
    """A `tool_choice` over tools of these names, in the shape of chat or of responses. PydanticCustomError if it is
    neither, or names another tool."""
    if choice is None:
        return AUTO
    match choice:
        case "required" if not names:
            raise PydanticCustomError("tool_choice", "needs 'tools'")
        case "auto" | "none" | "required":
            return _CHOICES[choice]
        case {"type": "function", "function": {"name": str(name)}} | {"type": "function", "name": str(name)}:
            return ToolChoice(required=True, names=(_known(name, names),), one=True)
        case {"type": "allowed_tools", "allowed_tools": {"mode": "auto" | "required" as mode, "tools": [*allowed]}}:
            return _allowed(mode, allowed, names)
        case {"type": "allowed_tools", "mode": "auto" | "required" as mode, "tools": [*allowed]}:
            return _allowed(mode, allowed, names)
        case _:
            problem = 'must be "auto", "none", "required", a function that is named, or a list of allowed ones'
            raise PydanticCustomError("tool_choice", "{problem}", {"problem": problem})


def _allowed(mode: str, tools: Sequence[object], names: Sequence[str]) -> ToolChoice:
    found: list[str] = []
    for tool in tools:
        match tool:
            case {"type": "function", "function": {"name": str(name)}} | {"type": "function", "name": str(name)}:
                found.append(_known(name, names))
            case _:
                raise PydanticCustomError("tool_choice", "an allowed tool must be a function that is named")
    if not found:
        raise PydanticCustomError("tool_choice", "no tool is allowed")
    return ToolChoice(required=mode == "required", names=tuple(found))


def _known(name: str, names: Sequence[str]) -> str:
    if name not in names:
        raise PydanticCustomError("tool_choice", "'{name}' is not one of the tools", {"name": name[:128]})
    return name


def planned(functions: Sequence[FunctionDefinition], choice: ToolChoice, parallel: bool | None) -> CallPlan | None:
    """What an answer may call; None: nothing, and the model sees no tools."""
    if not functions or not choice.may_call:
        return None
    tools = ToolSet([function.tool() for function in functions])
    if choice.names is not None:
        tools = tools.only(*choice.names)
    shown = [function.shown() for function in functions]
    return CallPlan(tools, shown, choice.required, parallel is not False and not choice.one)


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
