"""The official npm client, installed into a temporary folder."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).with_name("openai.mjs")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the script and the package."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("node and npm are not installed")
    folder = tmp_path_factory.mktemp("npm")
    command = ["npm", "install", "--no-audit", "--no-fund", "--silent", "openai@6"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)
    if done.returncode:
        pytest.skip(f"the openai package could not be installed: {done.stderr.strip()[-200:]}")
    shutil.copy(SCRIPT, folder)
    return folder


@pytest.fixture(scope="module")
def result(folder: Path, served: Any) -> dict[str, Any]:
    """What the script found."""
    command = ["node", SCRIPT.name, served.url, served.key, served.model]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OPENAI_")}
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=150, env=environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_models_chat_and_streams(result: dict[str, Any]) -> None:
    assert result["models"] == ["qwen"]
    assert "Paris" in result["chat"]
    assert result["streamed"] == result["chat"]
    assert result["usage"]["total_tokens"] == result["usage"]["prompt_tokens"] + result["usage"]["completion_tokens"]
    assert result["seedIsExact"]


def test_the_tool_runner_calls_and_hands_back(result: dict[str, Any]) -> None:
    question, called, told = result["toolMessages"][:3]
    assert [message["role"] for message in (question, called, told)] == ["user", "assistant", "tool"]
    assert called["content"] is None
    assert json.loads(called["tool_calls"][0]["function"]["arguments"]) == {"fruit": "apples"}
    assert json.loads(told["content"]) == {"fruit": "apples", "pieces": 12}
    assert "12" in result["toolAnswer"]


def test_a_schema(result: dict[str, Any]) -> None:
    assert set(result["parsed"]) == {"city", "population"}
    assert isinstance(result["parsed"]["population"], int)


def test_embeddings(result: dict[str, Any]) -> None:
    lengths = [math.sqrt(sum(value * value for value in vector)) for vector in result["embeddings"]]
    assert [round(length, 6) for length in lengths] == [1.0, 1.0]


def test_responses(result: dict[str, Any]) -> None:
    assert "Rome" in result["response"]
    assert result["responseDeltas"] == result["response"]


def test_an_error(result: dict[str, Any]) -> None:
    error = result["error"]
    assert (error["name"], error["status"], error["param"]) == ("BadRequestError", 400, "temperature")
