"""Chat completions through the official client: streamed, whole, and what the two must have in common."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest


def events(response: Any) -> list[Any]:
    """The events of a stream; the last one is [DONE]."""
    found = [line.removeprefix("data: ") for line in response.text.splitlines() if line.startswith("data: ")]
    assert found[-1] == "[DONE]"
    return [json.loads(data) for data in found[:-1]]


def ask(**fields: Any) -> dict[str, Any]:
    return {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], **fields}


def test_whole_answer(start: Any) -> None:
    live = start()
    with live.client() as client:
        answer = client.chat.completions.create(**ask())
    assert answer.choices[0].message.content == "Hello, world!"
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.object == "chat.completion"
    assert answer.system_fingerprint == "fp_fake"
    assert answer.usage.prompt_tokens == len(b"user:hi\nassistant:")
    assert answer.usage.completion_tokens == len(b"Hello, world!") + 1
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer.usage.prompt_tokens_details.cached_tokens == 0


def test_stream_has_role_first_no_empty_deltas_and_no_usage(start: Any) -> None:
    live = start()
    with live.client() as client:
        chunks = list(client.chat.completions.create(**ask(stream=True)))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[0].choices[0].delta.content == ""
    assert all(chunk.choices[0].delta.content for chunk in chunks[1:-1])
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "Hello, world!"
    assert chunks[-1].choices[0].finish_reason == "stop"
    assert all(chunk.usage is None for chunk in chunks)
    assert len({chunk.id for chunk in chunks}) == 1


@pytest.mark.parametrize("options", [{}, {"include_usage": False}, None])
def test_stream_options_without_include_usage_give_no_usage(start: Any, options: Any) -> None:
    with start().http() as http:
        chunks = events(http.post("/v1/chat/completions", json=ask(stream=True, stream_options=options)))
    assert all("usage" not in chunk for chunk in chunks)
    assert all(len(chunk["choices"]) == 1 for chunk in chunks)


def test_include_usage_is_one_last_chunk_with_an_empty_list_of_choices(start: Any) -> None:
    with start().http() as http:
        chunks = events(
            http.post("/v1/chat/completions", json=ask(stream=True, stream_options={"include_usage": True}))
        )
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == 14
    assert all(chunk["usage"] is None and chunk["choices"] for chunk in chunks[:-1])


def test_choices_have_their_own_indexes_and_seeds(start: Any, script: Any) -> None:
    live = start(script(text=lambda submission: str(submission.params.seed).encode()))
    with live.client() as client:
        whole = client.chat.completions.create(**ask(n=3, seed=4242, temperature=1))
        streamed = ["", "", ""]
        for chunk in client.chat.completions.create(**ask(n=3, seed=4242, temperature=1, stream=True)):
            streamed[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    texts = [choice.message.content for choice in whole.choices]
    assert [choice.index for choice in whole.choices] == [0, 1, 2]
    assert texts[0] == "4242"
    assert len(set(texts)) == 3
    assert not {"4243", "4244"} & set(texts)
    assert streamed == texts


def test_unseeded_requests_draw_different_seeds_and_return_them(start: Any) -> None:
    live = start()
    with live.http() as http:
        seeds = [http.post("/v1/chat/completions", json=ask()).json()["seed"] for _ in range(5)]
        streamed = events(http.post("/v1/chat/completions", json=ask(stream=True)))
    assert len(set(seeds)) == 5
    assert [submission.params.seed for submission in live.engine.submissions[:5]] == seeds
    assert streamed[0]["seed"] == live.engine.submissions[5].params.seed
    assert all("seed" not in chunk for chunk in streamed[1:])


def test_logprobs(start: Any) -> None:
    live = start()
    with live.client() as client:
        answer = client.chat.completions.create(**ask(logprobs=True, top_logprobs=2, max_tokens=4))
        chunks = list(client.chat.completions.create(**ask(logprobs=True, top_logprobs=2, max_tokens=4, stream=True)))
    content = answer.choices[0].logprobs.content
    assert [entry.token for entry in content] == ["H", "e", "l", "l"]
    assert [entry.bytes for entry in content] == [[72], [101], [108], [108]]
    assert content[0].logprob == -0.1 - 72 / 1000  # every digit survives
    assert [[top.token for top in entry.top_logprobs] for entry in content] == [["a", "b"]] * 4
    streamed = [entry for chunk in chunks if chunk.choices[0].logprobs for entry in chunk.choices[0].logprobs.content]
    assert streamed == content
    assert answer.choices[0].finish_reason == "length"


def test_token_ids_on_request(start: Any) -> None:
    with start().http() as http:
        body = ask(return_token_ids=True, return_tokens_as_token_ids=True, logprobs=True)
        whole = http.post("/v1/chat/completions", json=body).json()
        chunks = events(http.post("/v1/chat/completions", json={**body, "stream": True}))
    assert bytes(whole["prompt_token_ids"]) == b"user:hi\nassistant:"
    assert bytes(whole["choices"][0]["token_ids"]) == b"Hello, world!"
    assert whole["choices"][0]["logprobs"]["content"][0]["token"] == "token_id:72"
    assert chunks[0]["prompt_token_ids"] == whole["prompt_token_ids"]
    assert [token for chunk in chunks for token in chunk["choices"][0].get("token_ids", [])] == list(b"Hello, world!")


def test_stop_string_is_reported(start: Any) -> None:
    with start().http() as http:
        answer = http.post("/v1/chat/completions", json=ask(stop="world")).json()
    assert answer["choices"][0]["message"]["content"] == "Hello, "
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["choices"][0]["stop_reason"] == "world"


def test_half_characters_never_leave(start: Any, script: Any) -> None:
    text = "Příliš žluťoučký 🌶 kůň"
    live = start(script(text=lambda _: text.encode(), max_step=1))
    with live.client() as client:
        deltas = [
            chunk.choices[0].delta.content or ""
            for chunk in client.chat.completions.create(**ask(stream=True, logprobs=True))
        ]
    assert "".join(deltas) == text
    assert all(deltas[1:-1])


def test_part_lists_and_roles_reach_the_template(start: Any) -> None:
    live = start()
    messages = [
        {"role": "developer", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
    ]
    with live.http() as http:
        assert http.post("/v1/chat/completions", json=ask(messages=messages)).status_code == 200
    assert bytes(live.engine.submissions[0].prompt_ids) == b"developer:be brief\nuser:ab\nassistant:"


def test_final_message_can_be_continued(start: Any) -> None:
    live = start()
    messages = [{"role": "user", "content": "count"}, {"role": "assistant", "content": "one two"}]
    with live.http() as http:
        good = http.post("/v1/chat/completions", json=ask(messages=messages, continue_final_message=True))
        bad = http.post("/v1/chat/completions", json=ask(continue_final_message=True))
    assert good.status_code == 200
    assert bytes(live.engine.submissions[0].prompt_ids) == b"user:count\nassistant:one two"
    assert bad.status_code == 400
    assert bad.json()["error"]["param"] == "continue_final_message"


def test_parameters_reach_the_engine(start: Any) -> None:
    live = start()
    body = ask(
        max_tokens=9,
        max_completion_tokens=7.0,
        temperature=0.5,
        top_k=-1,
        top_p=0.9,
        min_p=0.1,
        repetition_penalty=1.05,
        presence_penalty=-2,
        frequency_penalty=2,
        logit_bias={"72": -100, "5": 1.5},
        stop=["x", "y"],
        stop_token_ids=[3],
        ignore_eos=True,
        min_tokens=2,
        seed=-7,
    )
    with live.http() as http:
        assert http.post("/v1/chat/completions", json=body).status_code == 200
    params = live.engine.submissions[0].params
    assert (params.max_tokens, params.temperature, params.top_k, params.top_p, params.min_p) == (7, 0.5, 0, 0.9, 0.1)
    assert (params.repetition_penalty, params.presence_penalty, params.frequency_penalty) == (1.05, -2.0, 2.0)
    assert params.logit_bias == ((5, 1.5), (72, -math.inf))
    assert (params.stop, params.stop_token_ids, params.ignore_eos, params.min_tokens) == (("x", "y"), (3,), True, 2)
    assert params.seed == 2**64 - 7


def test_no_limit_means_the_rest_of_the_context(start: Any) -> None:
    live = start(max_context=100)
    with live.http() as http:
        http.post("/v1/chat/completions", json=ask())
    assert live.engine.submissions[0].params.max_tokens == 100 - len(b"user:hi\nassistant:")
