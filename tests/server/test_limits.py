"""Keys and what each may do: rates, requests at once, key files; nothing of it shows where strangers look."""

from __future__ import annotations

import json
import logging
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from surefoot.kernels.errors import ConfigError, RequestError
from surefoot.server.api_keys import ApiKey, KeySource, read_keys
from surefoot.server.limits import Allowance, KeyLimits
from surefoot.server.settings import HttpSettings

GOOD = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def endless(_: Any) -> bytes:
    return b"word " * 300


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


# --- the rate --------------------------------------------------------------------------------------------------------


@given(st.integers(1, 600), st.lists(st.floats(0, 30), min_size=1, max_size=80))
def test_no_window_of_time_holds_more_than_a_burst_and_the_rate(per_minute: int, pauses: list[float]) -> None:
    clock = Clock()
    allowance = Allowance(KeyLimits(per_minute=per_minute), clock)
    taken = list[float]()
    for pause in pauses:
        clock.now += pause
        try:
            allowance.enter()
        except RequestError as error:
            assert error.status == 429
            assert error.retry_after is not None
            clock.now += error.retry_after  # who waits as told is served
            allowance.enter()
        taken.append(clock.now)
    for first, start in enumerate(taken):
        for last, end in enumerate(taken[first:], 1):
            assert last <= per_minute + (end - start) * per_minute / 60 + 1e-6


def test_headers_count_down_and_a_full_bucket_refuses(start: Any) -> None:
    live = start(api_keys=("alpha", "beta"), key_limits=KeyLimits(per_minute=3))
    with live.http() as http:
        left = []
        for _ in range(3):
            answer = http.post("/v1/chat/completions", json=GOOD, headers=bearer("alpha"))
            assert answer.status_code == 200
            assert answer.headers["x-ratelimit-limit-requests"] == "3"
            assert answer.headers["x-ratelimit-reset-requests"].endswith("s")
            left.append(int(answer.headers["x-ratelimit-remaining-requests"]))
        refused = http.post("/tokenize", json={"prompt": "x"}, headers=bearer("alpha"))
        other = http.post("/tokenize", json={"prompt": "x"}, headers=bearer("beta"))
        listed = http.get("/v1/models", headers=bearer("alpha"))
    assert left == [2, 1, 0]
    assert refused.status_code == 429
    assert 0 < int(refused.headers["retry-after"]) <= 20
    assert refused.headers["x-ratelimit-remaining-requests"] == "0"
    assert refused.json()["error"] == {
        "message": refused.json()["error"]["message"],
        "type": "rate_limit_error",
        "param": None,
        "code": "rate_limit_exceeded",
    }
    assert "3 requests per minute" in refused.json()["error"]["message"]
    assert (other.status_code, listed.status_code) == (200, 200)


def test_without_a_rate_there_are_no_such_headers(plain: Any) -> None:
    with plain.http() as http:
        answer = http.post("/tokenize", json={"prompt": "x"})
    assert not [name for name in answer.headers if name.startswith("x-ratelimit")]


def test_wrong_keys_do_not_use_up_anybodys_rate(start: Any) -> None:
    with start(api_keys=("alpha",), key_limits=KeyLimits(per_minute=2)).http() as http:
        for _ in range(5):
            assert http.post("/tokenize", json={"prompt": "x"}, headers=bearer("guess")).status_code == 401
        assert http.post("/tokenize", json={"prompt": "x"}, headers=bearer("alpha")).status_code == 200


# --- at once ---------------------------------------------------------------------------------------------------------


def test_a_key_has_so_many_requests_at_once(start: Any, script: Any, eventually: Any) -> None:
    keys = ("alpha", ApiKey("beta", "b", KeyLimits(at_once=1)))
    live = start(script(text=endless, pause_s=0.02), api_keys=keys, key_limits=KeyLimits(at_once=2))
    stream = {**GOOD, "stream": True}
    with live.http() as http:
        with http.stream("POST", "/v1/chat/completions", json={**stream, "n": 2}, headers=bearer("alpha")) as running:
            lines = running.iter_lines()
            next(lines)
            for path, body in (("/v1/chat/completions", stream), ("/v1/completions", {"prompt": "x"})):
                refused = http.post(path, json=body, headers=bearer("alpha"))
                assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
                assert refused.json()["error"]["code"] == "rate_limit_exceeded"
            never = http.post("/v1/chat/completions", json={**GOOD, "n": 3}, headers=bearer("alpha"))
            assert (never.status_code, never.json()["error"]["param"]) == (400, "n")
            with http.stream("POST", "/v1/chat/completions", json=stream, headers=bearer("beta")) as other:
                rest = other.iter_lines()
                next(rest)
                assert http.post("/tokenize", json={"prompt": "x"}, headers=bearer("beta")).status_code == 429
                assert http.get("/v1/models", headers=bearer("beta")).status_code == 200
        assert eventually(lambda: live.engine.num_running == 0)
        live.engine.script.text = lambda _: b"ok"
        for key in ("alpha", "beta"):
            answered = eventually(
                lambda key=key: http.post("/v1/chat/completions", json=GOOD, headers=bearer(key)).status_code == 200
            )
            assert answered


def allowances(live: Any) -> list[Allowance]:
    gate = live.service.gate
    return [tenant.allowance for tenant in (*gate._ring.tenants.values(), gate._anyone)]


def test_refused_failing_and_abandoned_requests_leave_nothing_behind(start: Any, script: Any, eventually: Any) -> None:
    live = start(
        script(text=lambda _: b"word " * 20, pause_s=0.005),
        api_keys=("alpha", "beta"),
        key_limits=KeyLimits(at_once=2, per_minute=10**6),
    )
    bodies = [
        GOOD,
        {**GOOD, "stream": True},
        {**GOOD, "n": 2},
        {**GOOD, "n": 3},
        {**GOOD, "temperature": "x"},
        {**GOOD, "model": "none"},
        {"prompt": 1},
    ]
    codes = dict[int, int]()
    lock = threading.Lock()

    def client(seed: int) -> None:
        with live.http() as http:
            for turn in range(21):
                body = bodies[(turn + seed) % len(bodies)]
                headers = bearer(("alpha", "beta", "wrong")[turn % 3])
                with http.stream("POST", "/v1/chat/completions", json=body, headers=headers) as response:
                    if turn % 2:
                        response.read()  # else it leaves
                with lock:
                    codes[response.status_code] = codes.get(response.status_code, 0) + 1

    threads = [threading.Thread(target=client, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(codes) == {200, 400, 401, 404, 429}, codes
    assert eventually(lambda: live.service.bridge.num_running == 0 and live.engine.num_running == 0)
    assert eventually(lambda: all(a.num_requests == 0 and a.num_choices == 0 for a in allowances(live)))
    assert not live.service.bridge._open


def test_an_engine_that_refuses_gives_the_choices_back(start: Any, script: Any) -> None:
    live = start(script(refuse=RequestError("no", status=400)), api_keys=("alpha",), key_limits=KeyLimits(at_once=2))
    with live.http() as http:
        for _ in range(4):
            answer = http.post("/v1/chat/completions", json={**GOOD, "n": 2}, headers=bearer("alpha"))
            assert answer.status_code == 400
    assert [allowance.num_choices for allowance in allowances(live)] == [0, 0]


# --- key files -------------------------------------------------------------------------------------------------------


def test_a_key_file(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("\ufeffsk-0\r\n# ours\n\nsk-1\n  sk-2 alice at-once=4 per-minute=120\nsk-3 per-minute=5\n")
    file.chmod(0o600)
    keys, warnings = read_keys("--api-key-file", file)
    assert keys == [
        ApiKey("sk-0"),
        ApiKey("sk-1"),
        ApiKey("sk-2", "alice", KeyLimits(4, 120)),
        ApiKey("sk-3", None, KeyLimits(None, 5)),
    ]
    assert warnings == []
    assert KeyLimits(None, 5).within(KeyLimits(2, 60)) == KeyLimits(2, 5)
    file.chmod(0o644)
    assert "every user" in read_keys("--api-key-file", file)[1][0]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "# nothing\n",
        "sk-secret two names\n",
        "sk-secret at-once=0\n",
        "sk-secret at-once=x\n",
        "sk-secret at-once=2 at-once=3\n",
        "sk-secret name#\n",
        "\udcff",
        "x" * 2_000_000,
    ],
)
def test_key_files_that_cannot_be_used_do_not_show_a_key(tmp_path: Path, text: str) -> None:
    file = tmp_path / "keys"
    file.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(ConfigError) as caught:
        read_keys("--api-key-file", file)
    assert str(file) in str(caught.value)
    assert "secret" not in str(caught.value)


def test_keys_that_contradict_each_other(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_text("a\n")
    two.write_text("a\nb\n")
    for api, api_file, admin, admin_file in (
        (["a"], one, [], None),
        (["a"], None, ["a"], None),
        ([], two, ["b"], None),
        (["x"], None, ["a"], one),
        (["x"], None, [], two),
        ([], tmp_path / "missing", [], None),
    ):
        with pytest.raises(ConfigError):
            KeySource(api, api_file, admin, admin_file).read()
    assert KeySource(["x"], two).read().api == (ApiKey("x"), ApiKey("a"), ApiKey("b"))
    two.write_text("b\n")
    assert KeySource(api_file=two, admin_file=one).read().admin == "a"


# --- secrets ---------------------------------------------------------------------------------------------------------


def test_no_key_shows_anywhere(start: Any, script: Any, caplog: pytest.LogCaptureFixture) -> None:
    named = ApiKey("sk-second-secret", "bob")
    settings = {"api_keys": ("sk-first-secret", named), "admin_key": "sk-admin-secret"}
    live = start(script(), **settings)
    seen = [repr(HttpSettings(**settings)), repr(live.service.settings), repr(named)]  # type: ignore[arg-type]
    with caplog.at_level(logging.DEBUG), live.http() as http:
        for key in ("sk-first-secret", "sk-second-secret", "sk-admin-secret", "sk-wrong-secret"):
            for method, path in (("POST", "/v1/chat/completions"), ("GET", "/admin/state"), ("GET", "/v1/models")):
                answer = http.request(method, path, json=GOOD if method == "POST" else None, headers=bearer(key))
                seen += [answer.text, json.dumps(dict(answer.headers))]
            seen.append(http.post("/v1/completions", content=b"{", headers=bearer(key)).text)
        seen += [http.get(path).text for path in ("/metrics", "/health", "/openapi.json", "/")]
    seen += [record.getMessage() for record in caplog.records if not record.name.startswith(("httpx", "httpcore"))]
    seen += [repr(tenant) for tenant in live.service.gate._ring.tenants.values()] + [repr(vars(live.service.gate))]
    assert any("bob" in text for text in seen)  # the name, in the access log
    for text in seen:
        assert "secret" not in text
