"""What operators build on: the metrics by Prometheus' own rules, and that deploy/ asks only for what there is."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from surefoot.engine.speculation.governor.cost import CostGovernor

DEPLOY = Path(__file__).parents[2] / "deploy"
DASHBOARDS = sorted((DEPLOY / "grafana" / "dashboards").glob("*.json"))
NAME = re.compile(r"\bsurefoot_[a-z0-9_]+")

needs_promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool (apt install prometheus)")
needs_prometheus = pytest.mark.skipif(
    shutil.which("prometheus") is None, reason="needs prometheus (apt install prometheus)"
)


def generate(live: Any, **more: Any) -> None:
    """Some traffic: enough repetition to be drafted, a stream, an error, a field that nobody knows."""
    body = {"prompt": "a b c d a b c d a b c d", "max_tokens": 40, "ignore_eos": True, "temperature": 0, **more}
    with live.http() as http:
        for stream in (False, True):
            assert http.post("/v1/completions", json={**body, "stream": stream}).status_code == 200
        assert http.post("/v1/completions", json={**body, "temperature": "x"}).status_code == 400
        assert http.post("/v1/completions", json={**body, "made_up": 1}).status_code == 200
        assert http.get("/v1/nothing").status_code == 404


def scrape(live: Any) -> str:
    with live.http() as http:
        answer = http.get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain; version=")
    return answer.text


def samples(text: str) -> set[str]:
    """Every name that a query can find. A family that has labels but no sample yet has the names it will have."""
    found = set[str]()
    for family in text_string_to_metric_families(text):
        found |= {sample.name for sample in family.samples} or {family.name, f"{family.name}_total"}
    return found


def promtool(*arguments: str, text: str | None = None) -> None:
    done = subprocess.run(["promtool", *arguments], input=text, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert not done.stderr, done.stderr  # its advice about names and help texts


@needs_promtool
def test_promtool_has_nothing_to_say(start: Any, drafting: Any) -> None:
    fresh = start()
    promtool("check", "metrics", text=scrape(fresh))
    generate(fresh, temperature=0)
    promtool("check", "metrics", text=scrape(fresh))
    promtool("check", "metrics", text=scrape(drafting))
    generate(drafting, speculation={"enabled": True, "report": True})
    with drafting.http() as http:
        assert http.patch("/admin/speculation", json={"governor": "off", "draft_tokens": 4}).status_code == 200
    generate(drafting)
    text = scrape(drafting)
    with drafting.http() as http:
        assert http.patch("/admin/speculation", json={"governor": "cost", "draft_tokens": None}).status_code == 200
    promtool("check", "metrics", text=text)
    assert re.search(r"^surefoot_spec_accepted_tokens_total\{[^}]*\} [1-9]", text, re.M)


@needs_promtool
def test_promtool_accepts_what_is_deployed() -> None:
    promtool("check", "rules", str(DEPLOY / "prometheus" / "alerts.yml"))
    promtool("check", "config", str(DEPLOY / "prometheus" / "prometheus.yml"))


def expressions() -> list[str]:
    """Every query of the dashboards."""
    found = [
        target["expr"]
        for path in DASHBOARDS
        for panel in json.loads(path.read_text())["panels"]
        for target in panel.get("targets", ())
    ]
    assert len(found) > 20
    return found


def test_what_deploy_asks_for_exists(drafting: Any, eventually: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # Without a verify there is no rate of verifies, and none looks like paying at this model's prices.
    monkeypatch.setattr(CostGovernor, "rates", (0.01, 0.02))
    asked = {name for expression in expressions() for name in NAME.findall(expression)}
    for path in sorted([*DEPLOY.glob("prometheus/*.yml"), *DEPLOY.glob("kubernetes/*.yaml")]):
        asked |= set(NAME.findall(path.read_text()))
    assert len(asked) > 15

    def missing() -> set[str]:
        generate(drafting)
        return asked - samples(scrape(drafting))

    assert eventually(lambda: not missing()), missing()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def prometheus(drafting: Any, tmp_path: Path) -> Iterator[httpx.Client]:
    """A Prometheus that scrapes a live server with the deployed rules, every second."""
    target = drafting.url.removeprefix("http://")
    config = (DEPLOY / "prometheus" / "prometheus.yml").read_text()
    for there, here in (
        ("scrape_interval: 5s", "scrape_interval: 1s"),
        ("evaluation_interval: 15s", "evaluation_interval: 1s"),
        ("surefoot:8000", target),
    ):
        assert there in config
        config = config.replace(there, here)
    (tmp_path / "prometheus.yml").write_text(config)
    (tmp_path / "alerts.yml").write_text((DEPLOY / "prometheus" / "alerts.yml").read_text())
    port = free_port()
    command = ["prometheus", f"--config.file={tmp_path}/prometheus.yml", f"--storage.tsdb.path={tmp_path}/data"]
    command += [f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn"]
    with (tmp_path / "log").open("w") as log, httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=10) as http:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=tmp_path)
        try:
            yield http
        finally:
            process.terminate()
            process.wait(timeout=30)


def query(prometheus: httpx.Client, expression: str) -> list[Any]:
    answer = prometheus.get("/api/v1/query", params={"query": expression}).json()
    assert answer["status"] == "success", (expression, answer)
    result = answer["data"]["result"]
    assert isinstance(result, list)
    return result


@needs_prometheus
@pytest.mark.slow
@pytest.mark.timeout(180)
def test_prometheus_scrapes_a_live_server(prometheus: httpx.Client, drafting: Any, eventually: Any) -> None:
    def is_up() -> bool:
        try:
            if prometheus.get("/-/ready").status_code != 200:
                return False
        except httpx.TransportError:
            return False
        return [sample["value"][1] for sample in query(prometheus, 'up{job="surefoot"}')] == ["1"]

    assert eventually(is_up, 60)
    with drafting.http() as http:
        before = http.get("/metrics").text
        count = re.search(r"^surefoot_generation_tokens_total (\S+)", before, re.M)
        assert count is not None
        http.patch("/admin/speculation", json={"governor": "off"})  # drafts whatever steps cost while tests run
        generate(drafting, max_tokens=25)
        http.patch("/admin/speculation", json={"governor": "cost"})
    expected = float(count[1]) + 75

    def has_counted() -> bool:
        found = query(prometheus, "surefoot_generation_tokens_total")
        return [float(sample["value"][1]) for sample in found] == [expected]

    assert eventually(has_counted, 30)
    generate(drafting)  # a rate needs two points
    for expression in expressions():
        asked = expression.replace("$__rate_interval", "1m")
        found = eventually(lambda asked=asked: query(prometheus, asked), 20)
        names = NAME.findall(expression)
        # What nothing set off here (a park, a preemption) has a rate of 0; a governor that is not armed has no value.
        assert found or all("governor" in name or "spec_accepted_per" in name for name in names), expression
    rules = prometheus.get("/api/v1/rules").json()["data"]["groups"]
    assert all(rule["health"] != "err" for group in rules for rule in group["rules"])
    assert not query(prometheus, 'ALERTS{alertstate="firing"}')
