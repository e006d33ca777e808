"""Speculation over HTTP: the live policy, a request's own wishes, the report, and the flags."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

TINY = Path(__file__).parents[1] / "data" / "oracle" / "qwen3" / "model.gguf"
REPEATING = [5, 6, 7, 8, 9, 10, 11] * 6


@pytest.fixture
def client(real: Any) -> Iterator[httpx.Client]:
    with real.http() as client:
        yield client


def continued(client: httpx.Client, **fields: Any) -> dict[str, Any]:
    body = {"prompt": REPEATING, "max_tokens": 40, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
    answer = client.post("/v1/completions", json=body | fields)
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]


def test_the_policy_is_read_and_changed_live(client: httpx.Client) -> None:
    before = client.get("/admin/speculation").json()
    assert before["policy"]["enabled"] is True
    assert before["policy"]["governor"] == "cost"
    changed = client.patch("/admin/speculation", json={"draft_tokens": 3, "governor": "off"})
    assert changed.status_code == 200
    policy = changed.json()["policy"]
    assert (policy["draft_tokens"], policy["governor"]) == (3, "off")
    assert policy["generation"] == before["policy"]["generation"] + 1
    restored = client.patch("/admin/speculation", json={"draft_tokens": None, "governor": "cost"})
    assert restored.json()["policy"]["draft_tokens"] is None


@pytest.mark.parametrize(
    ("body", "param"),
    [({"nope": 1}, "nope"), ({"draft_tokens": 65}, "draft_tokens"), ({"governor": "x"}, "governor")],
)
def test_a_malformed_change_is_422_and_changes_nothing(client: httpx.Client, body: object, param: str) -> None:
    before = client.get("/admin/speculation").json()["policy"]
    answer = client.patch("/admin/speculation", json=body)
    assert answer.status_code == 422
    assert answer.json()["error"]["param"] == param
    assert client.get("/admin/speculation").json()["policy"] == before


def test_no_window_changes_a_token_and_the_report_adds_up(client: httpx.Client) -> None:
    client.patch("/admin/speculation", json={"enabled": False})
    expected = continued(client)
    assert "speculation" not in expected
    for window in (1, 4, 16):
        client.patch("/admin/speculation", json={"enabled": True, "governor": "off", "draft_tokens": window})
        choice = continued(client, speculation={"report": True})
        assert choice["token_ids"] == expected["token_ids"]
        report = choice["speculation"]
        assert sum(report["accepted_per_position"]) == report["accepted_tokens"] <= report["verified_tokens"]
        steps = sum(report["steps"].values())  # each gives one more token; the prefill gave the first
        assert report["accepted_tokens"] + steps == 39
    client.patch("/admin/speculation", json={"enabled": True, "governor": "cost", "draft_tokens": None})


def test_a_request_can_leave_speculation_out(client: httpx.Client) -> None:
    client.patch("/admin/speculation", json={"governor": "off", "draft_tokens": 4})
    report = continued(client, speculation={"enabled": False, "report": True})["speculation"]
    assert report["verified_tokens"] == 0
    client.patch("/admin/speculation", json={"governor": "cost", "draft_tokens": None})


@pytest.mark.parametrize("wish", [{"window": 3}, {"draft_tokens": -1}, {"enabled": 1}])
def test_an_unknown_wish_is_400(client: httpx.Client, wish: dict[str, object]) -> None:
    answer = client.post("/v1/completions", json={"prompt": "a", "speculation": wish})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == f"speculation.{next(iter(wish))}"


@pytest.mark.parametrize("flag", [("--spec-type", "medusa"), ("--spec-governor", "blind")])
def test_unknown_names_end_the_start_with_the_known_ones(flag: tuple[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "surefoot.server", "serve", str(TINY), "--port", "0", *flag],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("surefoot: unknown")
    assert "known:" in done.stderr
