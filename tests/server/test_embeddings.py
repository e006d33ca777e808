"""`/v1/embeddings`: shapes, formats, sizes, limits; many inputs, a few at a time; clients that leave."""

from __future__ import annotations

import base64
import json
import socket
from typing import Any

import numpy as np
import openai
import pytest

from surefoot.engine.pooling import Pooling
from surefoot.kernels.errors import ConfigError
from surefoot.server.embedding import EmbeddingModel, embedding_model
from surefoot.server.settings import EmbeddingSettings

NONE = EmbeddingModel(Pooling.NONE, 4, (), "This model gives no embeddings: because")


def unit(*values: float) -> list[float]:
    vector = np.array(values)
    return (vector / np.linalg.norm(vector)).astype(np.float32).tolist()


def of(ids: list[int], size: int = 4) -> list[float]:
    """What the scripted engine gives: sum, count, last and first of the ids."""
    return unit(*[sum(ids), len(ids), ids[-1], ids[0]][:size])


def post(live: Any, **body: Any) -> Any:
    with live.http() as http:
        return http.post("/v1/embeddings", json={"model": "tiny", **body})


@pytest.mark.parametrize(
    ("value", "ids"),
    [
        ("ab", [[256, 97, 98]]),
        (["ab", "c"], [[256, 97, 98], [256, 99]]),
        ([7, 8, 9], [[7, 8, 9]]),
        ([[7], [8, 9]], [[7], [8, 9]]),
        (["a", [5]], [[256, 97], [5]]),
    ],
)
def test_every_shape_of_input(plain: Any, value: Any, ids: list[list[int]]) -> None:
    answer = post(plain, input=value)
    assert answer.status_code == 200, answer.text
    body = answer.json()
    assert body["data"] == [
        {"object": "embedding", "index": index, "embedding": of(each)} for index, each in enumerate(ids)
    ]
    count = sum(map(len, ids))
    assert (body["object"], body["model"]) == ("list", "tiny")
    assert body["usage"] == {"prompt_tokens": count, "total_tokens": count}


def test_base64_is_little_endian_float32(plain: Any) -> None:
    data = post(plain, input="ab", encoding_format="base64").json()["data"][0]["embedding"]
    assert np.frombuffer(base64.b64decode(data), "<f4").tolist() == of([256, 97, 98])


def test_the_official_client_reads_both_formats(plain: Any) -> None:
    with plain.client() as client:  # asks for base64 unless told
        vectors = [
            client.embeddings.create(model="tiny", input=["ab", "c"], **fields).data[1].embedding
            for fields in ({}, {"encoding_format": "float"}, {"encoding_format": "base64"})
        ]
    assert vectors[0] == vectors[1] == of([256, 99])
    assert isinstance(vectors[2], str | list)


def test_dimensions_are_cut_and_normalised_where_the_model_was_trained_for_them(plain: Any) -> None:
    assert post(plain, input="ab", dimensions=2).json()["data"][0]["embedding"] == of([256, 97, 98], 2)
    assert post(plain, input="ab", dimensions=4).json()["data"][0]["embedding"] == of([256, 97, 98])
    for size in (1, 3, 5):
        answer = post(plain, input="ab", dimensions=size)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "dimensions")
        assert "(2, 4)" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "input"),
        ({"input": ""}, "input"),
        ({"input": []}, "input"),
        ({"input": ["a", ""]}, "input"),
        ({"input": [[]]}, "input"),
        ({"input": [1, "a"]}, "input"),
        ({"input": [[1], 2]}, "input"),
        ({"input": [-1]}, "input"),
        ({"input": [300]}, "input"),
        ({"input": [True]}, "input"),
        ({"input": {"text": "a"}}, "input"),
        ({"input": 7}, "input"),
        ({"input": None}, "input"),
        ({"input": ["a"] * 2049}, "input"),
        ({"input": "a", "dimensions": 0}, "dimensions"),
        ({"input": "a", "dimensions": True}, "dimensions"),
        ({"input": "a", "encoding_format": "int8"}, "encoding_format"),
        ({"input": "a", "truncate_prompt_tokens": 5}, "truncate_prompt_tokens"),
        ({"input": "a", "normalize": False}, "normalize"),
        ({"input": "a", "embd_normalize": -1}, "embd_normalize"),
        ({"input": "a", "input_type": "query"}, "input_type"),
        ({"input": "a", "add_special_tokens": False}, "add_special_tokens"),
    ],
)
def test_what_cannot_be_embedded_is_refused_by_name(plain: Any, fields: Any, param: str) -> None:
    answer = post(plain, **fields)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param


def test_a_text_that_is_too_long_is_refused_and_never_cut(start: Any) -> None:
    live = start(max_context=32)
    assert post(live, input=[[1] * 32]).status_code == 200  # an embedding needs no room for an answer
    for value in (["a", [1] * 33], ["a", "b" * 33], ["a", "b" * 10_000_000]):
        error = post(live, input=value).json()["error"]
        assert (error["param"], error["code"]) == ("input", "context_length_exceeded")
        assert "32" in error["message"]
    assert "entry 1 of input has 33" in post(live, input=["a", [1] * 33]).json()["error"]["message"]
    assert len(live.engine.submissions) == 1


def test_all_inputs_together_have_a_limit(start: Any) -> None:
    live = start(max_context=2000)
    answer = post(live, input=[[1] * 2000] * 151)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "too_many_tokens")
    assert "300000" in answer.json()["error"]["message"]


def test_a_model_without_embeddings_says_so(start: Any) -> None:
    error = post(start(embedding=NONE), input="a")
    assert error.status_code == 400
    assert error.json()["error"]["message"] == NONE.refusal


def test_other_models_and_keys(start: Any) -> None:
    live = start(api_keys=("k",))
    with live.client("k") as client:
        assert client.embeddings.create(model="alias", input="a").model == "alias"
        with pytest.raises(openai.NotFoundError):
            client.embeddings.create(model="text-embedding-3-small", input="a")
    with live.client("wrong") as client, pytest.raises(openai.AuthenticationError):
        client.embeddings.create(model="tiny", input="a")


def test_many_inputs_are_in_the_engine_a_few_at_a_time(start: Any, script: Any) -> None:
    live = start(script(pause_s=0.001), embeddings_at_once=3)
    most = 0
    submit = live.engine.submit

    def counting(submission: Any) -> None:
        nonlocal most
        submit(submission)
        most = max(most, live.engine.num_running)

    live.engine.submit = counting
    answer = post(live, input=[[number % 250, 1] for number in range(400)])
    assert [entry["embedding"] for entry in answer.json()["data"]] == [of([n % 250, 1]) for n in range(400)]
    assert most == 3
    assert live.service.bridge.num_running == 0


def test_more_inputs_than_places_are_no_reason_to_refuse(start: Any) -> None:
    live = start(max_requests=8)
    assert len(post(live, input=["a"] * 100).json()["data"]) == 100
    assert live.service.bridge.num_running == 0


def test_a_failing_input_ends_the_request_and_the_others(start: Any, script: Any, eventually: Any) -> None:
    live = start(script(fail_after=0), embeddings_at_once=2)
    answer = post(live, input=["a"] * 50)
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "engine_error")
    assert eventually(lambda: live.service.bridge.num_running == 0)
    assert len(live.engine.submissions) <= 4


def test_an_engine_that_refuses_in_between_ends_the_request(start: Any, eventually: Any) -> None:
    live = start(embeddings_at_once=1)
    submit, calls = live.engine.submit, 0

    def refusing(submission: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == 5:
            from surefoot.kernels.errors import RequestError

            raise RequestError("stopped", status=503, code="engine_stopped")
        submit(submission)

    live.engine.submit = refusing
    answer = post(live, input=["a"] * 50)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "engine_stopped")
    assert calls == 5
    assert eventually(lambda: live.service.bridge.num_running == 0)


def test_a_client_that_leaves_takes_its_inputs_along(real: Any, eventually: Any) -> None:
    """The engine is real: running inputs are cancelled, the others never reach it, and every block is back."""
    host, port = real.url.removeprefix("http://").split(":")
    body = json.dumps({"input": [[number % 90 + 1] * 400 for number in range(200)]}).encode()
    head = f"POST /v1/embeddings HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    with socket.create_connection((host, int(port)), timeout=10) as client:
        client.sendall(head.encode() + b"\r\n\r\n" + body)
        assert eventually(lambda: real.service.bridge.num_running > 0)
    assert eventually(lambda: real.service.bridge.num_running == 0)
    state = real.engine.state()
    assert not state["requests"]
    assert all(blocks["held"] == 0 for blocks in state["kv_blocks"].values())
    with real.http() as http:
        lines = http.get("/metrics").text.splitlines()
    pooled = [
        float(line.split()[-1]) for line in lines if line.startswith('surefoot_requests_total{finish_reason="pooled"}')
    ]
    assert sum(pooled) < 200


def test_the_same_text_has_the_same_vector_alone_and_in_a_crowd(real: Any) -> None:
    with real.client() as client:
        model = client.models.list().data[0].id
        texts = ["one", "a much longer text about nothing in particular " * 5, "three"]
        lone = [client.embeddings.create(model=model, input=text).data[0].embedding for text in texts]
        crowd = client.embeddings.create(model=model, input=texts * 5)
    assert [entry.embedding for entry in crowd.data] == lone * 5
    assert abs(np.linalg.norm(lone[0]) - 1) < 1e-6


def test_metrics_count_embeddings(real: Any) -> None:
    def count(name: str) -> float:
        with real.http() as http:
            lines = http.get("/metrics").text.splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith(name))

    pooled, tokens = 'surefoot_requests_total{finish_reason="pooled"}', "surefoot_embedding_tokens_total"
    before = count(pooled), count(tokens)
    assert post(real, model=None, input=[[1, 2, 3], [4]]).status_code == 200
    assert (count(pooled), count(tokens)) == (before[0] + 2, before[1] + 4)


# --- what a model gives --------------------------------------------------------------------------------------------

TAPS = ("residual.0", "hidden")


@pytest.mark.parametrize(
    ("stated", "asked", "pooling"),
    [
        (None, None, Pooling.LAST),
        (Pooling.MEAN, None, Pooling.MEAN),
        (Pooling.MEAN, "cls", Pooling.CLS),
        (Pooling.NONE, None, Pooling.NONE),
        (Pooling.NONE, "mean", Pooling.MEAN),
        (None, "none", Pooling.NONE),
    ],
)
def test_pooling_is_the_operators_or_the_files_or_the_last_row(stated: Any, asked: Any, pooling: Pooling) -> None:
    model = embedding_model(stated, TAPS, 8, EmbeddingSettings(asked))
    assert (model.pooling, bool(model.refusal)) == (pooling, pooling is Pooling.NONE)


def test_a_program_without_hidden_rows_gives_none() -> None:
    assert "hidden rows" in embedding_model(Pooling.MEAN, (), 8, EmbeddingSettings()).refusal


@pytest.mark.parametrize(
    "settings", [EmbeddingSettings("max"), EmbeddingSettings(None, (8,)), EmbeddingSettings(None, (0,))]
)
def test_wrong_settings_stop_the_start(settings: EmbeddingSettings) -> None:
    with pytest.raises(ConfigError, match=r"--(pooling|embedding-dimensions)"):
        embedding_model(None, TAPS, 8, settings)
