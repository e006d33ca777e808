"""Random schemas, random answers: each answer is valid in a validator's eyes, or the schema is refused."""

from __future__ import annotations

import json
import random
from functools import cache
from typing import Any

import jsonschema_rs
import pytest
from grammar_cases import END, PieceTokenizer, allowed, compiled
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from surefoot.engine.grammar.compiler import Grammars
from surefoot.engine.grammar.constraint import Constraint
from surefoot.kernels.errors import RequestError

TOKENIZER = PieceTokenizer()
KEYS = ("a", "b", "name", "é", "x y", 'q"')
PATTERNS = ("^[a-c]{1,3}$", "b+", "^x?$", "[0-9]{2}$", r"^\d{4}-\d{2}$")


@cache
def grammars() -> Grammars:
    return Grammars(TOKENIZER, TOKENIZER.vocab_size)


def bounded(kind: str, low: str, high: str, most: int) -> st.SearchStrategy[dict[str, Any]]:
    """Two limits, in order where both are there."""
    limits = st.lists(st.integers(0, most), min_size=2, max_size=2).map(sorted)
    names = st.sets(st.sampled_from([low, high]))
    return st.builds(
        lambda pair, given: {"type": kind, **{n: v for n, v in zip((low, high), pair, strict=True) if n in given}},
        limits,
        names,
    )


SCALARS = st.one_of(
    st.sampled_from([{"type": "null"}, {"type": "boolean"}, {"type": "integer"}, {"type": "number"}]),
    bounded("string", "minLength", "maxLength", 6),
    bounded("integer", "minimum", "maximum", 200),
    bounded("number", "exclusiveMinimum", "maximum", 50),
    st.sampled_from(PATTERNS).map(lambda pattern: {"type": "string", "pattern": pattern}),
    st.sampled_from(["date", "time", "uuid", "ipv4"]).map(lambda name: {"type": "string", "format": name}),
    st.integers(1, 9).map(lambda step: {"type": "integer", "multipleOf": step, "minimum": 0, "maximum": 300}),
    st.lists(st.sampled_from([None, True, 0, -1.5, "a", "é\n", [1], {"k": 2}]), min_size=1, max_size=3).map(
        lambda values: {"enum": values}
    ),
    st.sampled_from([{"const": {"a": [1, "b"]}}, {"const": "yes"}, {"type": ["integer", "null"]}]),
    st.just({"$ref": "#/$defs/shared"}),
)


def nested(children: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    properties = st.dictionaries(st.sampled_from(KEYS), children, min_size=1, max_size=3)
    objects = st.builds(
        lambda made, count, extra: {
            "type": "object",
            "properties": made,
            "required": list(made)[:count],
            **({} if extra is None else {"additionalProperties": extra}),
        },
        properties,
        st.integers(0, 3),
        st.sampled_from([False, False, None, {"type": "integer"}]),
    )
    arrays = st.builds(
        lambda item, size: {**size, "items": item}, children, bounded("array", "minItems", "maxItems", 3)
    )
    tuples = st.lists(children, min_size=1, max_size=2).map(
        lambda parts: {"type": "array", "prefixItems": parts, "items": False, "minItems": len(parts)}
    )
    either = st.lists(children, min_size=1, max_size=3).map(lambda parts: {"anyOf": parts})
    both = st.lists(objects, min_size=1, max_size=2).map(lambda parts: {"allOf": parts})
    return st.one_of(objects, objects, arrays, tuples, either, both)


SCHEMAS = st.builds(
    lambda schema, shared: {**schema, "$defs": {"shared": shared}},
    st.recursive(SCALARS, nested, max_leaves=6),
    st.sampled_from([{"type": "boolean"}, {"type": "object", "properties": {"next": {"$ref": "#/$defs/shared"}}}]),
)


def answer(constraint: Constraint, seed: int, limit: int = 250) -> str | None:
    """A random answer that prefers to come to an end; None: it did not."""
    rng = random.Random(seed)
    matcher = compiled(constraint, grammars()).start()
    ids: list[int] = []
    while not matcher.complete:
        choices = allowed(matcher.masks_for()[0])
        if END in choices and (len(choices) == 1 or rng.random() < 0.7):
            break
        choices = [token for token in choices if token != END]
        closing = [token for token in choices if TOKENIZER.texts[token][:1] in b'"}]']
        token = rng.choice(closing if closing and rng.random() < min(0.9, len(ids) / 60) else choices)
        matcher.commit([token])
        ids.append(token)
        if len(ids) > limit:
            return None
    return TOKENIZER.text(ids)


def finite(digits: str) -> float:
    """JSON knows 1e999, Python reads it as infinity."""
    return max(-1e300, min(1e300, float(digits)))


@given(schema=SCHEMAS)
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_every_answer_is_valid(schema: dict[str, Any]) -> None:
    validator = jsonschema_rs.validator_for(schema)
    try:
        compiled(Constraint.json_schema(schema, "p"), grammars())
    except RequestError as refused:
        assert refused.status == 400
        return
    for seed in range(3):
        text = answer(Constraint.json_schema(schema, "p"), seed)
        if text is not None:
            assert validator.is_valid(json.loads(text, parse_float=finite)), text


@pytest.mark.parametrize("compact", [False, True])
def test_most_random_schemas_are_taken_and_come_to_an_end(compact: bool) -> None:
    """So that the test above tests something."""
    taken = ended = total = 0

    @given(schema=SCHEMAS)
    @settings(max_examples=60, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow])
    def count(schema: dict[str, Any]) -> None:
        nonlocal taken, ended, total
        total += 1
        constraint = Constraint.json_schema(schema, "p", whitespace="" if compact else None)
        try:
            text = answer(constraint, 1)
        except RequestError:
            return
        taken += 1
        ended += text is not None
        if compact and text is not None:
            assert json.dumps(json.loads(text), separators=(",", ":"), ensure_ascii=False).count(" ") == text.count(" ")

    count()
    assert taken > 0.7 * total and ended > 0.6 * taken, (total, taken, ended)
