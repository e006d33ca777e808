"""What the routes share about structured output: the constraint that a request asks for, and its compiled grammar."""

from __future__ import annotations

import asyncio
import re

from ..engine.grammar.compiler import COMPILE_SECONDS
from ..engine.grammar.constraint import Constraint
from ..engine.grammar.matcher import Grammar
from ..kernels.errors import RequestError
from .ports import Engine
from .schema.structured import (
    FlatJsonSchemaFormat,
    JsonObjectFormat,
    JsonSchemaFormat,
    NamedSchema,
    StructuredFields,
    StructuredOutputs,
    TextFormat,
)

_LARK_MARK = "%llguidance"  # begins a Lark grammar, as in llama.cpp
_GBNF_RULE = re.compile(r"^[ \t]*[\w-]+[ \t]*::=", re.MULTILINE)


def constraint_of(fields: StructuredFields) -> Constraint | None:
    """What the text of an answer must look like; None: anything. Not checked yet: see `compiled`."""
    if fields.structured_outputs is not None:
        return _chosen(fields.structured_outputs)
    if fields.json_schema is not None:
        return Constraint.json_schema(fields.json_schema, "json_schema")
    if fields.grammar is not None:
        return _grammar(fields.grammar, "grammar", gbnf=True)
    return format_constraint(fields.response_format, "response_format")


def format_constraint(
    asked: TextFormat | JsonObjectFormat | JsonSchemaFormat | FlatJsonSchemaFormat | None, param: str
) -> Constraint | None:
    """The constraint of a `response_format` or, with `param` "text.format", of a response's format."""
    match asked:
        case None | TextFormat():
            return None
        case JsonObjectFormat():
            if asked.schema_ is None:
                return Constraint.json_object(param)
            return Constraint.json_schema(asked.schema_, param)
        case JsonSchemaFormat():
            return _named(asked.json_schema, param)
        case FlatJsonSchemaFormat():
            return _named(asked, param)


def _named(asked: NamedSchema, param: str) -> Constraint:
    return Constraint.json_schema(asked.schema_, param, lenient=asked.strict is False)


def _chosen(asked: StructuredOutputs) -> Constraint:
    param = "structured_outputs"
    space = "" if asked.disable_any_whitespace else asked.whitespace_pattern
    if asked.json_ is not None:
        return Constraint.json_schema(asked.json_, f"{param}.json", whitespace=space)
    if asked.regex is not None:
        return Constraint.regex(asked.regex, f"{param}.regex")
    if asked.choice is not None:
        return Constraint.choice(asked.choice, f"{param}.choice")
    if asked.grammar is not None:
        return _grammar(asked.grammar, f"{param}.grammar", gbnf=_GBNF_RULE.search(asked.grammar) is not None)
    return Constraint.json_object(f"{param}.json_object", whitespace=space)


def _grammar(text: str, param: str, *, gbnf: bool) -> Constraint:
    """A grammar as Lark if it says so, else in the notation that it seems to have."""
    if text.lstrip().startswith(_LARK_MARK):
        return Constraint.lark(text.lstrip(), param)
    return Constraint.gbnf(text, param) if gbnf else Constraint.lark(text, param)


async def compiled(engine: Engine, constraint: Constraint | None) -> Grammar | None:
    """The grammar that holds an answer to its constraint. RequestError 400 if there is none, or none in time."""
    if constraint is None:
        return None
    # Shielded: the compiler finishes what it began, for the next request, whoever has stopped waiting.
    work = asyncio.shield(asyncio.wrap_future(engine.compile(constraint)))
    try:
        return await asyncio.wait_for(work, COMPILE_SECONDS)
    except TimeoutError:
        raise RequestError(
            f"{constraint.param}: its grammar is not compiled within {COMPILE_SECONDS:g} s",
            param=constraint.param,
            code="grammar_too_slow",
        ) from None
