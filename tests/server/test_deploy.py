"""deploy/ as the server reads it: variables and arguments that it knows, and time enough to finish running streams."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from surefoot.kernels.cpu.backend import ISA_VARIABLE
from surefoot.kernels.errors import ConfigError
from surefoot.server.cli import app, known_variables
from surefoot.server.foreign import check_environment
from surefoot.server.run import LAST_WORDS_S
from surefoot.server.settings import HttpSettings

DEPLOY = Path(__file__).parents[2] / "deploy"
END_S = HttpSettings().drain_s + LAST_WORDS_S


def seconds(text: str) -> int:
    match = re.fullmatch(r"(\d+)s?", text)
    assert match is not None
    return int(match[1])


def parse(arguments: Sequence[str]) -> dict[str, Any]:
    """What the command reads in arguments; it raises for those it does not know."""
    command, *rest = arguments
    return typer.main.get_command(app).commands[command].make_context(command, rest).params  # type: ignore[attr-defined]


@pytest.fixture
def manifests() -> dict[str, Any]:
    documents = yaml.safe_load_all((DEPLOY / "kubernetes" / "surefoot.yaml").read_text())
    return {document["kind"]: document for document in documents}


def links(service: str) -> dict[str, str]:
    """What Kubernetes sets in every pod of a namespace that has such a service."""
    name = service.upper().replace("-", "_")
    return {f"{name}_SERVICE_HOST": "10.0.0.7", f"{name}_PORT": "tcp://10.0.0.7:8000"}


def test_a_pod_starts_beside_its_own_service(manifests: dict[str, Any]) -> None:
    pod = manifests["Deployment"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    environment = {entry["name"]: entry.get("value", "secret") for entry in container["env"]}
    linked = links(manifests["Service"]["metadata"]["name"])
    with pytest.raises(ConfigError, match="enableServiceLinks"):
        check_environment({**environment, **linked}, known_variables())
    if pod.get("enableServiceLinks", True):
        environment |= linked
    assert check_environment(environment, known_variables()) == []
    assert parse(container["args"])["kv_memory"] == 4 * 2**30


def test_the_choice_of_an_instruction_set_is_a_known_variable() -> None:
    assert check_environment({ISA_VARIABLE: "avx2"}, known_variables()) == []


def test_a_pod_that_drains_takes_no_requests_and_is_not_taken_for_dead(manifests: dict[str, Any], start: Any) -> None:
    (container,) = manifests["Deployment"]["spec"]["template"]["spec"]["containers"]
    paths = {name: container[f"{name}Probe"]["httpGet"]["path"] for name in ("startup", "readiness", "liveness")}
    live = start()
    with live.http() as http:
        assert {http.get(path).status_code for path in paths.values()} == {200}
        assert http.post("/admin/drain").status_code == 202
        assert http.get(paths["readiness"]).status_code == 503
        assert http.get(paths["liveness"]).status_code == 200
        live.engine.health_now.ok = False
        assert http.get(paths["liveness"]).status_code == 503


def test_supervisors_wait_for_running_streams(manifests: dict[str, Any]) -> None:
    pod = manifests["Deployment"]["spec"]["template"]["spec"]
    before = pod["containers"][0]["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert pod["terminationGracePeriodSeconds"] > before + END_S
    compose = yaml.safe_load((DEPLOY / "docker-compose.yml").read_text())
    assert seconds(compose["services"]["surefoot"]["stop_grace_period"]) > END_S
    unit = (DEPLOY / "systemd" / "surefoot.service").read_text()
    assert seconds(dict(re.findall(r"^(\w+)=(.*)$", unit, re.MULTILINE))["TimeoutStopSec"]) > END_S


def test_the_unit_has_keys_read_again() -> None:
    unit = (DEPLOY / "systemd" / "surefoot.service").read_text()
    assert re.findall(r"^ExecReload=(.*)$", unit, re.MULTILINE) == ["/bin/kill -HUP $MAINPID"]
    assert re.search(r"^#Environment=SUREFOOT_API_KEY_FILE=/etc/", unit, re.MULTILINE)  # no copy


def test_other_files_set_variables_that_are_read() -> None:
    compose = yaml.safe_load((DEPLOY / "docker-compose.yml").read_text())
    unit = (DEPLOY / "systemd" / "surefoot.service").read_text()
    image = (DEPLOY.parent / "Dockerfile").read_text()
    for given in (
        compose["services"]["surefoot"]["environment"],
        dict(re.findall(r"^#?Environment=(\w+)=(.*)$", unit, re.MULTILINE)),
        dict(re.findall(r"(SUREFOOT_\w+)=(\S+)", image)),
    ):
        assert given and check_environment(given, known_variables()) == []
