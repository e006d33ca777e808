"""The OpenAPI document, and every route that it lists, whoever added it: keys, errors, and schemathesis over all."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

TINY = Path(__file__).parents[1] / "data" / "oracle" / "qwen3" / "model.gguf"
KEYS = {"api_keys": ("alpha",), "admin_key": "root"}
METHODS = {"get", "post", "patch", "put", "delete"}
JSON = {"Content-Type": "application/json"}
BROKEN = {
    "nothing": b"",
    "half": b"{",
    "a list": b"[]",
    "a text": b'"x"',
    "no UTF-8": b'{"a": "\xff"}',
    "half a surrogate pair": b'{"a": "\\ud800"}',
    "NaN": b'{"a": NaN}',
    "infinity": b'{"a": -Infinity}',
    "a huge integer": b'{"a": 1' + b"0" * 5000 + b"}",
    "deep lists": b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "deep objects": b'{"a":' * 100_000,
    "a NUL": b'{"a": "\x00"}',
}

Operation = tuple[str, str, dict[str, Any]]


def operations(http: httpx.Client) -> list[Operation]:
    """Method, a path with its parameters filled in, and what the document says."""
    paths = http.get("/openapi.json").json()["paths"]
    found = [
        (method.upper(), re.sub(r"\{[^}]*\}", "x", path), operation)
        for path, item in paths.items()
        for method, operation in item.items()
        if method in METHODS
    ]
    assert len(found) >= 12
    return found


def fault(response: httpx.Response) -> dict[str, Any]:
    """The error of a response, after checking its shape."""
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert 0 < len(error["message"]) <= 1000
    assert "Traceback" not in response.text
    assert "site-packages" not in response.text
    assert response.headers["x-request-id"]
    return error


def bearer(operation: dict[str, Any]) -> dict[str, str]:
    [scheme] = operation["security"][0]
    return {"Authorization": f"Bearer {'root' if scheme == 'admin_key' else 'alpha'}"}


def test_every_route_asks_for_the_key_that_the_document_names(start: Any) -> None:
    with start(**KEYS).http() as http:
        public = set[str]()
        for method, path, operation in operations(http):
            if "security" not in operation:
                public.add(path)
                assert http.request(method, path).status_code == 200
                continue
            for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic YTpi"}):
                refused = http.request(method, path, headers=headers)
                assert refused.status_code == 401, (method, path)
                assert fault(refused)["code"] == "invalid_api_key"
            wrong_kind = {"alpha": "root", "root": "alpha"}[bearer(operation)["Authorization"].split()[1]]
            crossed = http.request(method, path, headers={"Authorization": f"Bearer {wrong_kind}"})
            assert crossed.status_code == 401, (method, path)
    assert public == {"/health", "/livez", "/readyz", "/metrics"}


@pytest.mark.parametrize("name", BROKEN)
def test_every_body_that_is_no_json_object_is_refused(start: Any, name: str) -> None:
    with start(**KEYS).http() as http:
        for method, path, operation in operations(http):
            if "requestBody" not in operation or (name == "nothing" and not operation["requestBody"]["required"]):
                continue
            for chunked in (False, True):
                data = BROKEN[name]
                headers = {**JSON, **bearer(operation)}
                answer = http.request(method, path, content=iter([data]) if chunked else data, headers=headers)
                assert answer.status_code == 400, (method, path, answer.text)
                assert fault(answer)["type"] == "invalid_request_error"


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "", "multipart/form-data", "\xff"])
def test_every_other_content_type_is_refused(start: Any, kind: str) -> None:
    with start(**KEYS).http() as http:
        for method, path, operation in operations(http):
            if "requestBody" in operation:
                headers = [(b"Content-Type", kind.encode("latin-1"))] if kind else []
                headers += [(name.encode(), value.encode()) for name, value in bearer(operation).items()]
                answer = http.request(method, path, content=b"{}", headers=headers)
                assert answer.status_code == 415, (method, path)
                fault(answer)


def test_every_body_has_a_limit(start: Any) -> None:
    with start(**KEYS, max_body_bytes=1000).http() as http:
        for method, path, operation in operations(http):
            if "requestBody" in operation:
                for content in (b"{" + b" " * 2000, iter([b"{", b" " * 2000])):
                    answer = http.request(method, path, content=content, headers={**JSON, **bearer(operation)})
                    assert answer.status_code == 413, (method, path)
                    assert fault(answer)["code"] == "body_too_large"


def test_every_other_method_is_refused_with_the_right_ones(start: Any) -> None:
    with start(**KEYS).http() as http:
        paths = http.get("/openapi.json").json()["paths"]
        for path in {path for _, path, _ in operations(http)}:
            methods = {
                method.upper()
                for pattern, item in paths.items()
                for method in METHODS & set(item)
                if re.fullmatch(re.sub(r"\{[^}]*\}", "[^/]+", pattern), path)
            }
            for method in {"GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PROPFIND"} - methods:
                answer = http.request(method, path, headers={"Authorization": "Bearer alpha"})
                assert answer.status_code == 405, (method, path)
                assert fault(answer)["code"] == "method_not_allowed"
                assert set(answer.headers["allow"].split(", ")) - {"HEAD"} <= methods, (method, path)
                assert set(answer.headers["allow"].split(", ")) & methods, (method, path)


def test_validation_errors_are_short_and_show_nothing_of_the_server(real: Any) -> None:
    wrong = {f"field{index}": index for index in range(500)} | {"model": {"a": ["x" * 10_000] * 50}}
    wrong |= {name: [{"x": [1] * 100}] for name in ("messages", "prompt", "tokens", "input", "stop", "n", "stream")}
    with real.http() as http:
        for method, path, operation in operations(http):
            if "requestBody" in operation:
                answer = http.request(method, path, json=wrong)
                assert answer.status_code in (400, 422), (method, path, answer.text)
                fault(answer)
                assert len(answer.content) < 2000
                for word in ("surefoot.server", "/root", "/home", ".py", "pydantic", "Request."):
                    assert word not in answer.text, (method, path)


def test_the_document_is_whole(plain: Any) -> None:
    with plain.http() as http:
        document = http.get("/openapi.json").json()
        for _, path, operation in operations(http):
            responses = operation["responses"]
            assert [status for status in responses if status.startswith("2")], path
            if "requestBody" in operation:
                assert {"400", "413", "415"} <= set(responses), path
            for status, response in responses.items():
                assert "x-request-id" in response["headers"]
                if not status.startswith("2") and path not in ("/health", "/livez", "/readyz"):
                    schema = response["content"]["application/json"]["schema"]
                    assert schema == {"$ref": "#/components/schemas/Error"}
    text = json.dumps(document)
    assert not re.search(r'"(ge|gt|le|lt)": -?\d', text)
    for reference in set(re.findall(r'"\$ref": "#/components/schemas/([^"]+)"', text)):
        assert reference in document["components"]["schemas"], reference
    streaming = document["paths"]["/v1/chat/completions"]["post"]["responses"]["200"]["content"]
    assert set(streaming) == {"application/json", "text/event-stream"}
    tokens = document["components"]["schemas"]["DetokenizeRequest"]["properties"]["tokens"]
    assert (tokens["items"]["minimum"], tokens["items"]["exclusiveMaximum"]) == (0, 2**31)


@pytest.mark.parametrize("field", ["include_obfuscation", "continuous_usage_stats"])
@pytest.mark.parametrize("value", [0, 0.0, True, "false"])
def test_off_is_false_and_nothing_else(plain: Any, field: str, value: Any) -> None:
    body = {"prompt": "x", "max_tokens": 1, "stream": True, "stream_options": {field: value}}
    with plain.http() as http:
        answer = http.post("/v1/completions", json=body)
        assert answer.status_code == 400
        assert fault(answer)["param"] == f"stream_options.{field}"
        assert http.post("/v1/completions", json={**body, "stream_options": {field: False}}).status_code == 200


# --- schemathesis ----------------------------------------------------------------------------------------------------

# Off: that every body which fits its schema is answered. Which fields go together, what this model's template takes and
# how long its context is are no matter of a schema; such a request is a 400 that says so.
CHECKS_OFF = "positive_data_acceptance"
CONFIG = """
headers = { Authorization = "Bearer alpha" }
[[operations]]
include-path-regex = "^/admin"
headers = { Authorization = "Bearer root" }
"""
needs_schemathesis = pytest.mark.skipif(
    importlib.util.find_spec("schemathesis") is None, reason="needs schemathesis, which is not installed"
)


def explore(url: str, folder: Path, *flags: str) -> str:
    """A run of schemathesis that found nothing; what it reported."""
    config = folder / "schemathesis.toml"
    config.write_text(CONFIG)
    command = [sys.executable, "-m", "schemathesis.cli", "--config-file", str(config), "--no-color"]
    command += ["run", f"{url}/openapi.json", "--exclude-checks", CHECKS_OFF, "--seed", "1", "--continue-on-failure"]
    done = subprocess.run([*command, *flags], cwd=folder, capture_output=True, text=True, timeout=280, check=False)
    report = done.stdout + done.stderr
    assert done.returncode == 0, report[-12_000:]
    return report


def explore_all(served: Any, folder: Path, *flags: str) -> None:
    """Explores a server on a tiny model; the drain by itself and last, as nothing is answered after it."""
    server = served(TINY, 8 << 20, "--ctx-size", "96", "--threads", "1", "--api-key", "alpha", "--admin-key", "root")
    threads = server.process.num_threads()
    report = explore(server.url, folder, "--exclude-path", "/admin/drain", *flags)
    tested = re.search(r"Selected: (\d+)/(\d+)\s+Tested: (\d+)", report)
    assert tested is not None, report
    assert int(tested[1]) == int(tested[2]) - 1 == int(tested[3])
    state = httpx.get(f"{server.url}/admin/state", headers={"Authorization": "Bearer root"}).json()
    assert (state["server"]["requests"], state["engine"]["requests"]) == (0, [])
    assert not any(blocks["held"] for blocks in state["engine"]["kv_blocks"].values())
    assert server.process.num_threads() <= threads + 8  # the tokenizer's workers
    explore(server.url, folder, "--include-path", "/admin/drain", "--max-examples", "5", "--phases", "fuzzing")


@needs_schemathesis
@pytest.mark.timeout(120)
def test_schemathesis_finds_nothing(served: Any, tmp_path: Path) -> None:
    explore_all(served, tmp_path, "--phases", "fuzzing", "--max-examples", "8", "--no-shrink")


@needs_schemathesis
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_schemathesis_finds_nothing_in_minutes(served: Any, tmp_path: Path) -> None:
    """Every phase: also each boundary of each field, and sequences of calls."""
    explore_all(served, tmp_path, "--phases", "coverage,fuzzing,stateful", "--max-time", "150")
