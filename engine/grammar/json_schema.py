"""JSON Schemas as llguidance takes them. What it cannot enforce it refuses by name. Here goes what constrains nothing
in the first place, and what a schema could use to loosen its own enforcement."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import cast

from .schema_values import LISTS, MAPS, check_finite

# Whitespace between two tokens of JSON: none, a blank, or a line break and its indentation. Free whitespace would let a
# model that does not know how to go on write blanks until its tokens are spent: small ones do.
WHITESPACE = r" |\n(?: {0,32}|\t{0,8})"

MAX_DEPTH = 60  # schemas within schemas

# Formats that JSON Schema defines. Any other is an annotation that accepts every value.
_DEFINED_FORMATS = frozenset(
    "date-time date time duration email idn-email hostname idn-hostname ipv4 ipv6 uri uri-reference iri iri-reference "
    "uuid uri-template json-pointer relative-json-pointer regex".split()
)
_SINGLE = frozenset(
    "items additionalProperties additionalItems not if then else contains propertyNames unevaluatedItems "
    "unevaluatedProperties".split()
)


def enforceable(schema: object, *, lenient: bool = False, whitespace: str | None = None) -> dict[str, object]:
    """The schema with our options and without formats that nothing defines. Raises ValueError for what is no schema.

    `lenient`: keywords that cannot be enforced are left aside. `whitespace`: a pattern instead of WHITESPACE.
    """
    if isinstance(schema, bool):
        schema = {} if schema else {"not": {}}
    if not isinstance(schema, Mapping):
        raise ValueError("a schema is an object or a boolean")
    copy = _without_annotations(cast(object, schema), MAX_DEPTH)
    assert isinstance(copy, dict)
    check_finite(cast(object, copy))
    options: dict[str, object] = {"whitespace_pattern": WHITESPACE if whitespace is None else whitespace}
    if whitespace == "":
        options = {"whitespace_flexible": False}
    if lenient:
        options["lenient"] = True
    return {**cast(dict[str, object], copy), "x-guidance": options}


def json_rule(schema: object) -> str:
    """A value of a JSON Schema as an expression of a Lark grammar, under the rules of `Constraint.json_schema`."""
    return f"%json {json.dumps(enforceable(schema), ensure_ascii=False)}"


def _without_annotations(schema: object, depth: int) -> object:
    if not isinstance(schema, Mapping):
        return schema
    if depth == 0:
        raise ValueError(f"schemas are nested more than {MAX_DEPTH} levels deep")
    copy: dict[str, object] = {}
    for key, value in cast(Mapping[str, object], schema).items():
        if key == "format" and isinstance(value, str) and value not in _DEFINED_FORMATS:
            continue
        if key in MAPS and isinstance(value, Mapping):
            children = cast(Mapping[str, object], value)
            copy[key] = {name: _without_annotations(child, depth - 1) for name, child in children.items()}
        elif key in LISTS and isinstance(value, list):
            copy[key] = [_without_annotations(child, depth - 1) for child in cast(Sequence[object], value)]
        elif key in _SINGLE:
            copy[key] = _without_annotations(value, depth - 1)
        else:
            copy[key] = value
    return copy
