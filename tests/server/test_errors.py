"""Bad input: always OpenAI's error object, always naming the field, never a stream, never a 500."""

from __future__ import annotations

import gzip
import json
from typing import Any

import httpx
import openai
import pytest

MESSAGES = [{"role": "user", "content": "hi"}]
GOOD = {"model": "tiny", "messages": MESSAGES}
JSON = {"Content-Type": "application/json"}


def fault(response: httpx.Response) -> dict[str, Any]:
    """The error of a response, after checking its shape."""
    body = response.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert body["error"]["message"]
    assert isinstance(body["error"]["message"], str)
    assert len(body["error"]["message"]) <= 1000
    assert "site-packages" not in response.text
    return body["error"]


@pytest.fixture
def http(plain: Any) -> Any:
    with plain.http() as client:
        yield client


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("functions", [{"name": "f"}]),
        ("guided_json", {"type": "object"}),
        ("guided_regex", "a+"),
        ("use_beam_search", True),
        ("bad_words", ["x"]),
        ("logits_processors", ["x"]),
        ("allowed_token_ids", list(range(2000))),
        ("regex", "a+"),
        ("ebnf", "root ::= 'a'"),
        ("n_probs", 3),
        ("n_predict", 10),
        ("typical_p", 0.5),
        ("mirostat", 2),
        ("dry_multiplier", 0.8),
        ("xtc_probability", 0.1),
        ("dynatemp_range", 0.5),
        ("repeat_penalty", 1.1),
        ("min_new_tokens", 4),
        ("speculative.n_max", 4),
        ("no_repeat_ngram_size", 3),
        ("reasoning_effort", "high"),
        ("echo", True),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_known_but_missing_fields_are_refused_by_name(http: httpx.Client, name: str, value: Any, stream: bool) -> None:
    response = http.post("/v1/chat/completions", json={**GOOD, "stream": stream, name: value})
    assert response.status_code == 400
    error = fault(response)
    assert (error["param"], error["code"]) == (name, "unsupported_parameter")
    assert name in error["message"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("tools", []),
        ("tool_choice", "auto"),
        ("response_format", {"type": "text"}),
        ("use_beam_search", False),
        ("mirostat", 0),
        ("mirostat_tau", 5.0),
        ("typical_p", 1.0),
        ("n_predict", -1),
        ("skip_special_tokens", True),
        ("grammar", ""),
        ("store", False),
        ("logit_bias", None),
        ("stop", []),
        ("stop", None),
        ("temperature", None),
        ("user", "me"),
        ("metadata", {"a": 1}),
        ("repetition_guard", None),
        ("repetition_guard", {"period": 64.0, "repeats": 4}),
    ],
)
def test_fields_at_their_default_are_fine(http: httpx.Client, name: str, value: Any) -> None:
    assert http.post("/v1/chat/completions", json={**GOOD, name: value}).status_code == 200


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": -1}, "temperature"),
        ({"temperature": "0.5"}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"top_p": 1.5}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"top_k": 1.5}, "top_k"),
        ({"min_p": 2}, "min_p"),
        ({"n": 0}, "n"),
        ({"n": 10**40}, "n"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": "12"}, "max_tokens"),
        ({"presence_penalty": 2.1}, "presence_penalty"),
        ({"frequency_penalty": -2.1}, "frequency_penalty"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"seed": 2**64}, "seed"),
        ({"seed": 1.5}, "seed"),
        ({"stop": 7}, "stop"),
        ({"stop": [""]}, "stop.0"),
        ({"stop": ["a"] * 65}, "stop"),
        ({"stop_token_ids": [-1]}, "stop_token_ids.0"),
        ({"repetition_guard": True}, "repetition_guard"),
        ({"repetition_guard": {"period": 4}}, "repetition_guard.repeats"),
        ({"repetition_guard": {"period": 0, "repeats": 4}}, "repetition_guard.period"),
        ({"repetition_guard": {"period": 257, "repeats": 4}}, "repetition_guard.period"),
        ({"repetition_guard": {"period": 4, "repeats": 1}}, "repetition_guard.repeats"),
        ({"repetition_guard": {"period": 4, "repeats": 3, "count": 2}}, "repetition_guard.count"),
        ({"logit_bias": {"AI": -100}}, "logit_bias"),
        ({"logit_bias": {"191222": 1}}, "logit_bias"),
        ({"logit_bias": {"-1": 1}}, "logit_bias"),
        ({"logit_bias": {"05": 1}}, "logit_bias"),
        ({"logit_bias": {"5": 101}}, "logit_bias"),
        ({"logit_bias": {"²": 1}}, "logit_bias"),
        ({"logit_bias": [1]}, "logit_bias"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": 3}, "stream_options"),
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": [{"content": "x"}]}, "messages.0.role"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages.0.role"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages.0.content"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages.0.content"),
        ({"messages": [{"role": "user", "content": "reject me"}]}, "messages"),
        ({"max_tokens": 4096}, "messages"),
        ({"metadata": 3}, "metadata"),
    ],
)
def test_wrong_values_name_their_field(http: httpx.Client, fields: dict[str, Any], param: str) -> None:
    response = http.post("/v1/chat/completions", json={**GOOD, **fields, "stream": fields.get("stream", True)})
    assert response.status_code == 400
    assert fault(response)["param"] == param


def test_limits_are_named_to_their_last_digit(http: httpx.Client) -> None:
    response = http.post("/v1/chat/completions", json={**GOOD, "seed": 2**64})
    assert fault(response)["message"] == f"seed: Input should be less than {2**64}"


def test_too_long_a_prompt(http: httpx.Client) -> None:
    long = [{"role": "user", "content": "x" * 5000}]
    response = http.post("/v1/chat/completions", json={"model": "tiny", "messages": long})
    assert response.status_code == 400
    assert fault(response)["code"] == "context_length_exceeded"


def test_many_faults_are_capped(http: httpx.Client) -> None:
    messages = [{"role": "robot" * 1000, "content": 5}] * 200
    response = http.post("/v1/chat/completions", json={"model": "tiny", "messages": messages})
    assert response.status_code == 400
    assert len(response.content) < 2000
    assert "and 395 more" in fault(response)["message"]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b'"text"',
        b"\xff\xfe{}",
        b'{"model": "tiny", "messages": [{"role": "user", "content": "\xff"}]}',
        b'{"model": "tiny", "messages": [{"role": "user", "content": "\\ud800"}]}',
        b'{"model": "tiny", "temperature": NaN}',
        b'{"model": "tiny", "temperature": Infinity}',
        b'{"seed": 1' + b"0" * 5000 + b"}",
        b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"a": ' + b'{"a":' * 50_000,
    ],
)
@pytest.mark.parametrize(
    "path", ["/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize", "/admin/drain"]
)
def test_broken_json(http: httpx.Client, body: bytes, path: str) -> None:
    if path == "/admin/drain" and not body:
        pytest.skip("a drain needs no body")
    response = http.post(path, content=body, headers=JSON)
    assert response.status_code == 400
    fault(response)


def test_infinite_number_in_json(http: httpx.Client) -> None:
    response = http.post(
        "/v1/chat/completions", content=json.dumps(GOOD)[:-1] + ', "temperature": 1e999}', headers=JSON
    )
    assert response.status_code == 400
    assert fault(response)["param"] == "temperature"


def test_wrong_content_type(http: httpx.Client) -> None:
    response = http.post("/v1/chat/completions", content=json.dumps(GOOD), headers={"Content-Type": "text/plain"})
    assert response.status_code == 415
    fault(response)


def test_compressed_bodies_are_refused_by_name(http: httpx.Client) -> None:
    body = gzip.compress(json.dumps(GOOD).encode())
    response = http.post("/v1/chat/completions", content=body, headers={**JSON, "Content-Encoding": "gzip"})
    assert response.status_code == 415
    assert "'gzip'" in fault(response)["message"]
    plain = http.post("/v1/chat/completions", json=GOOD, headers={"Content-Encoding": "identity"})
    assert plain.status_code == 200


@pytest.mark.parametrize("chunked", [False, True])
def test_body_too_large(start: Any, chunked: bool) -> None:
    data = json.dumps({**GOOD, "user": "x" * 5000}).encode()
    with start(max_body_bytes=1000).http() as http:
        response = http.post("/v1/chat/completions", content=iter([data]) if chunked else data, headers=JSON)
    assert response.status_code == 413
    assert fault(response)["code"] == "body_too_large"


def test_routes_that_are_not_there(http: httpx.Client) -> None:
    missing, wrong = http.get("/v1/nothing"), http.get("/v1/chat/completions")
    assert (missing.status_code, wrong.status_code) == (404, 405)
    assert fault(missing)["code"] == "unknown_url"
    assert fault(wrong)["code"] == "method_not_allowed"
    assert wrong.headers["allow"] == "POST"


@pytest.mark.parametrize(
    ("address", "ours"),
    [
        ("/completion", "/v1/completions"),
        ("/api/chat", "/v1/chat/completions"),
        ("/props", "/v1/models for the context size"),
        ("/chat/completions", "/v1/chat/completions"),
        ("/v1/v1/chat/completions", "/v1/chat/completions"),
        ("/v1/chat/completions/", "/v1/chat/completions"),
        ("/v1//chat/completions", "/v1/chat/completions"),
        ("/v1/tokenize", "/tokenize"),
        ("/v1", "/v1/models"),
    ],
)
def test_addresses_of_other_servers_and_near_ones_name_ours(http: httpx.Client, address: str, ours: str) -> None:
    answer = http.post(address, json=GOOD)
    assert (answer.status_code, fault(answer)["code"]) == (404, "unknown_url")
    assert f"; use {ours}" in fault(answer)["message"]


def test_an_address_that_is_like_none_of_ours_gets_no_advice(http: httpx.Client) -> None:
    assert fault(http.get("/v1/nothing"))["message"] == "There is no GET /v1/nothing"


def test_a_field_of_another_server_names_ours(http: httpx.Client) -> None:
    for name, value, ours in (("n_predict", 5, "max_tokens"), ("format", "json", "response_format")):
        assert f"use {ours}" in fault(http.post("/v1/chat/completions", json={**GOOD, name: value}))["message"]


def test_unknown_model(start: Any) -> None:
    with start().client() as client, pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="gpt-4", messages=MESSAGES)  # type: ignore[arg-type]
    assert (caught.value.code, caught.value.param) == ("model_not_found", "model")


def test_model_without_template(start: Any) -> None:
    with start(template=False).http() as http:
        chat = http.post("/v1/chat/completions", json=GOOD)
        text = http.post("/v1/completions", json={"prompt": "hi"})
    assert (chat.status_code, text.status_code) == (400, 200)
    assert "chat template" in fault(chat)["message"]


@pytest.mark.parametrize("stream", [False, True])
def test_engine_refusal_comes_before_the_stream(start: Any, script: Any, stream: bool) -> None:
    from surefoot.kernels.errors import RequestError

    refusal = RequestError("the cache can never hold this", code="context_length_exceeded")
    live = start(script(refuse=refusal))
    with live.http() as http:
        response = http.post("/v1/chat/completions", json={**GOOD, "stream": stream, "n": 3})
        assert response.status_code == 400
        assert fault(response)["code"] == "context_length_exceeded"
    assert live.service.bridge.num_running == 0


@pytest.mark.parametrize("stream", [False, True])
def test_failure_before_the_first_token_is_an_http_error(start: Any, script: Any, stream: bool) -> None:
    with start(script(fail_after=0)).http() as http:
        response = http.post("/v1/chat/completions", json={**GOOD, "stream": stream})
    assert response.status_code == 500
    assert fault(response)["code"] == "engine_error"


def test_failure_inside_a_stream_is_an_error_event(start: Any, script: Any) -> None:
    live = start(script(fail_after=5, max_step=1, pause_s=0.01))
    with live.http() as http:
        response = http.post("/v1/chat/completions", json={**GOOD, "stream": True})
    lines = response.text.split("\n\n")
    assert response.status_code == 200
    assert lines[-3].startswith("event: error\ndata: ")
    assert json.loads(lines[-3].removeprefix("event: error\ndata: "))["error"]["code"] == "engine_error"
    assert lines[-2] == "data: [DONE]"
    with live.client() as client, pytest.raises(openai.APIError, match="NaN"):
        list(client.chat.completions.create(**GOOD, stream=True))


def test_unknown_fields_are_counted_under_bounded_names(start: Any) -> None:
    live = start()
    with live.http() as http:
        for index in range(80):
            assert http.post("/v1/chat/completions", json={**GOOD, f"made_up_{index}": 1}).status_code == 200
        assert http.post("/v1/chat/completions", json={**GOOD, 'x"} 1\n': 1}).status_code == 200
        text = http.get("/metrics").text
    lines = [line for line in text.splitlines() if line.startswith("surefoot_ignored_fields_total")]
    assert len(lines) == 65
    assert 'surefoot_ignored_fields_total{name="made_up_0"} 1.0' in lines
    assert 'surefoot_ignored_fields_total{name="other"} 17.0' in lines
