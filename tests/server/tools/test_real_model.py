"""Tools with a real model: Qwen2.5-Coder-0.5B-Instruct, which forgets the markers of its own format."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from surefoot.kernels.registry import has_native_module

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not has_native_module(), reason="the native module is not built")]

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the current weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]}},
            "required": ["city"],
        },
    },
}
SUM = {
    "type": "function",
    "function": {
        "name": "sum",
        "description": "Add two numbers",
        "parameters": {
            "type": "object",
            "properties": {"n1": {"type": "number"}, "n2": {"type": "number"}},
            "required": ["n1", "n2"],
        },
    },
}
TOOLS: Any = [WEATHER, SUM]


@pytest.fixture(scope="module")
def client(coder: Any) -> Iterator[openai.OpenAI]:
    with coder.client() as client:
        yield client


def ask(client: openai.OpenAI, question: str, **fields: Any) -> Any:
    body: Any = {"messages": [{"role": "user", "content": question}], "temperature": 0, "max_tokens": 100, **fields}
    model = client.models.list().data[0].id
    return client.chat.completions.create(model=model, **body)


def calls_of(answer: Any) -> list[tuple[str, Any]]:
    assert answer.choices[0].finish_reason == "tool_calls"
    assert answer.choices[0].message.content is None
    calls = answer.choices[0].message.tool_calls
    return [(call.function.name, json.loads(call.function.arguments)) for call in calls]


def test_a_free_call(client: openai.OpenAI) -> None:
    assert calls_of(ask(client, "Use the tool to add 2 and 2.", tools=TOOLS)) == [("sum", {"n1": 2, "n2": 2})]
    ((name, arguments),) = calls_of(ask(client, "What is the weather in Paris?", tools=TOOLS))
    assert (name, arguments["city"]) == ("get_weather", "Paris")


@pytest.mark.parametrize("temperature", [0, 1.5])
def test_required_and_named_calls(client: openai.OpenAI, temperature: float) -> None:
    fields: Any = {"tools": TOOLS, "temperature": temperature, "seed": 3, "max_tokens": 300}
    named = {"type": "function", "function": {"name": "sum"}}
    ((name, arguments),) = calls_of(ask(client, "Hello!", tool_choice=named, **fields))
    assert name == "sum"
    assert set(arguments) == {"n1", "n2"}
    assert all(isinstance(number, int | float) for number in arguments.values())
    one = calls_of(ask(client, "Hello!", tool_choice="required", parallel_tool_calls=False, **fields))
    assert len(one) == 1
    assert one[0][0] in ("sum", "get_weather")


def test_a_stream_adds_up_to_the_whole_answer(client: openai.OpenAI) -> None:
    fields: Any = {"tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False}
    whole = ask(client, "What is the weather in Oslo?", **fields)
    texts = ["", ""]
    for chunk in ask(client, "What is the weather in Oslo?", stream=True, **fields):
        for part in chunk.choices[0].delta.tool_calls or ():
            texts[0] += part.function.name or ""
            texts[1] += part.function.arguments
    assert [(texts[0], json.loads(texts[1]))] == calls_of(whole)


def test_a_result_is_understood(client: openai.OpenAI) -> None:
    question = {"role": "user", "content": "What is the weather in Paris?"}
    called = ask(client, "", messages=[question], tools=TOOLS).choices[0].message
    results = [{"role": "tool", "tool_call_id": call.id, "content": "18 degrees, rain"} for call in called.tool_calls]
    messages = [question, called.model_dump(exclude_none=True), *results]
    answer = ask(client, "", messages=messages, tools=TOOLS, tool_choice="none").choices[0]
    assert answer.message.tool_calls is None
    assert "18" in answer.message.content
