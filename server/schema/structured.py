"""What an answer must look like, in request bodies: OpenAI's `response_format`, vLLM's `structured_outputs`,
llama.cpp's `json_schema` and `grammar`.

Only shapes are checked here; what a schema or a grammar says is checked by its compiler.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal, cast

from pydantic import ConfigDict, Field, ValidationInfo, field_validator, model_validator
from pydantic_core import PydanticCustomError

from .sampling import On, Strict

Schema = dict[str, Any]

_LANGUAGES = ("json", "regex", "choice", "grammar", "json_object")
_MAX_CHOICES = 10_000

WHOLE_ANSWER = ("structured_outputs", "json_schema", "grammar")  # a response_format is about the text beside calls


class Exact(Strict):
    """An object in which an unknown key would be a promise that is not kept."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)


class TextFormat(Exact):
    """Any text."""

    type: Literal["text"]


class JsonObjectFormat(Exact):
    """Any JSON object; with a `schema`, as llama.cpp has it, one of that schema."""

    type: Literal["json_object"]
    schema_: Schema | None = Field(None, alias="schema")


class NamedSchema(Exact):
    """A JSON Schema. It holds with and without `strict`; only where that is false are keywords that no grammar can
    express left aside, instead of refused."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
    description: str | None = None
    schema_: Schema = Field(alias="schema")
    strict: bool | None = None


class JsonSchemaFormat(Exact):
    """A JSON value of a schema, as chat completions say it."""

    type: Literal["json_schema"]
    json_schema: NamedSchema


class FlatJsonSchemaFormat(NamedSchema):
    """A JSON value of a schema, as responses say it."""

    type: Literal["json_schema"]


ResponseFormat = Annotated[TextFormat | JsonObjectFormat | JsonSchemaFormat, Field(discriminator="type")]
ResponsesTextFormat = Annotated[TextFormat | JsonObjectFormat | FlatJsonSchemaFormat, Field(discriminator="type")]


class StructuredOutputs(Exact):
    """vLLM's `structured_outputs`: exactly one of the first five."""

    json_: Schema | str | None = Field(None, alias="json")
    regex: str | None = Field(None, min_length=1)
    choice: Annotated[list[str], Field(min_length=1, max_length=_MAX_CHOICES)] | None = None
    grammar: str | None = Field(None, min_length=1)
    json_object: On | None = None
    disable_any_whitespace: bool | None = None
    whitespace_pattern: str | None = None  # between two tokens of JSON

    @field_validator("json_")
    @classmethod
    def _from_text(cls, given: Schema | str | None) -> Schema | None:
        if not isinstance(given, str):
            return given
        try:
            schema: object = json.loads(given)
        except (ValueError, RecursionError):
            raise PydanticCustomError("schema", "is not valid JSON") from None
        if not isinstance(schema, dict):
            raise PydanticCustomError("schema", "a schema must be an object")
        return cast(Schema, schema)

    @field_validator("json_object", mode="before")
    @classmethod
    def _true(cls, given: object) -> object:
        if given is False:
            raise PydanticCustomError("json_object", "must be true or left out")
        return given

    @model_validator(mode="after")
    def _one(self) -> StructuredOutputs:
        given = [name for name in _LANGUAGES if getattr(self, "json_" if name == "json" else name) is not None]
        if len(given) != 1:
            problem = "must have exactly one of {all}, not {given}"
            words = {"all": ", ".join(_LANGUAGES), "given": " and ".join(given) or "none"}
            raise PydanticCustomError("structured_outputs", problem, words)
        is_json = given[0] in ("json", "json_object")
        if not is_json and (self.disable_any_whitespace or self.whitespace_pattern is not None):
            raise PydanticCustomError("structured_outputs", "options of white space need json or json_object")
        if self.disable_any_whitespace and self.whitespace_pattern is not None:
            raise PydanticCustomError("structured_outputs", "has two options of white space")
        return self


class StructuredFields(Strict):
    """The fields that say what an answer must look like. At most one of them does: see `structured.constraint_of`."""

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    json_schema: Schema | None = Field(None, description="A JSON Schema that the answer is a value of")
    grammar: str | None = Field(None, description="GBNF, or Lark behind a first line %llguidance {}")

    @field_validator("structured_outputs", "json_schema", "grammar")
    @classmethod
    def _alone(cls, given: Any, info: ValidationInfo) -> Any:
        if given is None or given == "":
            return None
        asked = [name for name, value in info.data.items() if name in _FIELDS and _constrains(value)]
        if asked:
            raise PydanticCustomError("structured", "cannot be combined with '{other}'", {"other": asked[0]})
        return given


_FIELDS = frozenset(StructuredFields.model_fields)


def _constrains(value: object) -> bool:
    return value is not None and not isinstance(value, TextFormat)
