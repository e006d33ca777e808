"""Grammars of calls, compiled for real: they allow what a model of the dialect writes, and nothing else."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from tool_texts import PARIS, TOOLS, UNMARKED, WRITERS, parsed

from surefoot.engine.grammar.compiler import Grammars
from surefoot.engine.grammar.constraint import Constraint
from surefoot.kernels.errors import RequestError
from surefoot.server.reasoning.formats import Begin, detect
from surefoot.server.tools.constraint import answer_grammar
from surefoot.server.tools.definitions import Tool, ToolSet
from surefoot.server.tools.grammar import quoted
from surefoot.server.tools.registry import load

MARKERS = sorted({marker for name in WRITERS for marker in load(name).special} | {"<think>", "</think>"})
END = 256 + len(MARKERS)


class Tokenizer:
    """Bytes, and a control token for each marker."""

    vocab_size = END + 1
    special_ids = frozenset(range(256, END + 1))
    end_of_generation_ids = frozenset({END})

    def token_bytes(self, token_id: int, *, special: bool = False) -> bytes:
        if token_id < 256:
            return bytes([token_id])
        return (MARKERS[token_id - 256].encode() if token_id < END else b"<end>") if special else b""

    def encode_inside(self, text: str) -> list[int]:
        return list(text.encode())


def tokens(text: str, control: bool) -> list[int]:
    if not control:
        return list(text.encode())
    ordered = sorted(MARKERS, key=len, reverse=True)
    parts = re.split(f"({'|'.join(map(re.escape, ordered))})", text)
    return [token for part in parts for token in ([256 + MARKERS.index(part)] if part in MARKERS else part.encode())]


@pytest.fixture(scope="module")
def grammars() -> Iterator[Grammars]:
    made = Grammars(Tokenizer(), Tokenizer.vocab_size)
    yield made
    made.close()


class Answers:
    """What one grammar allows."""

    def __init__(self, grammars: Grammars, dialect: str, control: bool, tools: ToolSet = TOOLS, **options: Any) -> None:
        def spell(marker: str) -> str:
            return f"<[{256 + MARKERS.index(marker)}]>" if control and marker in MARKERS else quoted(marker)

        self._control = control
        made = load(dialect)
        calls = made.grammar(tools, options.pop("parallel", True), spell)
        settings = {"required": True, "reasoning": None, "begin": Begin.ANEW, **options}
        text = answer_grammar(made, calls, spell, **settings)
        self._grammar = grammars.compile(Constraint.lark(text, "tools")).result(20)

    def rest_of(self, text: str) -> str | None:
        """None if the text is a whole answer, else what is not allowed of it any more ('' if it is too short)."""
        matcher = self._grammar.start()
        ids = [*tokens(text, self._control), END]
        for at, token in enumerate(ids):
            if not matcher.masks_for()[0, token // 32] >> (token % 32) & 1:
                return bytes(ids[at:-1]).decode(errors="replace") if max(ids[at:-1], default=0) < 256 else text
            matcher.commit([token])
        return None


ALL = [(name, control) for name in sorted(WRITERS) for control in (False, True)]
MORE = (
    "get_weather",
    {"city": "Žďár {\n}", "days": -1, "exact": True, "factor": 0.5, "tags": ["a", "b"], "unit": "f"},
)
SAVE_CALL = ("save", {"path": "a.py", "text": "if x < 3:\n\tprint(1)\n"})
NOW_CALL: tuple[str, dict[str, Any]] = ("now", {})


@pytest.mark.parametrize(("dialect", "control"), ALL)
def test_calls_are_allowed_and_nothing_else(grammars: Grammars, dialect: str, control: bool) -> None:
    answers, writer = Answers(grammars, dialect, control), WRITERS[dialect]
    for calls in ([PARIS], [NOW_CALL], [MORE], [SAVE_CALL], [PARIS, NOW_CALL, SAVE_CALL]):
        text = writer(*calls)
        assert answers.rest_of(text) is None
        assert parsed(dialect, [text]).meaning() == calls
    assert answers.rest_of("Hello") == "Hello"
    assert answers.rest_of("") == ""
    for wrong in (
        ("nope", {}),
        ("now", {"x": 1}),
        ("get_weather", {"days": 1}),
        ("get_weather", {"city": "Paris", "days": "soon"}),
        ("get_weather", {"city": "Paris", "unit": "k"}),
        ("get_weather", {"city": "Paris", "tags": [1]}),
    ):
        assert answers.rest_of(writer(wrong)) is not None, wrong


@pytest.mark.parametrize(("dialect", "control"), ALL)
def test_one_call_alone(grammars: Grammars, dialect: str, control: bool) -> None:
    answers, writer = Answers(grammars, dialect, control, TOOLS.only("now"), parallel=False), WRITERS[dialect]
    assert answers.rest_of(writer(NOW_CALL)) is None
    assert answers.rest_of(writer(NOW_CALL, NOW_CALL)) is not None
    assert answers.rest_of(writer(PARIS)) is not None


@pytest.mark.parametrize(("dialect", "control"), ALL)
def test_calls_inside_text_have_to_fit(grammars: Grammars, dialect: str, control: bool) -> None:
    answers, writer = Answers(grammars, dialect, control, required=False), WRITERS[dialect]
    assert answers.rest_of("") is None
    assert answers.rest_of("Hello <b> {x}\n") is None
    assert answers.rest_of(writer(PARIS)) is None
    assert answers.rest_of(writer(("get_weather", {"days": 1}))) is not None
    if dialect not in UNMARKED:
        assert answers.rest_of("See:\n" + writer(PARIS)) is None
        assert answers.rest_of("See:\n" + writer(("get_weather", {"days": 1}))) is not None


@pytest.mark.parametrize("control", [False, True])
def test_reasoning_comes_first(grammars: Grammars, control: bool) -> None:
    think, call = detect("<think></think>"), WRITERS["hermes"](PARIS)
    anew = Answers(grammars, "hermes", control, reasoning=think)
    assert anew.rest_of(call) is None
    assert anew.rest_of(f"<think>\nI call {{.\n</think>\n\n{call}") is None
    assert anew.rest_of("<think>\nI call.\n</think>\n\nHello") is not None
    inside = Answers(grammars, "hermes", control, reasoning=think, begin=Begin.INSIDE)
    assert inside.rest_of(f"I call.\n</think>\n\n{call}") is None
    assert inside.rest_of("I do not.") == ""
    closed = Answers(grammars, "hermes", control, reasoning=think, begin=Begin.CLOSED)
    assert closed.rest_of(f"\n\n{call}") is None
    assert closed.rest_of(f"<think>{call}") is not None
    free = Answers(grammars, "hermes", control, reasoning=think, begin=Begin.INSIDE, required=False)
    assert free.rest_of("So.\n</think>\n\nHello") is None
    assert free.rest_of(f"So.\n</think>\n\nHello {call}") is None


def test_recursive_and_open_schemas(grammars: Grammars) -> None:
    node: dict[str, Any] = {
        "type": "object",
        "properties": {"name": {"type": "string"}, "next": {"$ref": "#/$defs/Node"}},
        "required": ["name"],
    }
    schema = {
        "type": "object",
        "properties": {"list": {"$ref": "#/$defs/Node"}, "map": {"type": "object"}, "any": {}},
        "$defs": {"Node": node},
    }
    tools = ToolSet([Tool("f", parameters=schema)])
    call = ("f", {"list": {"name": "a", "next": {"name": "b"}}, "map": {"k": [1, None]}, "any": [True]})
    for dialect in ("hermes", "gemma", "glm", "deepseek_v32"):
        assert Answers(grammars, dialect, False, tools).rest_of(WRITERS[dialect](call)) is None, dialect


def test_what_a_format_cannot_hold_to_is_refused(grammars: Grammars) -> None:
    schema = {"type": "object", "properties": {"zip": {"type": "string", "pattern": "^[0-9]{5}$"}}, "required": ["zip"]}
    strict, lax = (ToolSet([Tool("f", parameters=schema, strict=strict)]) for strict in (True, False))
    for dialect in ("qwen_coder", "gemma"):
        with pytest.raises(RequestError, match=r"'pattern' of 'f\.zip'"):
            Answers(grammars, dialect, False, strict)
        assert Answers(grammars, dialect, False, lax).rest_of(WRITERS[dialect](("f", {"zip": "x"}))) is None
    answers = Answers(grammars, "hermes", False, strict)
    assert answers.rest_of(WRITERS["hermes"](("f", {"zip": "12345"}))) is None
    assert answers.rest_of(WRITERS["hermes"](("f", {"zip": "1234"}))) is not None
