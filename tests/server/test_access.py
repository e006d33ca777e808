"""Keys, tenants, ids and logs; models, tokens, health, metrics and state."""

from __future__ import annotations

import logging
from typing import Any

import openai
import pytest

MESSAGES = [{"role": "user", "content": "a secret prompt"}]
GOOD = {"model": "tiny", "messages": MESSAGES}
KEYS = {"api_keys": ("alpha", "beta"), "admin_key": "root"}


@pytest.mark.parametrize("key", ["alph", "alphaa", "", "root", "ALPHA", "é"])
def test_wrong_keys_are_401_in_openai_shape(start: Any, key: str) -> None:
    with start(**KEYS).http() as http:
        headers = [(b"authorization", b"Bearer " + key.encode())] if key else []
        for method, path in [("POST", "/v1/chat/completions"), ("GET", "/v1/models"), ("POST", "/tokenize")]:
            response = http.request(method, path, headers=headers, **({"json": GOOD} if method == "POST" else {}))
            assert response.status_code == 401
            assert response.json()["error"]["code"] == "invalid_api_key"
            assert response.headers["www-authenticate"] == "Bearer"


def test_official_client_shows_the_message(start: Any) -> None:
    with start(**KEYS).client("nope") as client, pytest.raises(openai.AuthenticationError, match="Incorrect API key"):
        client.chat.completions.create(**GOOD)  # type: ignore[call-overload]


def test_every_key_is_a_tenant_with_its_own_salt(start: Any) -> None:
    live = start(**KEYS)
    for key in ("alpha", "beta", "alpha"):
        with live.client(key) as client:
            client.chat.completions.create(**GOOD)  # type: ignore[call-overload]
            client.chat.completions.create(**GOOD, extra_body={"cache_salt": "mine"})  # type: ignore[call-overload]
    salts = [submission.cache_salt for submission in live.engine.submissions]
    assert salts[:2] == salts[4:]
    assert len(set(salts)) == 4
    assert not any(b"alpha" in salt or b"mine" in salt for salt in salts)


def test_admin_has_its_own_key(start: Any) -> None:
    live = start(**KEYS)
    with live.http() as http:
        codes = [
            http.get("/admin/state", headers={"Authorization": f"Bearer {key}"}).status_code
            for key in ("root", "alpha")
        ]
        assert codes == [200, 401]
        assert http.post("/admin/drain").status_code == 401
    assert not live.service.bridge.draining


def test_admin_is_off_when_only_clients_have_keys(start: Any) -> None:
    with start(api_keys=("alpha",)).http() as http:
        response = http.get("/admin/state", headers={"Authorization": "Bearer alpha"})
    assert response.status_code == 403
    assert "--admin-key" in response.json()["error"]["message"]


@pytest.mark.parametrize(
    "body", [{"deadline": 1}, {"deadline_s": -1}, {"deadline_s": "soon"}, {"deadline_s": 1, "x": 0}]
)
def test_admin_bodies_are_exact(plain: Any, body: Any) -> None:
    with plain.http() as http:
        response = http.post("/admin/drain", json=body)
        assert response.status_code == 422
        assert response.json()["error"]["param"]
        assert http.get("/admin/state").json()["server"]["draining"] is False


def test_models(plain: Any) -> None:
    with plain.client() as client:
        assert [model.id for model in client.models.list()] == ["tiny", "alias"]
        assert client.models.retrieve("alias").id == "alias"
        with pytest.raises(openai.NotFoundError):
            client.models.retrieve("some/other")
        assert client.chat.completions.create(**{**GOOD, "model": "alias"}).model == "alias"


def test_tokenize_and_detokenize(plain: Any) -> None:
    with plain.http() as http:
        text = http.post("/tokenize", json={"prompt": "hé"}).json()
        bare = http.post(
            "/tokenize", json={"prompt": "hé", "add_special_tokens": False, "return_token_strs": True}
        ).json()
        chat = http.post("/tokenize", json={"messages": [{"role": "user", "content": "hi"}]}).json()
        back = http.post("/detokenize", json={"tokens": [104, 195, 169]}).json()
        both = http.post("/tokenize", json={"prompt": "a", "messages": MESSAGES})
        out = http.post("/detokenize", json={"tokens": [260]})
    assert text == {"count": 4, "max_model_len": 2048, "tokens": [256, 104, 195, 169], "token_strs": None}
    assert bare["token_strs"] == ["h", "bytes:\\xc3", "bytes:\\xa9"]
    assert bytes(chat["tokens"]) == b"user:hi\nassistant:"
    assert back == {"prompt": "hé"}
    assert (both.status_code, out.status_code) == (400, 400)
    assert out.json()["error"]["param"] == "tokens"


def test_keys_may_hold_any_character(start: Any) -> None:
    live = start(api_keys=("schlüssel",))
    with live.http() as http:
        sent = http.get("/v1/models", headers={"Authorization": b"Bearer " + "schlüssel".encode()})
        assert sent.status_code == 200


def test_a_probe_may_use_head(start: Any) -> None:
    live = start()
    with live.http() as http:
        for path in ("/health", "/livez", "/readyz"):
            assert (http.head(path).status_code, http.head(path).content) == (200, b"")


def test_no_redirect_leads_a_request_elsewhere(start: Any) -> None:
    with start().http() as http:
        answer = http.post("/v1/completions/", json={"prompt": "x"}, headers={"Host": "elsewhere.example"})
    assert answer.status_code == 404
    assert "location" not in answer.headers


def test_health_follows_the_engine(start: Any) -> None:
    live = start()
    with live.http() as http:
        for path in ("/health", "/livez", "/readyz"):
            assert (http.get(path).status_code, http.get(path).json()) == (200, {"status": "ok"})
        live.engine.health_now.ok, live.engine.health_now.reason = False, "no step finished for 31 s"
        live.service.bridge.draining = True  # what is stuck ends no drain either
        for path in ("/health", "/livez", "/readyz"):
            stuck = http.get(path)
            assert (stuck.status_code, stuck.json()["reason"]) == (503, "no step finished for 31 s")


def test_request_ids_metrics_and_a_log_without_prompts(start: Any, caplog: pytest.LogCaptureFixture) -> None:
    live = start()
    with caplog.at_level(logging.INFO, "surefoot"), live.http() as http:
        own = http.post("/v1/chat/completions?q=hidden", json=GOOD, headers={"X-Request-Id": "abc-1"})
        bad = http.get("/v1/nothing%0Aforged%20line", headers={"X-Request-Id": "a b"})
        text = http.get("/metrics").text
    assert own.headers["x-request-id"] == "abc-1"
    assert bad.headers["x-request-id"].startswith("req_")
    assert 'surefoot_http_responses_total{route="/v1/chat/completions",status="200"} 1.0' in text
    assert 'surefoot_http_responses_total{route="none",status="404"} 1.0' in text
    assert "surefoot_http_requests_open 1.0" in text  # this one
    logged = "\n".join(record.getMessage() for record in caplog.records if record.name == "surefoot.access")
    assert "POST /v1/chat/completions 200" in logged
    assert "abc-1" in logged
    assert "secret" not in logged
    assert "hidden" not in logged
    assert "/v1/nothing\\nforged line" in logged


def test_a_defect_is_an_error_body_that_names_its_request(
    start: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = start()

    def broken() -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(live.engine, "health", broken)
    with caplog.at_level(logging.INFO, "surefoot"), live.http() as http:
        answer = http.get("/health", headers={"X-Request-Id": "abc-2"})
        text = http.get("/metrics").text
    assert answer.status_code == 500
    assert answer.headers["x-request-id"] == "abc-2"
    error = answer.json()["error"]
    assert (error["type"], error["code"]) == ("api_error", "internal_error")
    assert "abc-2" in error["message"]
    assert "ZeroDivision" not in answer.text
    assert 'surefoot_http_responses_total{route="/health",status="500"} 1.0' in text
    trace = next(record for record in caplog.records if record.name == "surefoot.server" and record.exc_info)
    assert "abc-2" in trace.getMessage()


def test_openapi_lists_every_route(plain: Any) -> None:
    with plain.http() as http:
        document = http.get("/openapi.json").json()
    paths, schemas = document["paths"], document["components"]["schemas"]
    body = paths["/v1/chat/completions"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert body == {"$ref": "#/components/schemas/ChatRequest"}
    assert {"ChatRequest", "Message", "StreamOptions", "CompletionRequest", "DrainRequest"} <= set(schemas)
    assert "temperature" in schemas["ChatRequest"]["properties"]
    assert {"/v1/chat/completions", "/v1/completions", "/v1/models", "/tokenize", "/health", "/metrics"} <= set(paths)
