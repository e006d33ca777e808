"""Items to chat messages."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import TypeAdapter

from surefoot.kernels.errors import RequestError
from surefoot.server.responses.history import messages_of
from surefoot.server.schema.response_items import InputItem

ITEMS: Any = TypeAdapter(list[InputItem])


def said(*items: dict[str, Any], instructions: str | None = None) -> list[dict[str, Any]]:
    messages = messages_of(instructions, ITEMS.validate_python(items))
    return [message.model_dump(exclude_none=True) for message in messages]


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def call(name: str = "f", call_id: str = "c") -> dict[str, Any]:
    return {"type": "function_call", "call_id": call_id, "name": name, "arguments": "{}"}


def output(call_id: str = "c") -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id, "output": "4"}


def thought(text: str) -> dict[str, Any]:
    return {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": text}]}


def made(name: str = "f", call_id: str = "c") -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": "{}"}}


def test_a_turn_is_one_message() -> None:
    assert said(user("q"), thought("t"), assistant("a"), call("f", "c"), call("g", "d"), output("c"), output("d")) == [
        user("q"),
        {
            "role": "assistant",
            "reasoning_content": "t",
            "content": "a",
            "tool_calls": [made("f", "c"), made("g", "d")],
        },
        {"role": "tool", "content": "4", "tool_call_id": "c"},
        {"role": "tool", "content": "4", "tool_call_id": "d"},
    ]


def test_a_second_message_of_the_assistant_stays_a_second_one() -> None:
    assert said(assistant("a"), assistant("b")) == [assistant("a"), assistant("b")]


def test_text_around_calls_is_one_content() -> None:
    assert said(assistant("a"), call(), assistant("b")) == [{**assistant("ab"), "tool_calls": [made()]}]


def test_reasoning_begins_a_turn() -> None:
    first, second = said(assistant("a"), thought("t"), assistant("b"))
    assert (first, second) == (assistant("a"), {**assistant("b"), "reasoning_content": "t"})
    assert said(thought("t"), thought("u"), call(), output()) == [
        {"role": "assistant", "reasoning_content": "tu", "tool_calls": [made()]},
        {"role": "tool", "content": "4", "tool_call_id": "c"},
    ]


def test_reasoning_alone_is_a_message_without_content() -> None:
    assert said(thought("t"), user("q")) == [{**assistant(""), "reasoning_content": "t"}, user("q")]


def test_a_summary_stands_in_for_text_that_is_hidden() -> None:
    item = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "s"}], "encrypted_content": "gAAA"}
    assert said(item, assistant("a")) == [{**assistant("a"), "reasoning_content": "s"}]


def test_parts_and_refusals() -> None:
    parts = [{"type": "output_text", "text": "a"}, {"type": "refusal", "refusal": "no"}]
    assert said({"role": "assistant", "content": parts}) == [assistant("a\nno")]
    texts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert said({"role": "user", "content": [{"type": "input_text", "text": "a"}, texts[1]]}) == [
        user("") | {"content": texts}
    ]


def test_instructions_come_first() -> None:
    assert said(user("q"), instructions="i") == [{"role": "system", "content": "i"}, user("q")]


@pytest.mark.parametrize("items", [[], [output()], [call(call_id="d"), output()], [output(), call()]])
def test_what_is_no_conversation(items: list[dict[str, Any]]) -> None:
    with pytest.raises(RequestError) as caught:
        said(*items)
    assert (caught.value.status, caught.value.param) == (400, "input")
