"""Schemas that never end are found, and no other: against a search for a value, level by level."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from surefoot.engine.grammar.schema_values import check_finite

NODE = {"type": "object", "properties": {"v": {"type": "integer"}, "next": {"$ref": "#"}}}
A = "#/$defs/a"

ENDLESS: list[dict[str, Any]] = [
    {"$ref": "#"},
    {"$defs": {"a": {"$ref": A}}, "$ref": A},
    {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": A}}, "$ref": A},
    {**NODE, "required": ["next"]},
    {"type": "array", "minItems": 1, "items": {"$ref": "#"}},
    {"type": "array", "minItems": 2, "prefixItems": [True, {"$ref": "#"}]},
    {"anyOf": [{"$ref": "#"}, {**NODE, "required": ["next"]}]},
    {"allOf": [{"type": "object"}, {"$ref": "#"}]},
    {"type": "object", "required": ["a"], "additionalProperties": {"$ref": "#"}},
    {"type": ["object", "array"], "required": ["next"], "properties": {"next": {"$ref": "#"}}, "minItems": 1,
     "items": {"$ref": "#"}},
    {"$defs": {"x/y~": {"$ref": "#/$defs/x~1y~0"}}, "$ref": "#/$defs/x~1y~0"},
]  # fmt: skip

FINITE: list[Any] = [
    True,
    {},
    NODE,
    {"type": "array", "items": {"$ref": "#"}},
    {"type": "array", "minItems": 1, "items": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}},
    {"anyOf": [{"$ref": "#"}, {"type": "null"}]},
    {"type": ["object", "null"], "required": ["next"], "properties": {"next": {"$ref": "#"}}},
    {"$defs": {"a": {"$ref": A}}, "type": "integer"},
    {"enum": [{"$ref": "#"}]},
    {"const": {"$ref": "#"}},
    {"$ref": "elsewhere.json"},
    {"$ref": "#/$defs/missing"},
    {"examples": [{"type": "null"}], "$ref": "#/examples/0"},
    {"$ref": "#named"},
    {"properties": {"$ref": {"type": "string"}}, "required": ["$ref"]},
    {"type": "not-a-type", "items": 3, "anyOf": {}, "required": "x", "$defs": []},
]


@pytest.mark.parametrize("schema", ENDLESS, ids=str)
def test_endless(schema: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"'\$ref': '#.*' refers to itself without an end"):
        check_finite(schema)


@pytest.mark.parametrize("schema", FINITE, ids=str)
def test_finite(schema: Any) -> None:
    check_finite(schema)


NAMES = ("a", "b", "c")
refs = st.sampled_from(NAMES).map(lambda name: {"$ref": f"#/$defs/{name}"})
leaves = st.one_of(refs, st.just({"type": "null"}), refs)


def nested(children: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    several = st.lists(children, min_size=1, max_size=2)
    return st.one_of(
        st.builds(lambda parts: {"anyOf": parts}, several),
        st.builds(lambda parts: {"allOf": parts}, several),
        st.builds(lambda item, least: {"type": "array", "items": item, "minItems": least}, children, st.integers(0, 2)),
        st.builds(
            lambda one, two, names: {"type": "object", "properties": {"p": one, "q": two}, "required": names},
            children,
            children,
            st.lists(st.sampled_from("pq"), unique=True),
        ),
    )


schemas = st.recursive(leaves, nested, max_leaves=4)


def has_value(schema: Any, defs: dict[str, Any], depth: int) -> bool:
    """Whether a value exists that takes at most `depth` levels of schemas."""
    if depth == 0:
        return False
    match schema:
        case {"$ref": ref}:
            return has_value(defs[ref[-1]], defs, depth - 1)
        case {"anyOf": parts}:
            return any(has_value(part, defs, depth - 1) for part in parts)
        case {"allOf": parts}:
            return all(has_value(part, defs, depth - 1) for part in parts)
        case {"type": "array", "items": item, "minItems": least}:
            return least == 0 or has_value(item, defs, depth - 1)
        case {"type": "object", "properties": properties, "required": names}:
            return all(has_value(properties[name], defs, depth - 1) for name in names)
        case _:
            return True


@given(st.fixed_dictionaries(dict.fromkeys(NAMES, schemas)), schemas)
@settings(max_examples=300, deadline=None)
def test_random_schemas(defs: dict[str, Any], schema: dict[str, Any]) -> None:
    whole = {"$defs": defs, **schema}
    expected = has_value(schema, defs, 14)  # deeper than any shortest value here: three definitions of few levels
    if expected:
        check_finite(whole)
    else:
        with pytest.raises(ValueError, match="without an end"):
            check_finite(whole)


def test_long_chains_are_looked_at_once() -> None:
    """Once per link and pass, 20,000 links took minutes."""
    links = {f"d{n}": {"$ref": f"#/$defs/d{n + 1}"} for n in range(20_000)}
    began = time.process_time()
    check_finite({"$defs": {**links, "d20000": {"type": "null"}}, "$ref": "#/$defs/d0"})
    assert time.process_time() - began < 5
