"""Reasoning in the manner of model families: switches, where answers begin, every split, every cut, and history."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from tool_templates import template
from tool_texts import PARIS, TOOLS, Message, hermes

from surefoot.kernels.errors import RequestError
from surefoot.server.chat_format import ChatFormat
from surefoot.server.message_parser import MessageReader
from surefoot.server.reasoning.formats import Begin
from surefoot.server.reasoning.parser import ReasoningParser
from surefoot.server.tools.call_parser import CallParser
from surefoot.server.tools.registry import load

TURNS = """\
{%- if tools %}# Tools: <tool_call>{"name": <function-name>, "arguments": <args-json-object>}</tool_call>{% endif %}
{%- set ns = namespace(last=-1) %}
{%- for m in messages %}{% if m.role == "user" %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}
{%- for m in messages %}<|im_start|>{{ m.role }}
{%- if m.reasoning_content and loop.index0 > ns.last %}
<think>
{{ m.reasoning_content }}
</think>
{% endif %}
{{ m.content or "" }}
{%- for c in m.tool_calls %}<tool_call>
{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}
</tool_call>{% endfor %}<|im_end|>
{% endfor %}"""

# Thinks unless told not to; earlier turns lose their thoughts, those of a loop of calls keep them (Qwen3).
SWITCHED = TURNS + (
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)
# Always thinks, and its prompt has begun to (DeepSeek R1, Qwen3 Thinking, QwQ).
OPENED = TURNS + "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}{# </think> #}"
# Thinks only when told to, by another name (Granite, DeepSeek V3.1).
ASKED = TURNS + (
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if thinking %}<think>{% else %}</think>{% endif %}{% endif %}"
)
# Is told in the user's message, and shows an empty thought (GLM 4.5).
TOLD = (
    "{%- for m in messages %}<|{{ m.role }}|>{{ m.content }}"
    "{% if m.role == 'user' and enable_thinking is defined and not enable_thinking %}/nothink{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>"
    "{% if enable_thinking is defined and not enable_thinking %}\n<think></think>{% endif %}{% endif %}"
)
# Has grades, in a system line (Seed, gpt-oss and others).
GRADED = "Effort: {{ reasoning_effort | default('medium') }}\n" + OPENED

FAMILIES = {"switched": SWITCHED, "opened": OPENED, "asked": ASKED, "told": TOLD, "graded": GRADED}
ASK: list[dict[str, Any]] = [{"role": "user", "content": "hi"}]


class Letters:
    """As much of a tokenizer as a format asks of it: no marker is a token."""

    vocab_size = 256
    special_ids = frozenset[int]()

    def encode(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        return list(text.encode())


def format_of(name: str) -> ChatFormat:
    return ChatFormat(template(FAMILIES[name]), Letters())  # type: ignore[arg-type]


def rendered(made: ChatFormat, effort: str | None, messages: list[dict[str, Any]] = ASK, **given: Any) -> str:
    variables = made.variables(given or None, effort)
    return made.render(messages, None, add_generation_prompt=True, variables=variables)


@pytest.mark.parametrize(
    ("family", "effort", "begin"),
    [
        ("switched", None, Begin.ANEW),
        ("switched", "high", Begin.ANEW),
        ("switched", "none", Begin.CLOSED),
        ("opened", None, Begin.INSIDE),
        ("asked", None, Begin.CLOSED),
        ("asked", "low", Begin.INSIDE),
        ("asked", "none", Begin.CLOSED),
        ("told", None, Begin.ANEW),
        ("told", "none", Begin.CLOSED),
        ("told", "minimal", Begin.ANEW),
        ("graded", "high", Begin.INSIDE),
    ],
)
def test_an_effort_turns_the_switch_that_the_template_has(family: str, effort: str | None, begin: Begin) -> None:
    made = format_of(family)
    assert made.begin(rendered(made, effort), None) is begin


def test_grades_reach_the_template_and_its_own_variables_win() -> None:
    graded, switched = format_of("graded"), format_of("switched")
    assert rendered(graded, "high").startswith("Effort: high<|im_start|>")
    assert rendered(graded, None).startswith("Effort: medium<|im_start|>")
    assert rendered(switched, "high", enable_thinking=False).endswith("<think>\n\n</think>\n\n")
    assert rendered(format_of("told"), "none").startswith("<|user|>hi/nothink<|assistant|>")


def test_where_nothing_would_change_the_effort_is_refused() -> None:
    for effort in ("none", "high"):
        with pytest.raises(RequestError) as refused:
            rendered(format_of("opened"), effort)
        assert (refused.value.param, refused.value.code) == ("reasoning_effort", "unsupported_parameter")


# --- history ---------------------------------------------------------------------------------------------------------


def test_thoughts_of_earlier_turns_are_the_templates_business() -> None:
    """A client sends what it got; the template shows the thoughts that the model is used to see again."""
    call = {"id": "c1", "type": "function", "function": {"name": "now", "arguments": {}}}
    history = [
        *ASK,
        {"role": "assistant", "content": "Hello.", "reasoning_content": "old thought"},
        {"role": "user", "content": "time?"},
        {"role": "assistant", "content": None, "reasoning_content": "I need the clock.", "tool_calls": [call]},
        {"role": "tool", "content": "12:00", "tool_call_id": "c1"},
    ]
    for family in ("switched", "opened", "asked", "graded"):
        text = rendered(format_of(family), None, history)
        assert "old thought" not in text
        assert "<think>\nI need the clock.\n</think>" in text
        assert '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>' in text and "12:00" in text


def test_a_quoted_marker_of_history_opens_nothing() -> None:
    made = format_of("switched")
    text = rendered(made, None, [{"role": "user", "content": "what does <think>"}])
    assert made.begin(text, None) is Begin.ANEW


# --- every split and every cut ---------------------------------------------------------------------------------------

THOUGHT = 'First, "</think>" is a marker. Then a < b, é and\n\nmore.'
ANSWERS = {
    "text": "It is **four**.\n\nReally.",
    "json": '{"a": "</think>", "b": [1, 2]}',
    "call": hermes(PARIS),
    "text and call": f"Let me look.\n{hermes(PARIS)}",
}


def reader(begin: Begin, *, tools: bool) -> MessageReader:
    made = format_of("switched").reasoning
    assert made is not None
    calls = CallParser(load("hermes"), TOOLS, lambda: "id", parallel=True) if tools else None
    return MessageReader(ReasoningParser(made, begin), calls)


def read(pieces: Iterable[str], begin: Begin, *, tools: bool = True) -> Message:
    found, message = reader(begin, tools=tools), Message()
    for piece in pieces:
        message.add(found.feed(piece))
    return message.add(found.end())


@pytest.mark.parametrize("answer", ANSWERS)
@pytest.mark.parametrize("begin", [Begin.ANEW, Begin.INSIDE])
def test_every_split_gives_the_same_message(answer: str, begin: Begin) -> None:
    opener = "<think>\n" if begin is Begin.ANEW else ""
    text = f"{opener}{THOUGHT}\n</think>\n\n{ANSWERS[answer]}"
    whole = read([text], begin)
    assert whole.reasoning == THOUGHT
    assert bool(whole.calls) == ("call" in answer)
    assert whole.content.strip() == ANSWERS[answer].partition("<tool_call>")[0].strip()
    assert read(text, begin) == whole, "a character at a time"
    for at in range(len(text) + 1):
        assert read([text[:at], text[at:]], begin) == whole, at
    for size in (2, 3, 5, 8, 13):
        assert read([text[at : at + size] for at in range(0, len(text), size)], begin) == whole, size


@pytest.mark.parametrize("begin", [Begin.ANEW, Begin.INSIDE])
def test_a_limit_inside_the_thought_leaves_a_thought_and_no_answer(begin: Begin) -> None:
    opener = "<think>\n" if begin is Begin.ANEW else ""
    text = f"{opener}{THOUGHT}\n</think>"
    for at in range(len(opener), len(text)):
        cut = read([text[:at]], begin, tools=False)
        if '"</think>' in text[:at] and text[:at].endswith("</think>"):
            continue  # nobody can know yet that this one is quoted
        assert cut.content == "" and not cut.calls, text[:at]
        assert (THOUGHT + "\n</think>").startswith(cut.reasoning), text[:at]
        assert len(cut.reasoning.strip()) >= len(text[len(opener) : at].strip()) - len("</think>")


def test_a_limit_inside_the_opener_loses_nothing() -> None:
    for at in range(1, len("<think>")):
        assert read(["<think>"[:at]], Begin.ANEW).content == "<think>"[:at]


def test_an_answer_under_a_schema_follows_the_thought_untouched() -> None:
    """A marker in the JSON is a string of it."""
    for begin, opener in ((Begin.ANEW, "<think>"), (Begin.INSIDE, "")):
        message = read([f"{opener}so</think>", ANSWERS["json"]], begin, tools=False)
        assert (message.reasoning, message.content) == ("so", ANSWERS["json"])
