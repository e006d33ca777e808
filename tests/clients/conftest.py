"""One server process with Qwen2.5-Coder-0.5B-Instruct, for the clients that people really use."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from real_models import CODER, real_model

from surefoot.kernels.registry import has_native_module

KEY = "sf-clients"  # so that a client which does not send it is found out


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything here needs the model, and with it the slow marker."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.slow)


@dataclass(frozen=True)
class Served:
    """Where the server is, and what a client must know."""

    url: str  # ends in /v1
    model: str = "qwen"
    key: str = KEY


@pytest.fixture(scope="session")
def served() -> Iterator[Served]:
    model = real_model(CODER)
    if not has_native_module():
        pytest.skip("the native module is not built")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("SUREFOOT_", "TS_"))}
    arguments = ["--port", "0", "--ctx-size", "4096", "--served-model-name", "qwen", "--api-key", KEY]
    process = subprocess.Popen(
        [sys.executable, "-m", "surefoot.server", "serve", str(model), *arguments],
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    try:
        line = next((line for line in process.stderr if line.startswith("listening on ")), None)
        assert line is not None, "the server did not start"
        yield Served(f"{line.split()[2]}/v1")
    finally:
        process.terminate()
        process.communicate(timeout=60)
    assert process.returncode == 0, "the server did not end in order"
