"""LangChain's ChatOpenAI and OpenAIEmbeddings."""

from __future__ import annotations

import asyncio
import json
from typing import Any, Literal

import pytest
from pydantic import BaseModel, Field, SecretStr

pytest.importorskip("langchain_openai")

from langchain_core.messages import AIMessageChunk, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAIEmbeddings


@pytest.fixture(scope="module")
def chat(served: Any) -> ChatOpenAI:
    return ChatOpenAI(
        base_url=served.url,
        api_key=SecretStr(served.key),
        model=served.model,
        temperature=0,
        max_retries=0,
        max_completion_tokens=120,
        stream_usage=True,
    )


def get_stock(fruit: Literal["apples", "pears"]) -> str:
    """Get how many pieces of a fruit are in stock"""
    return json.dumps({"fruit": fruit, "pieces": {"apples": 12, "pears": 7}[fruit]})


STOCK: Any = tool(get_stock)


class City(BaseModel):
    """A city."""

    name: str = Field(description="its name")
    country: str = Field(description="the country it is in")


def test_invoke_and_stream(chat: ChatOpenAI) -> None:
    messages = [SystemMessage("Answer with one word."), HumanMessage("What is the capital of France?")]
    whole = chat.invoke(messages)
    assert "Paris" in str(whole.content)
    assert whole.usage_metadata is not None and whole.usage_metadata["output_tokens"] > 0
    summed: AIMessageChunk | None = None
    for chunk in chat.stream(messages):
        assert isinstance(chunk, AIMessageChunk)
        summed = chunk if summed is None else summed + chunk
    assert summed is not None
    assert summed.content == whole.content
    assert summed.response_metadata["finish_reason"] == whole.response_metadata["finish_reason"]
    assert summed.usage_metadata is not None
    assert summed.usage_metadata["output_tokens"] == whole.usage_metadata["output_tokens"]


def test_batches_run_side_by_side(chat: ChatOpenAI) -> None:
    answers = chat.batch([f"Say the number {number}." for number in range(6)])
    assert sum(str(number) in str(answer.content) for number, answer in enumerate(answers)) >= 5
    later = asyncio.run(chat.ainvoke("Say the number 3."))
    assert later.content == answers[3].content


@pytest.mark.parametrize("stream", [False, True])
def test_tools(chat: ChatOpenAI, stream: bool) -> None:
    forced = chat.bind_tools([STOCK], tool_choice="required", parallel_tool_calls=False)
    question = HumanMessage("How many apples do we have in stock?")
    called: Any = None
    if stream:
        for chunk in forced.stream([question]):
            called = chunk if called is None else called + chunk
    else:
        called = forced.invoke([question])
    assert [(call["name"], call["args"]) for call in called.tool_calls] == [("get_stock", {"fruit": "apples"})]
    result = STOCK.invoke(called.tool_calls[0])
    assert isinstance(result, ToolMessage)
    answer = chat.bind_tools([STOCK], tool_choice="none").invoke([question, called, result])
    assert "12" in str(answer.content)


@pytest.mark.parametrize("method", ["json_schema", "function_calling", "json_mode"])
def test_structured_output(chat: ChatOpenAI, method: Any) -> None:
    question = "Rome is the capital of Italy. Give its name and country as a JSON object with name and country."
    found = chat.with_structured_output(City, method=method).invoke(question)
    assert isinstance(found, City)
    assert (found.name, found.country) == ("Rome", "Italy")


def test_logprobs(chat: ChatOpenAI) -> None:
    message = chat.bind(logprobs=True, top_logprobs=2).invoke("Say yes.")
    content = message.response_metadata["logprobs"]["content"]
    assert content and all(len(entry["top_logprobs"]) >= 2 for entry in content)


def test_responses_api(chat: ChatOpenAI) -> None:
    through = chat.model_copy(update={"use_responses_api": True})
    assert "Rome" in through.invoke("What is the capital of Italy?").text


def test_embeddings(served: Any) -> None:
    """Text must go as text: LangChain's own length check would send ids of another tokenizer."""
    embeddings = OpenAIEmbeddings(
        base_url=served.url, api_key=SecretStr(served.key), model=served.model, check_embedding_ctx_length=False
    )
    documents = embeddings.embed_documents(["a cat", "a dog", "the stock market"])
    query = embeddings.embed_query("a dog")
    assert query == documents[1]
    assert len({len(vector) for vector in documents}) == 1
