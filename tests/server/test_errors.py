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
        ({"max_tokens": -2}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"max_completion_tokens": -2}, "max_completion_tokens"),
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
        ({"max_tokens": 4096}, "max_tokens"),
        ({"max_completion_tokens": 4096}, "max_completion_tokens"),
        ({"max_tokens": 4096, "max_completion_tokens": 8192}, "max_tokens"),
        ({"max_tokens": 4096, "max_completion_tokens": 10}, None),
        ({"metadata": 3}, "metadata"),
    ],
)
def test_wrong_values_name_their_field(http: httpx.Client, fields: dict[str, Any], param: str | None) -> None:
    response = http.post("/v1/chat/completions", json={**GOOD, **fields, "stream": fields.get("stream", True)})
    assert response.status_code == (200 if param is None else 400)
    assert param is None or fault(response)["param"] == param


def test_limits_are_named_to_their_last_digit(http: httpx.Client) -> None:
    response = http.post("/v1/chat/completions", json={**GOOD, "seed": 2**64})
    assert fault(response)["message"] == f"seed: Input should be less than {2**64}"


TOO_LONG = {
    "/v1/chat/completions": ({"messages": [{"role": "user", "content": "x" * 5000}]}, "messages"),
    "/v1/completions": ({"prompt": "x" * 5000}, "prompt"),
    "/v1/responses": ({"input": "x" * 5000}, "input"),
    "/v1/embeddings": ({"input": "x" * 5000}, "input"),
}


@pytest.mark.parametrize("path", TOO_LONG)
def test_too_long_a_prompt(http: httpx.Client, path: str) -> None:
    body, param = TOO_LONG[path]
    error = fault(http.post(path, json=body))
    assert (error["param"], error["code"]) == (param, "context_length_exceeded")
    assert "maximum context length is 2048 tokens" in error["message"]


@pytest.mark.parametrize(
    ("path", "body", "limit"),
    [
        ("/v1/chat/completions", {"messages": MESSAGES}, "max_tokens"),
        ("/v1/chat/completions", {"messages": MESSAGES}, "max_completion_tokens"),
        ("/v1/completions", {"prompt": "hi"}, "max_tokens"),
        ("/v1/responses", {"input": "hi"}, "max_output_tokens"),
    ],
)
def test_too_long_an_answer_names_its_limit_and_what_would_fit(
    http: httpx.Client, path: str, body: dict[str, Any], limit: str
) -> None:
    error = fault(http.post(path, json={**body, limit: 2048}))
    assert (error["param"], error["code"]) == (limit, "context_length_exceeded")
    assert "maximum context length is 2048 tokens" in error["message"]
    fitting = int(error["message"].partition("to at most ")[2].partition(",")[0])
    assert http.post(path, json={**body, limit: fitting}).status_code == 200
    assert http.post(path, json={**body, limit: fitting + 1}).status_code == 400


@pytest.mark.parametrize(
    ("path", "body", "param", "code"),
    [
        ("/v1/chat/completions", {}, "messages", "missing_required_parameter"),
        ("/v1/chat/completions", {"messages": [{"content": "x"}]}, "messages.0.role", "missing_required_parameter"),
        ("/v1/chat/completions", {"messages": "hi"}, "messages", "invalid_type"),
        ("/v1/chat/completions", {"messages": MESSAGES, "temperature": "hot"}, "temperature", "invalid_type"),
        ("/v1/chat/completions", {"messages": MESSAGES, "temperature": 101}, "temperature", "invalid_value"),
        ("/v1/chat/completions", {"messages": MESSAGES, "n": 129}, "n", "invalid_value"),
        ("/v1/completions", {"prompt": "x", "min_tokens": 9, "max_tokens": 8}, "min_tokens", "invalid_value"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "reject me"}]}, "messages", "invalid_value"),
        ("/v1/chat/completions", {"messages": MESSAGES, "functions": [1]}, "functions", "unsupported_parameter"),
        (
            "/v1/chat/completions",
            {"messages": MESSAGES, "response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
            "response_format.json_schema.schema",
            "missing_required_parameter",
        ),
        (
            "/v1/chat/completions",
            {"messages": MESSAGES, "response_format": {"type": "json_schema"}},
            "response_format.json_schema",
            "missing_required_parameter",
        ),
        (
            "/v1/chat/completions",
            {"messages": MESSAGES, "response_format": {"type": "json_object", "schema": 1}},
            "response_format.schema",
            "invalid_type",
        ),
        ("/v1/completions", {}, "prompt", "missing_required_parameter"),
        ("/v1/completions", {"prompt": [300]}, "prompt", "invalid_value"),
        ("/v1/completions", {"prompt": "x", "max_tokens": []}, "max_tokens", "invalid_type"),
        ("/v1/completions", {"prompt": "x", "grammar": "root ::= missing"}, "grammar", "invalid_constraint"),
        ("/v1/responses", {}, "input", "missing_required_parameter"),
        ("/v1/responses", {"input": [{"role": "user"}]}, "input.0.content", "missing_required_parameter"),
        ("/v1/responses", {"input": "x", "previous_response_id": "no"}, "previous_response_id",
         "previous_response_not_found"),
        ("/v1/responses", {"input": "x", "truncation": "middle"}, "truncation", "invalid_value"),
        ("/v1/responses", {"input": "x", "background": True}, "background", "unsupported_parameter"),
        ("/v1/responses/input_tokens", {"input": 3}, "input", "invalid_type"),
        ("/v1/embeddings", {}, "input", "missing_required_parameter"),
        ("/v1/embeddings", {"input": "x", "dimensions": 3}, "dimensions", "invalid_value"),
        ("/v1/embeddings", {"input": "x", "encoding_format": "hex"}, "encoding_format", "invalid_value"),
        ("/tokenize", {"prompt": 3}, "prompt", "invalid_type"),
        ("/detokenize", {"tokens": [10**6]}, "tokens", "invalid_value"),
        ("/detokenize", {}, "tokens", "missing_required_parameter"),
        ("/admin/drain", {"deadline_s": -1}, "deadline_s", "invalid_value"),
        ("/admin/drain", {"deadline": 1}, "deadline", "unknown_parameter"),
    ],
)  # fmt: skip
def test_every_route_says_which_field_and_what_is_wrong_with_it(
    http: httpx.Client, path: str, body: dict[str, Any], param: str, code: str
) -> None:
    response = http.post(path, json=body)
    error = fault(response)
    assert response.status_code in (400, 404, 422)
    assert (error["param"], error["code"], error["type"]) == (param, code, "invalid_request_error")


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


def test_a_default_elsewhere_that_is_none_here_is_refused_with_what_to_write(http: httpx.Client) -> None:
    """llama.cpp's n_predict means the end, which chats go to by themselves and completions do not."""
    answer = http.post("/v1/completions", json={"prompt": "x", "n_predict": -1})
    assert (answer.status_code, fault(answer)["param"]) == (400, "n_predict")
    assert "use max_tokens, of which -1" in fault(answer)["message"]
    assert http.post("/v1/completions", json={"prompt": "x", "n_predict": None}).status_code == 200


@pytest.mark.parametrize(
    ("path", "fields", "limit"),
    [
        ("/v1/completions", {"prompt": [97], "max_tokens": -1}, 2047),
        ("/v1/completions", {"prompt": [97], "max_tokens": -1.0}, 2047),
        ("/v1/chat/completions", {**GOOD, "max_tokens": -1}, 2030),
        ("/v1/chat/completions", {**GOOD, "max_completion_tokens": -1, "max_tokens": 9}, 9),
        ("/v1/chat/completions", {**GOOD, "max_completion_tokens": 9, "max_tokens": -1}, 9),
        ("/v1/chat/completions", {**GOOD, "max_completion_tokens": -1, "max_tokens": -1}, 2030),
        ("/v1/responses", {"input": "hi", "max_output_tokens": -1}, 2030),
    ],
)
def test_minus_one_token_is_what_fits(plain: Any, path: str, fields: dict[str, Any], limit: int) -> None:
    with plain.http() as http:
        assert http.post(path, json=fields).status_code == 200
    assert plain.engine.submissions[-1].params.max_tokens == limit


def test_what_fits_is_not_in_a_prompt_that_leaves_no_room(http: httpx.Client) -> None:
    answer = http.post("/v1/completions", json={"prompt": [97] * 2048, "max_tokens": -1})
    assert (answer.status_code, fault(answer)["code"]) == (400, "context_length_exceeded")


def test_one_wrong_tool_is_one_fault_in_words_that_clients_know(http: httpx.Client) -> None:
    for tool, message in (
        ("x", "tools.0: Input should be an object"),
        ({"type": "function", "function": {}}, "tools.0.function.name: Field required"),
    ):
        answer = http.post("/v1/chat/completions", json={**GOOD, "tools": [tool], "tool_choice": "required"})
        assert fault(answer)["message"] == message


def test_a_conversation_that_surely_does_not_fit_names_its_field(http: httpx.Client) -> None:
    message = {"role": "user", "content": "x" * 500_000}
    for path, field in (("/v1/chat/completions", "messages"), ("/v1/responses", "input")):
        error = fault(http.post(path, json={field: [message]}))
        assert (error["param"], error["code"]) == (field, "context_length_exceeded")
        assert "cannot fit" in error["message"]


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
