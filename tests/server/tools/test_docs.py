"""The example in docs/tools.md runs as it stands there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from tool_texts import NOW_CALL, PARIS, TOOLS, Message

from surefoot.engine.grammar.compiler import Grammars
from surefoot.engine.grammar.constraint import Constraint
from surefoot.server.reasoning.formats import Begin
from surefoot.server.tools.call_parser import CallParser
from surefoot.server.tools.constraint import answer_grammar
from surefoot.server.tools.grammar import quoted

DOCS = Path(__file__).parents[3] / "docs" / "tools.md"
TEXT = (
    '<|tool_call|>[{"name": "get_weather", "arguments": {"city": "Paris", "days": 3}}, '
    '{"name": "now", "arguments": {}}]<|/tool_call|>'
)


class Bytes:
    vocab_size = 257
    special_ids = frozenset({256})
    end_of_generation_ids = frozenset({256})

    def token_bytes(self, token_id: int, *, special: bool = False) -> bytes:
        return bytes([token_id]) if token_id < 256 else b"<end>" if special else b""

    def encode_inside(self, text: str) -> list[int]:
        return list(text.encode())


def example() -> Any:
    (code,) = re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(code, str(DOCS), "exec"), names)
    return names["Phi4"]()


def test_it_reads_calls() -> None:
    for pieces in ([TEXT], list(TEXT)):
        parser, message = CallParser(example(), TOOLS, lambda: "id"), Message()
        for piece in pieces:
            message.add(parser.feed(piece))
        message.add(parser.end())
        assert (message.meaning(), message.content) == ([PARIS, NOW_CALL], "")


def test_it_constrains_answers() -> None:
    made = example()
    calls = made.grammar(TOOLS, True, quoted)
    text = answer_grammar(made, calls, quoted, required=True, reasoning=None, begin=Begin.ANEW)
    grammars = Grammars(Bytes(), Bytes.vocab_size)
    matcher = grammars.compile(Constraint.lark(text, "tools")).result(20).start()
    for token in [*TEXT.encode(), 256]:
        assert matcher.masks_for()[0, token // 32] >> (token % 32) & 1
        matcher.commit([token])
    grammars.close()
