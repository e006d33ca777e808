"""An agent as people write them: call the model, run the tools it asks for, hand back the results, until it answers."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import openai
import pytest

STOCK = {"apples": 12, "pears": 7}
TOOLS: Any = [
    {
        "type": "function",
        "function": {
            "name": "get_stock",
            "description": "Get how many pieces of a fruit are in stock",
            "parameters": {
                "type": "object",
                "properties": {"fruit": {"type": "string", "enum": sorted(STOCK)}},
                "required": ["fruit"],
            },
        },
    },
]


def get_stock(fruit: str) -> str:
    return json.dumps({"fruit": fruit, "pieces": STOCK[fruit]})


RUN: dict[str, Callable[..., str]] = {"get_stock": get_stock}


def run_agent(client: openai.OpenAI, question: str, *, stream: bool, most_turns: int = 4) -> tuple[str, list[Any]]:
    """The final answer and the whole conversation."""
    messages: list[Any] = [{"role": "user", "content": question}]
    for turn in range(most_turns):
        body: Any = {
            "model": "qwen",
            "messages": messages,
            "tools": TOOLS,
            "tool_choice": "required" if turn == 0 else "none",
            "temperature": 0,
            "max_tokens": 120,
        }
        if stream:
            with client.chat.completions.stream(**body) as events:
                message = events.get_final_completion().choices[0].message
        else:
            message = client.chat.completions.create(**body).choices[0].message
        messages.append(message.model_dump(exclude_none=True))
        if not message.tool_calls:
            return message.content or "", messages
        for call in message.tool_calls:
            result = RUN[call.function.name](**json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    pytest.fail(f"no answer after {most_turns} turns: {messages}")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("fruit", sorted(STOCK))
def test_the_agent_finds_out_and_answers(served: Any, stream: bool, fruit: str) -> None:
    with openai.OpenAI(base_url=served.url, api_key=served.key, max_retries=0, timeout=120) as client:
        answer, messages = run_agent(client, f"How many {fruit} do we have in stock?", stream=stream)
    assert [message["role"] for message in messages][:3] == ["user", "assistant", "tool"]
    assert json.loads(messages[1]["tool_calls"][0]["function"]["arguments"]) == {"fruit": fruit}
    assert str(STOCK[fruit]) in answer
