"""litellm, as its users point it at any OpenAI-compatible server."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")

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


@pytest.fixture(scope="module")
def litellm() -> Any:
    """The module, imported only where its tests run: that takes seconds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # it would fetch its price list
        return pytest.importorskip("litellm")


@pytest.fixture(scope="module")
def common(served: Any) -> dict[str, Any]:
    return {"model": f"openai/{served.model}", "api_base": served.url, "api_key": served.key, "num_retries": 0}


def say(text: str, **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], "temperature": 0, "max_tokens": 60, **fields}


def test_chat_whole_and_streamed(litellm: Any, common: dict[str, Any]) -> None:
    body = say("Name the capital of France in one word.")
    whole = litellm.completion(**common, **body)
    assert "Paris" in whole.choices[0].message.content
    chunks = list(litellm.completion(**common, **body, stream=True, stream_options={"include_usage": True}))
    built = litellm.stream_chunk_builder(chunks, messages=body["messages"])
    assert built.choices[0].message.content == whole.choices[0].message.content
    assert built.usage.completion_tokens == whole.usage.completion_tokens
    assert built.usage.prompt_tokens == whole.usage.prompt_tokens


@pytest.mark.parametrize("stream", [False, True])
def test_choices_keep_their_index(litellm: Any, common: dict[str, Any], stream: bool) -> None:
    body = say("Write a word.", n=2, seed=4242, max_tokens=4) | {"temperature": 1.9}
    answer = litellm.completion(**common, **body, stream=stream)
    if stream:
        assert {choice.index for chunk in answer for choice in chunk.choices} == {0, 1}
    else:
        assert [choice.index for choice in answer.choices] == [0, 1]


def test_tools(litellm: Any, common: dict[str, Any]) -> None:
    body = say("Use the tool to add 2 and 3.", tools=[SUM], tool_choice="required")
    whole = litellm.completion(**common, **body)
    call = whole.choices[0].message.tool_calls[0]
    assert json.loads(call.function.arguments) == {"n1": 2, "n2": 3}
    built = litellm.stream_chunk_builder(list(litellm.completion(**common, **body, stream=True)))
    streamed = built.choices[0].message.tool_calls[0].function
    assert (streamed.name, streamed.arguments) == ("sum", call.function.arguments)
    assert whole.choices[0].finish_reason == built.choices[0].finish_reason == "tool_calls"


def test_a_schema(litellm: Any, common: dict[str, Any]) -> None:
    schema = {
        "type": "object",
        "properties": {"n": {"type": "integer"}},
        "required": ["n"],
        "additionalProperties": False,
    }
    named = {"type": "json_schema", "json_schema": {"name": "number", "schema": schema, "strict": True}}
    answer = litellm.completion(**common, **say("Two, as JSON.", response_format=named))
    assert set(json.loads(answer.choices[0].message.content)) == {"n"}


def test_embeddings_and_text(litellm: Any, common: dict[str, Any]) -> None:
    answer = litellm.embedding(**common, input=["a cat", "a dog"])
    assert len(answer.data[0]["embedding"]) == len(answer.data[1]["embedding"]) > 100
    text = litellm.text_completion(
        **{**common, "model": common["model"].replace("openai/", "text-completion-openai/")},
        prompt="1, 2, 3, 4,",
        max_tokens=4,
        temperature=0,
    )
    assert text.choices[0].text.startswith(" 5")


def test_errors_are_litellms(litellm: Any, common: dict[str, Any]) -> None:
    with pytest.raises(litellm.BadRequestError, match="temperature"):
        litellm.completion(**common, **say("x") | {"temperature": -1})
    with pytest.raises(litellm.ContextWindowExceededError):
        litellm.completion(**common, **say("word " * 6000))
    with pytest.raises(litellm.AuthenticationError):
        litellm.completion(**{**common, "api_key": "wrong"}, **say("x"))
