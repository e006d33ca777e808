"""From a constraint to what llguidance compiles: a list of grammars as JSON, checked as far as text can be."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import cast

from llguidance import LLMatcher

from .constraint import Constraint, ConstraintKind
from .gbnf_lark import lark_of_gbnf
from .json_schema import enforceable

MAX_TEXT = 128 * 1024  # characters of a constraint
_MAX_CHOICES = 10_000
_ANSWER = "answer"

# Attributes of rules that change how text is drawn (which is the request's business), or that cannot be taken back when
# a draft is rejected.
_ATTRIBUTES = re.compile(r"^\s*[A-Za-z_][\w-]*\s*\[([^\]\n]*)\]\s*:", re.MULTILINE)
_REFUSED_ATTRIBUTE = re.compile(r"\b(temperature|max_tokens|stop)\s*=")


def grammar_source(constraint: Constraint) -> str:
    """The source of a constraint's grammar. Raises ValueError, whose text says what is wrong."""
    size = len(constraint.text) + len(constraint.frame)
    if size > MAX_TEXT:
        raise ValueError(f"its {size} characters are more than the {MAX_TEXT} that are compiled")
    answer = _WRITERS[constraint.kind](constraint)
    if not constraint.frame:
        return json.dumps({"grammars": [answer]})
    return json.dumps({"grammars": [{"name": "whole", "lark_grammar": _checked(constraint.frame)}, answer]})


def _json_schema(constraint: Constraint) -> dict[str, object]:
    try:
        schema = json.loads(constraint.text)
    except RecursionError:
        raise ValueError("the schema is nested too deeply") from None
    return _json(schema, constraint)


def _json_object(constraint: Constraint) -> dict[str, object]:
    return _json({"type": "object"}, constraint)


def _json(schema: object, constraint: Constraint) -> dict[str, object]:
    made = enforceable(schema, lenient=constraint.lenient, whitespace=constraint.whitespace)
    return {"name": _ANSWER, "json_schema": made}


def _regex(constraint: Constraint) -> dict[str, object]:
    (grammar,) = json.loads(LLMatcher.grammar_from_regex(constraint.text))["grammars"]
    return {**grammar, "name": _ANSWER}


def _choice(constraint: Constraint) -> dict[str, object]:
    choices = cast(list[object], json.loads(constraint.text))
    if not choices or len(choices) > _MAX_CHOICES:
        raise ValueError(f"there must be 1 to {_MAX_CHOICES} choices, not {len(choices)}")
    terminals = " | ".join(json.dumps(choice, ensure_ascii=False) for choice in choices)
    return _lark_grammar(f"start: CHOICE\nCHOICE: {terminals}\n")


def _lark(constraint: Constraint) -> dict[str, object]:
    return _lark_grammar(_checked(constraint.text))


def _gbnf(constraint: Constraint) -> dict[str, object]:
    return _lark_grammar(lark_of_gbnf(constraint.text))


def _checked(text: str) -> str:
    for attributes in _ATTRIBUTES.findall(text):
        if refused := _REFUSED_ATTRIBUTE.search(attributes):
            raise ValueError(f"the rule attribute '{refused[1]}' is not supported")
    return text


def _lark_grammar(text: str) -> dict[str, object]:
    return {"name": _ANSWER, "lark_grammar": text}


_WRITERS: dict[ConstraintKind, Callable[[Constraint], dict[str, object]]] = {
    ConstraintKind.JSON_SCHEMA: _json_schema,
    ConstraintKind.JSON_OBJECT: _json_object,
    ConstraintKind.REGEX: _regex,
    ConstraintKind.CHOICE: _choice,
    ConstraintKind.LARK: _lark,
    ConstraintKind.GBNF: _gbnf,
}
