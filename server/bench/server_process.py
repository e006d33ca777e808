"""A Surefoot server as a child process, and what the machine says of it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from .client import BenchError

_LISTENING = re.compile(r"listening on (http://\S+)")
_START_S = 120.0
_STOP_S = 30.0


@dataclass(frozen=True, slots=True)
class ServerProcess:
    """One that listens."""

    url: str
    pid: int

    def loop_seconds(self) -> float | None:
        """CPU time of the process's first thread, which runs the event loop; None where the system does not say."""
        try:
            return int(Path(f"/proc/{self.pid}/task/{self.pid}/schedstat").read_text().split()[0]) / 1e9
        except (OSError, ValueError, IndexError):
            return None


@contextmanager
def served(model: Path, options: Sequence[str]) -> Generator[ServerProcess]:
    """Serves a file on a free port until the block ends. Raises BenchError if it does not start.

    Variables that configure servers are not passed on: only `options` count.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SUREFOOT_")}
    command = [sys.executable, "-m", "surefoot.server", "serve", str(model), "--port", "0", *options]
    with (
        tempfile.NamedTemporaryFile("w+", suffix=".log") as log,
        subprocess.Popen(command, stderr=log, env=environment) as process,
    ):
        try:
            yield ServerProcess(_address(process, Path(log.name)), process.pid)
        finally:
            process.terminate()
            try:
                process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()


def _address(process: subprocess.Popen[bytes], log: Path) -> str:
    """Where it listens, once it says so."""
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline:
        ended = process.poll() is not None
        said = log.read_text()
        if found := _LISTENING.search(said):
            return found[1]
        if ended:
            raise BenchError(f"the server did not start: {' '.join(said.split())[-300:]}")
        time.sleep(0.05)
    raise BenchError(f"the server did not start within {_START_S:g} s")
