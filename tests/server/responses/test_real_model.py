"""Responses with a real model, Qwen2.5-Coder-0.5B-Instruct: chains, tools and schemas as clients use them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Literal

import openai
import pytest
from pydantic import BaseModel

from surefoot.kernels.registry import has_native_module

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not has_native_module(), reason="the native module is not built")]

SUM: Any = {
    "type": "function",
    "name": "sum",
    "description": "Add two numbers",
    "parameters": {
        "type": "object",
        "properties": {"n1": {"type": "number"}, "n2": {"type": "number"}},
        "required": ["n1", "n2"],
        "additionalProperties": False,
    },
    "strict": True,
}


@pytest.fixture(scope="module")
def client(coder: Any) -> Iterator[openai.OpenAI]:
    with coder.client() as client:
        yield client


def ask(client: openai.OpenAI, **fields: Any) -> Any:
    body: Any = {"model": client.models.list().data[0].id, "temperature": 0, "max_output_tokens": 100, **fields}
    return client.responses.create(**body)


def test_a_chain_remembers_and_finds_even_its_answers_in_the_cache(client: openai.OpenAI) -> None:
    first = ask(client, input="My name is Zebulon and I live in Oslo. Write three sentences about that town.")
    second = ask(client, input="What is my name? Answer with the name only.", previous_response_id=first.id)
    assert "Zebulon" in second.output_text
    known = first.usage.input_tokens + first.usage.output_tokens
    assert second.usage.input_tokens > known
    assert second.usage.input_tokens_details.cached_tokens >= known // 32 * 32 - 32
    third = ask(client, input="And where do I live? Answer with the town only.", previous_response_id=second.id)
    assert "Oslo" in third.output_text
    assert third.usage.input_tokens_details.cached_tokens >= second.usage.input_tokens // 32 * 32


@pytest.mark.parametrize("choice", ["auto", "required"])
def test_a_loop_with_a_tool(client: openai.OpenAI, choice: Any) -> None:
    instructions = "You are a calculator. Use the tool for every sum, then say its result."
    question = "Use the tool to add 1234 and 4321."
    first = ask(client, instructions=instructions, input=question, tools=[SUM], tool_choice=choice)
    call = next(item for item in first.output if item.type == "function_call")
    arguments = json.loads(call.arguments)
    assert {arguments["n1"], arguments["n2"]} == {1234, 4321}
    result: Any = [{"type": "function_call_output", "call_id": call.call_id, "output": "5555"}]
    going_on: Any = {"instructions": instructions, "input": result, "previous_response_id": first.id, "tools": [SUM]}
    second = ask(client, **going_on)
    assert second.usage.input_tokens_details.cached_tokens >= first.usage.input_tokens // 32 * 32
    spoken = ask(client, **going_on, tool_choice="none")  # left to itself, so small a model calls again and again
    assert "5555" in spoken.output_text


def test_a_streamed_call(client: openai.OpenAI) -> None:
    fields: Any = {"input": "Use the tool to add 2 and 2.", "tools": [SUM], "tool_choice": "required"}
    model = client.models.list().data[0].id
    with client.responses.stream(model=model, temperature=0, max_output_tokens=100, **fields) as stream:
        snapshots = [event.snapshot for event in stream if event.type == "response.function_call_arguments.delta"]
        final: Any = stream.get_final_response()
    assert json.loads(snapshots[-1]) == final.output[0].parsed_arguments == {"n1": 2, "n2": 2}


class Film(BaseModel):
    title: str
    year: int
    genre: Literal["drama", "comedy", "horror"]


class Films(BaseModel):
    films: list[Film]


@pytest.mark.parametrize("temperature", [0, 1])
def test_parse(client: openai.OpenAI, temperature: float) -> None:
    answer = client.responses.parse(
        model=client.models.list().data[0].id,
        input="List two famous films as JSON.",
        text_format=Films,
        temperature=temperature,
        max_output_tokens=400,
        extra_body={"seed": 4},
    )
    assert answer.status == "completed"
    assert answer.output_parsed is not None
    assert answer.output_parsed.films
