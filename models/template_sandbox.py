"""The Jinja dialect of chat templates, fenced in.

A template comes with the model file and may be broken or hostile. Python's inside is out of its reach, loops and macros
run against a clock, and the operators that grow values (`+ * ** ~`) and the output have a limit. Methods and filters
that grow a text (`replace`, `center`) have none.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping
from copy import deepcopy
from datetime import datetime
from typing import Any, NoReturn, cast

from jinja2 import TemplateError, TemplateRuntimeError, nodes
from jinja2.ext import Extension, LoopControlExtension
from jinja2.meta import find_undeclared_variables
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment, SandboxedEnvironment
from jinja2.visitor import NodeTransformer

MAX_SECONDS = 5.0  # of this thread's processor time for one rendering
MAX_CHARACTERS = 1 << 25  # of a prompt, and of any text made on the way
MAX_POWER_BITS = 4096
_CHANGES = re.compile(r"\.(append|extend|insert|pop|update|setdefault)\(")
TICK, JOIN = "__tick", "__join"  # names that templates cannot collide with by accident

# What a template can raise by handling data of another shape than it expects.
RENDER_ERRORS = (TemplateError, ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)


class RanTooLong(TemplateRuntimeError):
    """A template that would perhaps never end."""


class CompiledTemplate:
    """One template. Renders in any thread."""

    def __init__(self, source: str) -> None:
        """Raises jinja2.TemplateSyntaxError."""
        environment = _Environment(
            trim_blocks=True, lstrip_blocks=True, extensions=[LoopControlExtension, _GenerationBlock]
        )
        environment.may_change_values = self._changes_values = bool(_CHANGES.search(source))
        filters = cast("dict[str, object]", environment.filters)  # pyright: ignore[reportUnknownMemberType]
        filters["tojson"] = _to_json
        filters["safe"] = _as_it_is  # nothing is escaped here, but text marked safe would escape what is added to it
        names = cast("dict[str, object]", environment.globals)  # pyright: ignore[reportUnknownMemberType]
        names.update(raise_exception=_raise_exception, strftime_now=_strftime_now)
        tree = environment.parse(source)
        self.variables = frozenset(find_undeclared_variables(tree))
        self._template = environment.from_string(cast(nodes.Template, _Fence().visit(tree)))

    def render(self, variables: Mapping[str, object]) -> str:
        """The rendered text. Raises one of RENDER_ERRORS."""
        deadline = time.thread_time() + MAX_SECONDS
        pieces: list[str] = []
        size = 0

        def tick() -> None:
            if time.thread_time() > deadline:
                raise RanTooLong(f"the template ran for more than {MAX_SECONDS:g} seconds")

        own = deepcopy(dict(variables)) if self._changes_values else variables
        for piece in self._template.generate({**own, TICK: tick, JOIN: _join}):
            pieces.append(piece)
            size += len(piece)
            _check_size(size)
        return "".join(pieces)


class _Environment(ImmutableSandboxedEnvironment):
    """Operators that can make a huge value from a small one are looked at first.

    Some templates collect ids in lists of their own. Those that call such methods may, on copies of all values.
    """

    intercepted_binops = frozenset({"*", "**", "+"})
    may_change_values = False

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if self.may_change_values:
            return SandboxedEnvironment.is_safe_attribute(self, obj, attr, value)
        return super().is_safe_attribute(obj, attr, value)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "**" and isinstance(left, int) and isinstance(right, int):
            _check_size(abs(left).bit_length() * max(right, 0), MAX_POWER_BITS)
        elif operator == "*":
            for text, times in ((left, right), (right, left)):
                if isinstance(text, str | list | tuple) and isinstance(times, int):
                    _check_size(len(cast("str", text)) * max(times, 0))
        elif isinstance(left, str | list | tuple) and isinstance(right, str | list | tuple):
            _check_size(len(cast("str", left)) + len(cast("str", right)))
        return super().call_binop(context, operator, left, right)


class _Fence(NodeTransformer):
    """Makes every pass of a loop and every call of a macro check the clock, and every `~` check its length."""

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802 - the visitor's naming
        self.generic_visit(node)
        node.body.insert(0, _tick_statement(node.lineno))
        return node

    def visit_Macro(self, node: nodes.Macro) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.body.insert(0, _tick_statement(node.lineno))
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        join = nodes.Name(JOIN, "load", lineno=node.lineno)
        return nodes.Call(join, list(node.nodes), [], None, None, lineno=node.lineno)


def _tick_statement(line: int) -> nodes.Node:
    call = nodes.Call(nodes.Name(TICK, "load", lineno=line), [], [], None, None, lineno=line)
    return nodes.ExprStmt(call, lineno=line)


class _GenerationBlock(Extension):
    """`{% generation %}` marks the assistant's words for training; for a prompt it is its content."""

    tags = {"generation"}  # noqa: RUF012 - the base class's declaration

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _join(*parts: object) -> str:
    texts = [str(part) for part in parts]
    _check_size(sum(map(len, texts)))
    return "".join(texts)


def _check_size(size: int, limit: int = MAX_CHARACTERS) -> None:
    if size > limit:
        raise TemplateRuntimeError("the template makes a value that is too large")


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as Hugging Face's templates expect it: no HTML escapes, letters as they are. Also of `map`'s results."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
        default=_as_list,
    )


def _as_it_is(value: object) -> object:
    return value


def _as_list(value: object) -> list[object]:
    if isinstance(value, Iterator):
        return list(cast("Iterator[object]", value))
    raise TypeError(f"a {type(value).__name__} cannot be written as JSON")
