"""Responses through the official client: whole, streamed, stored, and refused."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest


def ask(**fields: Any) -> dict[str, Any]:
    return {"model": "tiny", "input": "hi", **fields}


def prompt_of(live: Any) -> str:
    return bytes(live.engine.submissions[-1].prompt_ids).decode()


def events_of(response: Any) -> list[Any]:
    """The events of a stream; each is named as it says itself."""
    assert response.status_code == 200, response.text
    found = []
    for block in response.text.split("\n\n")[:-1]:
        name, data = block.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return found


def test_whole_answer(start: Any) -> None:
    live = start()
    with live.client() as client:
        answer = client.responses.create(**ask(instructions="Be brief.", metadata={"a": "b"}, max_output_tokens=50))
    assert answer.output_text == "Hello, world!"
    assert (answer.object, answer.status, answer.model, answer.error) == ("response", "completed", "tiny", None)
    assert (answer.instructions, answer.metadata, answer.max_output_tokens) == ("Be brief.", {"a": "b"}, 50)
    (message,) = answer.output
    assert (message.type, message.role, message.status) == ("message", "assistant", "completed")
    assert message.content[0].annotations == []
    assert answer.id.startswith("resp_")
    assert message.id.startswith("msg_")
    assert answer.completed_at >= answer.created_at
    assert prompt_of(live) == "system:Be brief.\nuser:hi\nassistant:"
    assert live.engine.submissions[0].params.max_tokens == 50


def test_input_and_output_tokens_are_the_total(start: Any) -> None:
    with start().client() as client:
        usage = client.responses.create(**ask(input="x" * 100)).usage
    assert usage.input_tokens == len(b"user:assistant:\n") + 100
    assert usage.output_tokens == len(b"Hello, world!") + 1
    assert usage.total_tokens == usage.input_tokens + usage.output_tokens
    assert usage.input_tokens_details.cached_tokens == usage.input_tokens // 32 * 32
    assert usage.output_tokens_details.reasoning_tokens == 0


def test_events_of_a_text(start: Any, script: Any) -> None:
    live = start(script(max_step=5))
    with live.client() as client:
        events = list(client.responses.create(**ask(stream=True)))
    names = [event.type.removeprefix("response.") for event in events]
    deltas = [event for event in events if event.type == "response.output_text.delta"]
    assert names[:4] == ["created", "in_progress", "output_item.added", "content_part.added"]
    assert names[4:-4] == ["output_text.delta"] * len(deltas)
    assert names[-4:] == ["output_text.done", "content_part.done", "output_item.done", "completed"]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert all(delta.delta for delta in deltas)
    assert "".join(delta.delta for delta in deltas) == events[-4].text == "Hello, world!"
    assert events[0].response.status == events[1].response.status == "in_progress"
    assert events[0].response.output == []
    final = events[-1].response
    assert final.output[0] == events[-2].item
    assert {event.item_id for event in events if hasattr(event, "item_id")} == {final.output[0].id}
    assert events[2].item.status == "in_progress"
    assert events[2].item.content == []
    assert final.usage.total_tokens == final.usage.input_tokens + final.usage.output_tokens


def test_the_streaming_helper(start: Any) -> None:
    live = start()
    with live.client() as client, client.responses.stream(**ask()) as stream:
        snapshots = [event.snapshot for event in stream if event.type == "response.output_text.delta"]
        final = stream.get_final_response()
    assert snapshots[-1] == final.output_text == "Hello, world!"
    assert final.status == "completed"


def test_a_stream_ends_in_what_a_whole_answer_is(start: Any) -> None:
    body = ask(seed=5, metadata={"k": "v"}, temperature=0.5, user="me", store=False)
    with start().http() as http:
        whole = http.post("/v1/responses", json=body).json()
        last = events_of(http.post("/v1/responses", json={**body, "stream": True}))[-1]["response"]
    for answer in (whole, last):
        answer.pop("id")
        answer.pop("created_at")
        answer.pop("completed_at")
        answer["output"][0].pop("id")
    assert whole == last
    assert whole["seed"] == 5


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_is_cut_is_incomplete(start: Any, stream: bool) -> None:
    with start().http() as http:
        response = http.post("/v1/responses", json=ask(max_output_tokens=4, stream=stream))
    if stream:
        events = events_of(response)
        assert events[-1]["type"] == "response.incomplete"
        answer = events[-1]["response"]
        assert events[-2]["item"]["status"] == "incomplete"
    else:
        answer = response.json()
    assert (answer["status"], answer["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert answer["output"][0]["status"] == "incomplete"
    assert answer["output"][0]["content"][0]["text"] == "Hell"
    assert answer["completed_at"] is None
    assert answer["usage"]["output_tokens"] == 4


def test_an_answer_of_nothing_is_an_empty_message(start: Any, script: Any) -> None:
    live = start(script(text=lambda _: b""))
    with live.client() as client:
        assert client.responses.create(**ask()).output[0].content[0].text == ""
        with client.responses.stream(**ask()) as stream:
            assert stream.get_final_response().output_text == ""


def test_a_failure_within_a_stream_is_a_failed_response(start: Any, script: Any) -> None:
    live = start(script(fail_after=8, max_step=1))
    with live.http() as http:
        events = events_of(http.post("/v1/responses", json=ask(stream=True)))
        assert http.get(f"/v1/responses/{events[0]['response']['id']}").status_code == 404
        assert http.post("/v1/responses", json=ask()).status_code == 500
    last = events[-1]
    assert (last["type"], last["response"]["status"]) == ("response.failed", "failed")
    assert last["response"]["error"] == {"code": "server_error", "message": "NaN in the logits"}
    assert last["response"]["output"][0]["status"] == "incomplete"
    assert [event["sequence_number"] for event in events] == list(range(len(events)))


def test_a_request_that_cannot_run_fails_before_its_stream_opens(start: Any) -> None:
    with start(max_context=20).http() as http:
        response = http.post("/v1/responses", json=ask(input="x" * 30, stream=True))
    assert response.status_code == 400
    assert (response.json()["error"]["param"], response.json()["error"]["code"]) == ("input", "context_length_exceeded")


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_ends_its_response(start: Any, script: Any, eventually: Any, stream: bool) -> None:
    live = start(script(text=lambda _: b"x" * 1000, max_step=1, pause_s=0.02))
    with live.http() as http:
        if stream:
            with http.stream("POST", "/v1/responses", json=ask(stream=True)) as response:
                next(response.iter_lines())
        else:
            with pytest.raises(Exception, match="timed out"):
                http.post("/v1/responses", json=ask(), timeout=0.3)
        assert eventually(lambda: live.engine.num_running == 0)
        assert live.engine.cancelled
        assert eventually(lambda: live.service.bridge.num_running == 0)
        assert len(live.service.responses.shelf(live.service.gate._anyone)) == 0


# What goes in


def test_items_of_every_kind_reach_the_template(start: Any) -> None:
    live = start()
    items = [
        {"role": "developer", "content": "be brief"},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"}]},
        {
            "type": "message",
            "id": "msg_1",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": "b", "annotations": []}],
        },
        {"role": "user", "content": [{"type": "input_text", "text": "c"}, {"type": "input_text", "text": "d"}]},
    ]
    with live.client() as client:
        client.responses.create(**ask(input=items, instructions="x"))
    assert prompt_of(live) == "system:x\ndeveloper:be brief\nuser:a\nassistant:b\nuser:cd\nassistant:"


def test_extensions_work_as_in_chat(start: Any) -> None:
    live = start()
    body = ask(
        top_k=5,
        min_p=0.1,
        stop="world",
        seed=7,
        logit_bias={"5": 1.5},
        return_token_ids=True,
        speculation={"enabled": False, "report": True},
        repetition_penalty=1.1,
    )
    with live.http() as http:
        answer = http.post("/v1/responses", json=body).json()
    submission = live.engine.submissions[0]
    params = submission.params
    assert (params.top_k, params.min_p, params.stop, params.seed) == (5, 0.1, ("world",), 7)
    assert (params.logit_bias, params.repetition_penalty) == (((5, 1.5),), 1.1)
    assert submission.speculation.enabled is False
    assert (answer["stop_reason"], answer["seed"]) == ("world", 7)
    assert bytes(answer["prompt_token_ids"]) == b"user:hi\nassistant:"
    assert bytes(answer["token_ids"]) == b"Hello, "


def test_logprobs(start: Any) -> None:
    wanted = ask(include=["message.output_text.logprobs"], top_logprobs=2, max_output_tokens=4)
    with start().client() as client:
        part = client.responses.create(**wanted).output[0].content[0]
        events = list(client.responses.create(**wanted, stream=True))
    assert [entry.token for entry in part.logprobs] == ["H", "e", "l", "l"]
    assert [[top.token for top in entry.top_logprobs] for entry in part.logprobs] == [["a", "b"]] * 4
    assert part.logprobs[0].logprob == -0.1 - 72 / 1000
    streamed = [entry for event in events if event.type == "response.output_text.delta" for entry in event.logprobs]
    assert [entry.to_dict() for entry in streamed] == [entry.to_dict() for entry in part.logprobs]
    (done,) = [event for event in events if event.type == "response.output_text.done"]
    assert len(done.logprobs) == 4


def test_obfuscation_hides_the_length_of_a_delta(start: Any, script: Any) -> None:
    live = start(script(max_step=3))
    with live.http() as http:
        plain = events_of(http.post("/v1/responses", json=ask(stream=True)))
        padded = events_of(
            http.post("/v1/responses", json=ask(stream=True, stream_options={"include_obfuscation": True}))
        )
    assert not any("obfuscation" in event for event in plain)
    deltas = [event for event in padded if "delta" in event]
    assert "".join(event["delta"] for event in deltas) == "Hello, world!"
    assert {len(event["delta"]) + len(event["obfuscation"]) for event in deltas} == {32}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"background": True}, "background"),
        ({"truncation": "middle"}, "truncation"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"prompt": {"id": "pmpt_1"}}, "prompt"),
        ({"max_tool_calls": 3}, "max_tool_calls"),
        ({"service_tier": "flex"}, "service_tier"),
        ({"max_tokens": 5}, "max_tokens"),
        ({"n": 2}, "n"),
        ({"messages": [{"role": "user", "content": "x"}]}, "messages"),
        ({"include": ["web_search_call.action.sources"]}, "include"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"metadata": {"a": "x" * 513}}, "metadata"),
        ({"metadata": {str(n): "" for n in range(17)}}, "metadata"),
        ({"text": {"verbosity": "low"}}, "text.verbosity"),
        ({"text": {"format": {"type": "xml"}}}, "text.format"),
        ({"reasoning": {"summary": "detailed"}}, "reasoning.summary"),
        ({"reasoning": {"effort": "high"}}, "reasoning.effort"),
        ({"speculation": {"nope": 1}}, "speculation.nope"),
        ({"input": []}, "input"),
        ({"input": None}, "input"),
        ({"input": [{"role": "user", "content": "reject me"}]}, "input"),
        ({"input": [{"type": "computer_call"}]}, "input.0"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
            "input.0.content",
        ),
        ({"input": [{"type": "function_call_output", "call_id": "c", "output": "4"}]}, "input"),
        ({"stream_options": {"include_obfuscation": 1}}, "stream_options.include_obfuscation"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(plain: Any, fields: dict[str, Any], param: str) -> None:
    before = len(plain.engine.submissions)
    with plain.http() as http:
        response = http.post("/v1/responses", json=ask(**fields))
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param
    assert response.json()["error"]["message"]
    assert len(plain.engine.submissions) == before


@pytest.mark.parametrize("kind", ["web_search", "file_search", "code_interpreter", "mcp", "image_generation", "custom"])
def test_hosted_tools_are_refused_by_name(plain: Any, kind: str) -> None:
    with plain.http() as http:
        error = http.post("/v1/responses", json=ask(tools=[{"type": kind}])).json()["error"]
    assert error["param"] == "tools.0"
    assert f"'{kind}'" in error["message"]


def test_neutral_values_are_welcome(plain: Any) -> None:
    fields = {
        "background": False,
        "truncation": "disabled",
        "service_tier": "auto",
        "include": ["reasoning.encrypted_content"],
        "text": {"format": {"type": "text"}, "verbosity": "medium"},
        "reasoning": {"effort": None, "summary": "auto"},
        "max_tool_calls": None,
        "tools": [],
        "tool_choice": "auto",
        "top_logprobs": 0,
        "prompt_cache_key": "k",
        "safety_identifier": "s",
        "stream_options": None,
    }
    with plain.http() as http:
        response = http.post("/v1/responses", json=ask(**fields))
    assert response.status_code == 200, response.text


def test_other_routes_refuse_what_only_responses_have(plain: Any) -> None:
    with plain.http() as http:
        for name, value in (("previous_response_id", "resp_1"), ("instructions", "x"), ("max_output_tokens", 5)):
            body = {"messages": [{"role": "user", "content": "x"}], name: value}
            assert http.post("/v1/chat/completions", json=body).json()["error"]["param"] == name


def test_the_document_knows_the_routes(plain: Any) -> None:
    with plain.http() as http:
        document = http.get("/openapi.json").json()
    paths = {path: set(methods) for path, methods in document["paths"].items() if path.startswith("/v1/responses")}
    assert paths == {
        "/v1/responses": {"post"},
        "/v1/responses/input_tokens": {"post"},
        "/v1/responses/{response_id}": {"get", "delete"},
        "/v1/responses/{response_id}/cancel": {"post"},
        "/v1/responses/{response_id}/input_items": {"get"},
    }
    assert "input" in document["components"]["schemas"]["ResponseRequest"]["required"]


def test_a_wrong_model_is_not_found(plain: Any) -> None:
    with plain.client() as client, pytest.raises(openai.NotFoundError, match="nope"):
        client.responses.create(model="nope", input="hi")


def test_input_tokens_are_counted_before_they_are_sent(start: Any) -> None:
    live = start()
    with live.client() as client:
        first = client.responses.create(**ask())
        fields: Any = {"input": "and?", "instructions": "Be brief.", "previous_response_id": first.id}
        counted = client.responses.input_tokens.count(model="tiny", **fields)
        assert counted.object == "response.input_tokens"
        assert counted.input_tokens == client.responses.create(**ask(**fields)).usage.input_tokens
        with pytest.raises(openai.BadRequestError) as caught:
            client.responses.input_tokens.count(model="tiny", input="reject me")
    assert caught.value.param == "input"
    assert len(live.engine.submissions) == 2
