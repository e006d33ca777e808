"""What an answer must look like, as a value: made by whoever reads requests, compiled by the engine. Knows no library.

A constraint holds for the whole answer, from its first token to its last. What the model may write around the
constrained part, or instead of it, belongs to the constraint: in `frame` (reasoning before it, tool calls instead of
it).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum


class ConstraintKind(Enum):
    """How `Constraint.text` is to be read."""

    JSON_SCHEMA = "json_schema"  # a JSON Schema as JSON text: any value that it accepts
    JSON_OBJECT = "json_object"  # any JSON object; the text is empty
    REGEX = "regex"  # a regular expression that the whole answer matches
    CHOICE = "choice"  # a JSON array of strings, of which the answer is one
    GBNF = "gbnf"  # a grammar in llama.cpp's notation; rule `root` is the answer
    LARK = "lark"  # a grammar in llguidance's dialect of Lark; rule `start` is the answer


@dataclass(frozen=True, slots=True)
class Constraint:
    """An answer's grammar, not compiled and not checked. Equal constraints share one compiled grammar."""

    kind: ConstraintKind
    text: str
    param: str = "response_format"  # the request's field that asked for it: errors name it
    frame: str = ""  # a Lark grammar of the whole answer, in which `@answer` stands for the constrained part
    lenient: bool = False  # keywords of a JSON Schema that no grammar can express are left aside, not refused
    whitespace: str | None = None  # a pattern: what may stand between two tokens of JSON, if not what usually may

    @classmethod
    def json_schema(
        cls, schema: object, param: str, *, lenient: bool = False, whitespace: str | None = None
    ) -> Constraint:
        """The answer is one JSON value of this schema (a mapping, or true for any). Order of keys is kept."""
        return cls(ConstraintKind.JSON_SCHEMA, _json_text(schema), param, lenient=lenient, whitespace=whitespace)

    @classmethod
    def json_object(cls, param: str, *, whitespace: str | None = None) -> Constraint:
        """The answer is any JSON object."""
        return cls(ConstraintKind.JSON_OBJECT, "", param, whitespace=whitespace)

    @classmethod
    def regex(cls, pattern: str, param: str) -> Constraint:
        """The whole answer matches a pattern in the syntax of Rust's `regex` crate (no back references)."""
        return cls(ConstraintKind.REGEX, pattern, param)

    @classmethod
    def choice(cls, texts: Sequence[str], param: str) -> Constraint:
        """The answer is one of these texts."""
        return cls(ConstraintKind.CHOICE, _json_text(list(texts)), param)

    @classmethod
    def lark(cls, grammar: str, param: str) -> Constraint:
        """A grammar whose rule `start` is the answer.

        `"text"` and `/regex/` match text, however it is cut into tokens (user-defined tokens such as `<tool_call>` are
        text as well); `<|name|>` is the control token of that name. A value of a JSON Schema: `json_schema.json_rule`.
        """
        return cls(ConstraintKind.LARK, grammar, param)

    @classmethod
    def gbnf(cls, grammar: str, param: str) -> Constraint:
        """A grammar in llama.cpp's notation, whose rule `root` is the answer."""
        return cls(ConstraintKind.GBNF, grammar, param)


def _json_text(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
