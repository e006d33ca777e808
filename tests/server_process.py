"""Server processes as users start them, for tests that look at what a process holds."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

MIB = 1 << 20


class Process:
    """A server process and what it holds."""

    def __init__(self, model: Path, kv_memory: int, log: Path, *flags: str) -> None:
        command = [sys.executable, "-m", "surefoot.server", "serve", str(model), "--port", "0"]
        started = time.monotonic()
        with log.open("w") as sink:
            command += ["--kv-memory", str(kv_memory), *flags]
            self.popen = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=sink)
        while "listening on " not in (text := log.read_text()):
            assert self.popen.poll() is None, text
            time.sleep(0.01)
        self.ready_s = time.monotonic() - started
        self.url = text.split("listening on ")[1].split()[0]
        self.process = psutil.Process(self.popen.pid)

    def resident(self) -> int:
        """Bytes of memory that the process holds now."""
        return self.process.memory_info().rss

    def state(self) -> dict[str, Any]:
        """What the server says of itself."""
        return httpx.get(f"{self.url}/admin/state").json()

    def idle(self) -> bool:
        """Nothing is being served and no block is held."""
        state = self.state()
        held = [blocks["held"] for blocks in state["engine"]["kv_blocks"].values()]
        return state["server"]["requests"] == 0 and not any(held) and not state["engine"]["requests"]


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Callable[..., Process]]:
    """Starts servers; each must end cleanly after the test."""
    running: list[Process] = []

    def begin(model: Path, kv_memory: int, *flags: str) -> Process:
        running.append(Process(model, kv_memory, tmp_path / f"log{len(running)}", *flags))
        return running[-1]

    yield begin
    for server in running:
        server.popen.terminate()
        assert server.popen.wait(timeout=30) == 0
