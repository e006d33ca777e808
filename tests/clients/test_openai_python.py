"""The official Python client, synchronous and not: everything it offers that this server serves."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any, Literal

import openai
import pytest
from pydantic import BaseModel


class Weather(BaseModel):
    """Get the weather of a city"""

    city: str
    unit: Literal["celsius", "fahrenheit"]


@pytest.fixture(scope="module")
def client(served: Any) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=served.url, api_key=served.key, max_retries=0, timeout=120) as client:
        yield client


def say(text: str, **fields: Any) -> dict[str, Any]:
    return {"model": "qwen", "messages": [{"role": "user", "content": text}], "temperature": 0, **fields}


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["qwen"]
    assert client.models.retrieve("qwen").owned_by


def test_chat_whole_and_streamed(client: openai.OpenAI) -> None:
    body = say("Name the capital of France in one word.", max_tokens=8)
    whole = client.chat.completions.create(**body)
    assert "Paris" in (whole.choices[0].message.content or "")
    stream = client.chat.completions.create(**body, stream=True, stream_options={"include_usage": True})
    chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].usage == whole.usage or chunks[-1].usage.prompt_tokens == whole.usage.prompt_tokens  # type: ignore[union-attr]
    assert chunks[-1].choices == []


def test_the_streaming_helper_assembles_what_create_returns(client: openai.OpenAI) -> None:
    body = say("Count from 1 to 5.", max_tokens=24, logprobs=True, top_logprobs=2)
    whole = client.chat.completions.create(**body)
    with client.chat.completions.stream(**body) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert {"chunk", "content.delta", "content.done", "logprobs.content.delta"} <= kinds
    assert final.choices[0].message.content == whole.choices[0].message.content
    assert final.choices[0].logprobs == whole.choices[0].logprobs
    assert final.choices[0].finish_reason == whole.choices[0].finish_reason


def test_tools_parsed_by_the_client(client: openai.OpenAI) -> None:
    tool = openai.pydantic_function_tool(Weather)
    body = say("What is the weather in Paris, in celsius?", tools=[tool], tool_choice="required", max_tokens=80)
    call = client.chat.completions.parse(**body).choices[0].message.tool_calls[0]  # type: ignore[index]
    assert isinstance(call.function.parsed_arguments, Weather)
    assert call.function.parsed_arguments.city == "Paris"
    with client.chat.completions.stream(**body) as stream:
        events = [event for event in stream if event.type == "tool_calls.function.arguments.done"]
        final = stream.get_final_completion().choices[0]
    assert [json.loads(event.arguments) for event in events] == [json.loads(call.function.arguments)]
    assert final.finish_reason == "tool_calls"


def test_a_schema_parsed_by_the_client(client: openai.OpenAI) -> None:
    body = say("The weather in Oslo in celsius, as JSON.", response_format=Weather, max_tokens=80)
    parsed = client.chat.completions.parse(**body).choices[0].message.parsed
    assert isinstance(parsed, Weather)
    with client.chat.completions.stream(**body) as stream:
        assert stream.get_final_completion().choices[0].message.parsed == parsed


def test_completions(client: openai.OpenAI) -> None:
    body: dict[str, Any] = {"model": "qwen", "prompt": "1, 2, 3, 4,", "temperature": 0, "max_tokens": 6}
    whole = client.completions.create(**body, logprobs=1, n=2)
    assert whole.choices[0].text.startswith(" 5")
    assert "".join(chunk.choices[0].text for chunk in client.completions.create(**body, stream=True)) == (
        whole.choices[0].text
    )
    middle = client.completions.create(
        model="qwen", prompt="def add(a, b):\n    return ", suffix="\n", temperature=0, max_tokens=4
    )
    assert middle.choices[0].text.startswith("a + b")


def test_responses(client: openai.OpenAI) -> None:
    body: dict[str, Any] = {"model": "qwen", "input": "Name the capital of Italy.", "temperature": 0}
    whole = client.responses.create(**body, max_output_tokens=20)
    assert "Rome" in whole.output_text
    with client.responses.stream(**body, max_output_tokens=20) as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        assert stream.get_final_response().output_text == text == whole.output_text
    parsed = client.responses.parse(
        model="qwen", input="The weather in Rome in celsius, as JSON.", text_format=Weather, temperature=0
    )
    assert isinstance(parsed.output_parsed, Weather)


def test_embeddings(client: openai.OpenAI) -> None:
    pair = client.embeddings.create(model="qwen", input=["a cat", "a dog"])
    alone = client.embeddings.create(model="qwen", input="a dog", encoding_format="float")
    assert pair.data[1].embedding == alone.data[0].embedding
    assert pair.usage.total_tokens > 0


def test_errors_are_the_clients_own(client: openai.OpenAI, served: Any) -> None:
    with pytest.raises(openai.BadRequestError) as bad:
        client.chat.completions.create(**say("x", temperature=-1))
    assert bad.value.param == "temperature"
    with pytest.raises(openai.NotFoundError) as unknown:
        client.chat.completions.create(**{**say("x"), "model": "gpt-4o"})
    assert unknown.value.code == "model_not_found"
    stranger = openai.OpenAI(base_url=served.url, api_key="wrong", max_retries=0)
    with stranger, pytest.raises(openai.AuthenticationError, match="Incorrect API key"):
        stranger.models.list()


def test_sixteen_at_once_without_threads(served: Any) -> None:
    async def all_of_them() -> list[str]:
        async with openai.AsyncOpenAI(base_url=served.url, api_key=served.key, max_retries=0) as client:

            async def one(number: int) -> str:
                stream = await client.chat.completions.create(**say(f"Say {number}.", max_tokens=6), stream=True)
                return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

            return await asyncio.gather(*map(one, range(16)))

    texts = asyncio.run(all_of_them())
    assert sum(str(number) in text for number, text in enumerate(texts)) >= 12
