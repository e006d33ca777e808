"""Responses on the real engine with a tiny model: the prefix cache along a chain, and the same answers as chat's."""

from __future__ import annotations

from typing import Any

import pytest

BLOCK = 32  # a prefix is found in whole blocks
LONG = "Tell me more of it, as slowly and as completely as you can, and leave out nothing. " * 3


@pytest.fixture
def client(real: Any) -> Any:
    with real.client() as client:
        yield client


def ask(client: Any, **fields: Any) -> Any:
    body: Any = {"model": "model", "input": LONG, "temperature": 0, "max_output_tokens": 48}
    return client.responses.create(**{**body, **fields}, extra_body={"ignore_eos": True})


def test_a_chain_finds_its_history_in_the_prefix_cache(client: Any) -> None:
    answer = ask(client, instructions="Be kind.", input="A first question that nobody has asked before: " + LONG)
    assert answer.usage.input_tokens_details.cached_tokens < 2 * BLOCK
    for _ in range(3):
        following = ask(client, instructions="Be kind.", previous_response_id=answer.id)
        shown = answer.usage.input_tokens
        assert following.usage.input_tokens > shown
        assert following.usage.input_tokens_details.cached_tokens >= shown // BLOCK * BLOCK
        assert following.usage.total_tokens == following.usage.input_tokens + following.usage.output_tokens
        answer = following


def test_a_chain_asks_what_a_whole_conversation_asks(real: Any, client: Any) -> None:
    first = ask(client)
    second = ask(client, input="And then?", previous_response_id=first.id)
    items: Any = [{"role": "user", "content": LONG}, *(item.to_dict() for item in first.output)]
    again = ask(client, input=[*items, {"role": "user", "content": "And then?"}])
    assert (again.output_text, again.usage.input_tokens) == (second.output_text, second.usage.input_tokens)
    messages = [
        {"role": "user", "content": LONG},
        {"role": "assistant", "content": first.output_text},
        {"role": "user", "content": "And then?"},
    ]
    with real.http() as http:
        body = {"messages": messages, "temperature": 0, "max_tokens": 48, "ignore_eos": True}
        chat = http.post("/v1/chat/completions", json=body).json()
    assert chat["choices"][0]["message"]["content"] == second.output_text


def test_streams_equal_whole_answers(client: Any) -> None:
    fields: Any = {
        "model": "model",
        "input": "x",
        "temperature": 1.5,
        "max_output_tokens": 40,
        "include": ["message.output_text.logprobs"],
        "top_logprobs": 2,
        "extra_body": {"seed": 5},
    }
    whole = client.responses.create(**fields)
    with client.responses.stream(**fields) as stream:
        deltas = [event for event in stream if event.type == "response.output_text.delta"]
        final = stream.get_final_response() if whole.status == "completed" else None
    assert "".join(delta.delta for delta in deltas) == whole.output_text
    judged = [entry.to_dict() for delta in deltas for entry in delta.logprobs]
    assert judged == [entry.to_dict() for entry in whole.output[0].content[0].logprobs]
    assert final is None or final.output_text == whole.output_text


def test_the_report_of_speculation(client: Any) -> None:
    wishes = {"ignore_eos": True, "speculation": {"report": True}}
    answer = client.responses.create(model="model", input="ab " * 30, max_output_tokens=20, extra_body=wishes)
    assert "speculation" in answer.model_extra
    assert answer.status == "incomplete"
