"""Conversations that are too long: what goes, what stays, and that no more goes than has to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

from surefoot.server.responses.truncation import dropping_order, shortened
from surefoot.server.schema.chat import Message
from surefoot.server.schema.tools import HistoryCall, HistoryFunction


def conversation(script: str) -> list[Message]:
    """s: system, d: developer, u: user, a: assistant, c and C: a call of one or of two, o: the next output."""
    roles = {"s": "system", "d": "developer", "u": "user", "a": "assistant"}
    messages: list[Message] = []
    open_calls: list[str] = []
    for at, letter in enumerate(script):
        if letter in "cC":
            ids = [f"{at}.{number}" for number in range(2 if letter == "C" else 1)]
            open_calls += ids
            calls = [HistoryCall(id=i, function=HistoryFunction(name="f", arguments="{}")) for i in ids]
            messages.append(Message(role="assistant", content=None, tool_calls=calls))
        elif letter == "o":
            messages.append(Message(role="tool", content="x", tool_call_id=open_calls.pop(0)))
        else:
            messages.append(Message(role=roles[letter], content="x"))  # type: ignore[arg-type]
    return messages


@pytest.mark.parametrize(
    ("script", "order"),
    [
        ("u", []),
        ("su", []),
        ("s", []),
        ("uau", ["ua"]),
        ("suauau", ["ua", "ua"]),
        ("suaduau", ["ua", "ua"]),  # a developer's word in between stays
        ("ucoaucoau", ["ucoa", "ucoa"]),
        ("uau" + "co" * 3, ["ua", "co", "co"]),  # the question stays, and the newest step
        ("uCoouCoo", ["uCoo"]),
        ("ucuoau", ["ucuoa"]),  # somebody spoke while the call ran
        ("aau", ["aa"]),
        ("acoa", ["a", "co"]),  # nobody asked
        ("uuu", ["u", "u"]),
        ("ua", []),
    ],
)
def test_what_goes_first(script: str, order: list[str]) -> None:
    messages = conversation(script)
    assert ["".join(script[i] for i in indices) for indices in dropping_order(messages)] == order


PIECES = st.lists(st.sampled_from(["s", "d", "u", "a", "co", "Coo", "ca", "cuo", "coa"]), min_size=1, max_size=14)


@given(PIECES, st.integers(0, 30))
def test_no_more_goes_than_has_to(pieces: list[str], room: int) -> None:
    messages = conversation("".join(pieces).replace("ca", "co"))
    left = shortened(messages, lambda some: len(some) <= room)
    gone = [message for message in messages if not any(message is kept for kept in left)]
    assert [m for m in messages if any(m is kept for kept in left)] == list(left), "the order stays"
    assert not any(message.role in ("system", "developer") for message in gone)
    called = {call.id for message in left for call in message.tool_calls or ()}
    answered = {message.tool_call_id for message in left if message.role == "tool"}
    every = {message.tool_call_id for message in messages if message.role == "tool"}
    assert answered == called & every, "no half of a pair"
    units = dropping_order(messages)
    if len(left) > room:
        assert len(left) == len(messages) - sum(map(len, units)), "all that may go went"
    elif gone:
        fewer = next(count for count in range(len(units) + 1) if len(gone) == sum(map(len, units[:count])))
        assert len(messages) - sum(map(len, units[: fewer - 1])) > room, "less would not have been enough"
    assert messages[-1].role in ("system", "developer") or left[-1] is messages[-1], "there is something to answer"


def test_few_looks_are_enough() -> None:
    messages = conversation("ua" * 1000 + "u")
    looks: list[int] = []

    def fits(some: Sequence[Message]) -> bool:
        looks.append(len(some))
        return len(some) <= 777

    assert len(shortened(messages, fits)) == 777
    assert len(looks) <= 12


# --- over HTTP -------------------------------------------------------------------------------------------------------


def said(live: Any) -> list[str]:
    return bytes(live.engine.submissions[-1].prompt_ids).decode().splitlines()


def turns(count: int, length: int = 100) -> list[dict[str, Any]]:
    return [
        {"role": role, "content": f"{number} " + "x" * length}
        for number in range(count)
        for role in ("user", "assistant")
    ]


QUESTION = {"role": "user", "content": "and now?"}


def test_the_oldest_exchanges_go(start: Any) -> None:
    live = start(max_context=800)
    with live.client() as client:
        answer = client.responses.create(
            input=[{"role": "system", "content": "kept"}, *turns(10), QUESTION],
            instructions="stay",
            model="tiny",
            truncation="auto",
        )
    assert answer.truncation == "auto" and answer.output_text == "Hello, world!"
    lines = said(live)
    assert lines[:2] == ["system:stay", "system:kept"]
    assert lines[-2:] == ["user:and now?", "assistant:"]
    assert [line.split()[0] for line in lines[2:-2]] == ["user:8", "assistant:8", "user:9", "assistant:9"]
    assert answer.usage is not None and 800 // 2 < answer.usage.input_tokens <= 800 - 100


def test_what_fits_is_left_alone(start: Any) -> None:
    live = start(max_context=2000)
    items = [*turns(4), QUESTION]
    with live.client() as client:
        client.responses.create(input=items, model="tiny", truncation="auto")  # type: ignore[arg-type]
        client.responses.create(input=items, model="tiny")  # type: ignore[arg-type]
    automatic, plain = live.engine.submissions
    assert automatic.prompt_ids == plain.prompt_ids


@pytest.mark.parametrize("asked", [10, 300, 600])
def test_the_answer_gets_the_room_that_it_asks_for(start: Any, asked: int) -> None:
    live = start(max_context=800)
    with live.client() as client:
        client.responses.create(
            input=[*turns(20), QUESTION],  # type: ignore[arg-type]
            model="tiny",
            truncation="auto",
            max_output_tokens=asked,
        )
    (submission,) = live.engine.submissions
    assert submission.params.max_tokens == asked
    assert 800 - 250 < len(submission.prompt_ids) + asked <= 800


def test_without_it_and_beyond_it_the_error_is_as_ever(start: Any) -> None:
    with start(max_context=800).client() as client:
        for extra, param in (
            ({}, "input"),
            ({"truncation": "disabled"}, "input"),
            ({"truncation": "auto", "max_output_tokens": 799}, "max_output_tokens"),
            ({"truncation": "auto", "instructions": "y" * 900}, "input"),
        ):
            with pytest.raises(openai.BadRequestError) as caught:
                client.responses.create(input=[*turns(20), QUESTION], model="tiny", **extra)  # type: ignore[arg-type]
            assert (caught.value.code, caught.value.param) == ("context_length_exceeded", param), extra


def test_a_chain_that_outgrows_the_context_goes_on(start: Any) -> None:
    """Each turn goes on from the last one; the store keeps what the model is no longer shown."""
    live = start(max_context=600)
    previous = None
    with live.client() as client:
        for number in range(12):
            answer = client.responses.create(
                model="tiny", input=f"{number} " + "x" * 80, previous_response_id=previous, truncation="auto"
            )
            previous = answer.id
            lines = said(live)
            assert lines[-2].startswith(f"user:{number} ")
            assert lines[0].startswith("user:")
        items = list(client.responses.input_items.list(previous, limit=100))
        count = client.post(
            "/responses/input_tokens",
            body={"input": "x" * 80, "previous_response_id": previous, "truncation": "auto"},
            cast_to=dict[str, Any],  # type: ignore[arg-type]
        )
    assert len(items) == 23
    assert count["input_tokens"] <= 600 - 75


def test_calls_and_their_outputs_stay_together(start: Any) -> None:
    tool = {"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}}
    steps = [
        item
        for number in range(12)
        for item in (
            {"type": "function_call", "call_id": f"c{number}", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": f"c{number}", "output": f"{number} " + "y" * 80},
        )
    ]
    live = start(max_context=1600)
    with live.client() as client:
        client.responses.create(
            model="tiny",
            input=[QUESTION, *steps],  # type: ignore[arg-type]
            tools=[tool],  # type: ignore[list-item]
            truncation="auto",
        )
    text = "\n".join(said(live))
    assert text.count('"name": "f"') - 1 == text.count("y" * 80) < 12  # the definition is one more
    assert "and now?" in text and "11 yyy" in text
