"""Pages of other origins: nothing without a list, exactly the listed ones with it, and nothing slips through."""

from __future__ import annotations

from typing import Any

import pytest

from surefoot.kernels.errors import ConfigError
from surefoot.server.cors import checked_origins

PAGE = "https://chat.example.com"
BODY = {"prompt": "x", "max_tokens": 1}


def preflight(http: Any, origin: str, path: str = "/v1/completions", **more: str) -> Any:
    headers = {
        "Origin": origin,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization, content-type, x-stainless-lang",
        **more,
    }
    return http.request("OPTIONS", path, headers=headers)


def allow_headers(response: Any) -> list[str]:
    return [name for name in response.headers if name.startswith("access-control-")]


def test_off_by_default(plain: Any) -> None:
    with plain.http() as http:
        refused = preflight(http, PAGE)
        read = http.get("/v1/models", headers={"Origin": PAGE})
    assert refused.status_code == 405
    assert read.status_code == 200  # the browser does not show it to the page
    assert allow_headers(refused) == allow_headers(read) == []


def test_a_listed_origin(start: Any) -> None:
    with start(cors_origins=(PAGE,), api_keys=("alpha",)).http() as http:
        asked = preflight(http, PAGE, **{"Access-Control-Request-Private-Network": "true"})
        assert asked.status_code == 204
        assert asked.headers["access-control-allow-origin"] == PAGE
        assert "POST" in asked.headers["access-control-allow-methods"]
        assert asked.headers["access-control-allow-headers"] == "authorization, content-type, x-stainless-lang"
        assert asked.headers["access-control-allow-private-network"] == "true"
        assert "access-control-allow-credentials" not in asked.headers
        for key, status in (("alpha", 200), ("wrong", 401)):  # a page may read its errors
            headers = {"Origin": PAGE, "Authorization": f"Bearer {key}", "Sec-Fetch-Site": "cross-site"}
            answer = http.post("/v1/completions", json=BODY, headers=headers)
            assert answer.status_code == status
            assert answer.headers["access-control-allow-origin"] == PAGE
            assert "x-request-id" in answer.headers["access-control-expose-headers"]
            assert answer.headers["vary"] == "Origin"


@pytest.mark.parametrize("origin", ["https://evil.example", PAGE + ".evil.example", "http://chat.example.com", "null"])
def test_other_origins_are_not_listed_ones(start: Any, origin: str) -> None:
    live = start(cors_origins=(PAGE,))
    with live.http() as http:
        asked = preflight(http, origin)
        used = http.post("/v1/completions", json=BODY, headers={"Origin": origin})
        read = http.get("/v1/models", headers={"Origin": origin})
    assert (asked.status_code, used.status_code, read.status_code) == (405, 403, 200)
    assert used.json()["error"]["code"] == "origin_not_allowed"
    assert allow_headers(asked) == allow_headers(used) == allow_headers(read) == []
    assert read.headers["vary"] == "Origin"
    assert not live.engine.submissions


def test_any_origin_when_that_is_asked_for(start: Any) -> None:
    with start(cors_origins=("*",)).http() as http:
        assert preflight(http, "app://obsidian.md").status_code == 204
        answer = http.post("/v1/completions", json=BODY, headers={"Origin": "app://obsidian.md"})
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == "app://obsidian.md"


def test_a_strange_list_of_headers_is_not_echoed(start: Any) -> None:
    with start(cors_origins=(PAGE,)).http() as http:
        asked = preflight(http, PAGE, **{"Access-Control-Request-Headers": 'x"<y>'})
    assert "access-control-allow-headers" not in asked.headers


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 202),  # no browser
        ({"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"}, 403),
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://localhost:1"}, 403),  # another server of this machine
        ({"Origin": "https://a.example", "Host": "a.example", "Sec-Fetch-Site": "same-origin"}, 202),  # behind a proxy
        ({"Origin": "http://evil.example:8000", "Host": "evil.example:8000"}, 403),  # a name bound to this machine
        ({"Origin": "http://localhost:8000", "Host": "localhost:8000"}, 202),
        ({"Origin": "http://127.0.0.1:8000", "Host": "127.0.0.1:8000", "Sec-Fetch-Site": "same-origin"}, 202),
        ({"Origin": "http://[::1]:8000", "Host": "[::1]:8000"}, 202),
    ],
)
def test_a_strangers_page_cannot_drain_an_open_server(start: Any, headers: dict[str, str], status: int) -> None:
    """A POST without a body needs no preflight: a browser sends it for any page."""
    live = start()
    with live.http() as http:
        assert http.post("/admin/drain", headers=headers).status_code == status
    assert live.service.bridge.draining == (status == 202)


def test_with_keys_or_another_address_a_name_is_no_attempt_at_anything(start: Any) -> None:
    headers = {"Origin": "http://gpu.lan:8000", "Host": "gpu.lan:8000"}
    with start(host="0.0.0.0").http() as http:
        assert http.post("/v1/completions", json=BODY, headers=headers).status_code == 200
    with start(api_keys=("a",)).http() as http:
        answer = http.post("/v1/completions", json=BODY, headers={**headers, "Authorization": "Bearer a"})
        assert answer.status_code == 200


def test_lists_of_origins() -> None:
    assert checked_origins(["https://A.example/", "https://a.example", "vscode-webview://x"], True) == (
        "https://a.example",
        "vscode-webview://x",
    )
    assert checked_origins(["*"], False) == ("*",)
    with pytest.raises(ConfigError, match="API keys"):
        checked_origins(["*"], True)
    for wrong in ("a.example", "https://a.example/path", "null", "", "https://*.example.com/", "https://u@a.example"):
        with pytest.raises(ConfigError):
            checked_origins([wrong], False)
