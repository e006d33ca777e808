"""The `surefoot` command as a process: start, errors, signals, what it imports."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import typer

from surefoot.kernels.registry import has_native_module
from surefoot.server.cli import known_variables, main
from surefoot.server.settings import byte_size

MODEL = Path(__file__).parents[1] / "data" / "oracle" / "qwen3" / "model.gguf"
SMALL = ["--kv-memory", "8MiB", "--port", "0"]


def clean_environment(**extra: str) -> dict[str, str]:
    return {**{name: value for name, value in os.environ.items() if not name.startswith(("SUREFOOT_", "TS_"))}, **extra}


@dataclass
class Ended:
    """What a command left behind."""

    code: int
    out: str
    err: str


Run = Callable[..., Ended]


@pytest.fixture
def surefoot(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Run]:
    """Runs a command that ends by itself, in this process: the entry point of the console script."""

    def run(*arguments: str, **environment: str) -> Ended:
        with monkeypatch.context() as patch:
            for name in os.environ:
                if name.startswith(("SUREFOOT_", "TS_")):
                    patch.delenv(name)
            for name, value in environment.items():
                patch.setenv(name, value)
            with pytest.raises(SystemExit) as caught:
                main(arguments)
        captured = capsys.readouterr()
        code = caught.value.code
        return Ended(code if isinstance(code, int) else 0, captured.out, captured.err)

    interval = sys.getswitchinterval()
    yield run
    sys.setswitchinterval(interval)


class Served:
    """A server process that listens."""

    def __init__(self, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "surefoot.server", "serve", str(MODEL), *SMALL, *arguments],
            env=clean_environment(),
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stderr is not None
        self.banner = ""
        for line in self.process.stderr:
            self.banner += line
            if line.startswith("listening on "):
                self.url = line.split()[2]
                break
        else:
            pytest.fail(f"the server did not start:\n{self.banner}")
        self.http = httpx.Client(base_url=self.url, timeout=30)

    def end(self, timeout_s: float = 30) -> int:
        """The exit code, once the process has ended; its remaining output joins the banner."""
        _, rest = self.process.communicate(timeout=timeout_s)
        self.banner += rest
        return self.process.returncode


@pytest.fixture
def serve() -> Iterator[Any]:
    """Starts server processes; none survives the test."""
    started: list[Served] = []

    def begin(*arguments: str) -> Served:
        started.append(Served(*arguments))
        return started[-1]

    yield begin
    for served in started:
        served.http.close()
        if served.process.poll() is None:
            served.process.kill()
            served.process.communicate()


def test_banner_answer_and_quiet_exit(serve: Any) -> None:
    served = serve("--served-model-name", "mine,other", "--threads", "1", "--ctx-size", "512")
    body = {"model": "other", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}
    answer = served.http.post("/v1/chat/completions", json=body).json()
    assert answer["usage"]["completion_tokens"] <= 3
    assert answer["system_fingerprint"] in served.banner
    assert "mine, other" in served.banner
    assert "512 tokens" in served.banner
    served.process.send_signal(signal.SIGINT)
    assert served.end() == 0
    assert "Traceback" not in served.banner


def test_a_log_that_nobody_reads_any_more_stops_nothing(serve: Any) -> None:
    served = serve()
    served.process.stderr.close()  # as `surefoot serve 2>&1 | head` does
    assert served.http.get("/health").status_code == 200
    served.http.close()
    served.process.send_signal(signal.SIGTERM)
    assert served.process.wait(timeout=30) == 0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_under_the_log_stops_nothing() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    command = [sys.executable, "-m", "surefoot.server", "serve", str(MODEL), "--kv-memory", "8MiB", "--port", port]
    with Path("/dev/full").open("w") as full:
        process = subprocess.Popen(command, env=clean_environment(), stderr=full)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", transport=httpx.HTTPTransport(retries=8)) as http:
            assert http.get("/health").status_code == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == 0
    finally:
        process.kill()
        process.wait()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_output_that_cannot_be_written_is_one_line_or_silence() -> None:
    command = [sys.executable, "-m", "surefoot.server", "inspect", str(MODEL)]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            command, env=clean_environment(), stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False
        )
    assert (done.returncode, done.stderr) == (1, "surefoot: cannot write: No space left on device\n")
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        command, env=clean_environment(), stdout=writer, stderr=subprocess.PIPE, text=True, timeout=60, check=False
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, "")


def stream_of(served: Served, tokens: int) -> Iterator[str]:
    """Lines of a stream that takes a while."""
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": tokens, "ignore_eos": True, "stream": True}
    with served.http.stream("POST", "/v1/chat/completions", json=body) as response:
        assert response.status_code == 200
        yield from response.iter_lines()


def test_sigterm_lets_streams_end_and_refuses_new_requests(serve: Any) -> None:
    served = serve()
    lines = stream_of(served, 1500)
    next(lines)
    served.process.send_signal(signal.SIGTERM)
    refused = None
    deadline = time.monotonic() + 10
    with httpx.Client(base_url=served.url, timeout=10) as other:
        while time.monotonic() < deadline and (refused is None or refused.status_code != 503):
            refused = other.post("/v1/completions", json={"prompt": "x", "max_tokens": 1})
    assert refused is not None
    assert refused.status_code == 503
    assert "retry-after" in refused.headers
    events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    assert events[-1]["choices"][0]["finish_reason"] == "length"
    assert served.end() == 0


def test_drain_deadline_ends_what_is_left(serve: Any) -> None:
    served = serve("--drain-timeout", "0.2", "--ctx-size", "2048")
    lines = stream_of(served, 2000)
    next(lines)
    served.process.send_signal(signal.SIGTERM)
    rest = list(lines)
    assert "event: error" in rest
    assert rest[-2] == "data: [DONE]"
    assert served.end() == 0


def test_second_signal_stops_at_once(serve: Any) -> None:
    served = serve("--drain-timeout", "1000")
    lines = stream_of(served, 2000)
    next(lines)
    served.process.send_signal(signal.SIGTERM)
    time.sleep(0.2)
    served.process.send_signal(signal.SIGTERM)
    started = time.monotonic()
    served.end()
    assert time.monotonic() - started < 8
    assert "Traceback" not in served.banner


def test_an_open_server_that_others_reach_says_so(serve: Any, tmp_path: Path) -> None:
    open_to_all = serve("--host", "0.0.0.0")
    assert "warning: no --api-key" in open_to_all.banner
    keys = tmp_path / "keys"
    keys.write_text("sk-in-a-file alice per-minute=1\n")
    keys.chmod(0o604)
    closed = serve("--host", "0.0.0.0", "--api-key-file", str(keys))
    assert "warning: no --api-key" not in closed.banner
    assert "every user of this machine" in closed.banner
    port = closed.url.rpartition(":")[2]
    headers = {"Authorization": "Bearer sk-in-a-file"}
    answers = [httpx.post(f"http://127.0.0.1:{port}/tokenize", json={"prompt": "x"}, headers=headers) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [200, 429]
    closed.process.send_signal(signal.SIGTERM)
    closed.end()
    assert "429" in closed.banner
    assert "alice" in closed.banner
    assert "sk-in-a-file" not in closed.banner


@pytest.mark.skipif(not has_native_module(), reason="the reference backend is torch")
def test_serving_imports_no_torch(serve: Any) -> None:
    served = serve()
    served.http.post("/v1/completions", json={"prompt": "x", "max_tokens": 1})
    maps = Path(f"/proc/{served.process.pid}/maps")
    if not maps.exists():
        pytest.skip("needs /proc")
    assert "libtorch" not in maps.read_text()


def test_commands_that_do_not_serve_import_no_web_framework() -> None:
    code = "import sys, surefoot.server.cli, surefoot.models.inspect; print('fastapi' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "False"


def test_importing_the_app_is_light() -> None:
    code = (
        "import sys, surefoot.server.run, surefoot.server.launch;"
        "print([name for name in ('torch', 'transformers', 'pandas', 'scipy') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


def test_a_start_error_of_the_process_is_one_line_and_code_2() -> None:
    command = [sys.executable, "-m", "surefoot.server", "serve", "/nowhere/model.gguf", "--port", "0"]
    done = subprocess.run(command, env=clean_environment(), capture_output=True, text=True, timeout=60, check=False)
    assert "/nowhere/model.gguf" in one_line(Ended(done.returncode, done.stdout, done.stderr))


def one_line(ended: Ended) -> str:
    """The only line of a start error."""
    lines = [line for line in ended.err.splitlines() if line]
    assert ended.code == 2, ended.err
    assert len(lines) == 1, ended.err
    assert lines[0].startswith("surefoot: ")
    return lines[0]


def test_files_that_cannot_be_served(surefoot: Run, tmp_path: Path) -> None:
    torn = tmp_path / "torn.gguf"
    torn.write_bytes(MODEL.read_bytes()[:5000])
    text = tmp_path / "text.gguf"
    text.write_text("not a model")
    for path in (torn, text, tmp_path / "missing.gguf", tmp_path):
        assert str(path) in one_line(surefoot("serve", str(path), *SMALL))
        assert str(path) in one_line(surefoot("inspect", str(path)))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--kv-type", "q3_x"], "q3_x"),
        (["--backend", "abacus"], "abacus"),
        (["--ctx-size", "999999", "--kv-memory", "1MiB"], "context"),
        (["--mtp-draft", "4"], "--spec-draft"),
        (["--mtp-anything"], "--spec-"),
        (["--spec-draft-model", "x.gguf"], "--draft-model"),
        (["--kv-cache-dtype", "f16"], "--kv-type"),
        (["-c", "4096"], "use --ctx-size"),
        (["--max-model-len=4096"], "use --ctx-size"),
        (["-ngl", "99"], "leave it out"),
        (["-m", "x.gguf"], "surefoot serve FILE.gguf"),
        (["--max-running", "1000000", "--kv-memory", "400TB", "--ctx-size", "2000000"], "memory"),
        (["--api-key", ""], "--api-key is empty"),
        (["--api-key", "a,,b"], "--api-key is empty"),
        (["--api-key", "a", "--admin-key", " "], "--admin-key is empty"),
        (["--host", ""], "--host is empty"),
        (["--api-key-file", "/nowhere/keys"], "/nowhere/keys"),
        (["--api-key", "a,b", "--admin-key", "b"], "the admin key is also an API key"),
        (["--api-key", "a", "--cors-origin", "*"], "--cors-origin"),
        (["--cors-origin", "chat.example.com"], "chat.example.com"),
        (["--key-at-once", "0"], "--key-at-once"),
        (["--threads", "0"], "--threads"),
        (["--ctx-size", "1"], "--ctx-size"),
        (["--port", "http"], "--port"),
        (["--kv-memory", "5 apples"], "--kv-memory"),
        (["--no-such-flag"], "--no-such-flag"),
        (["another.gguf"], "another.gguf"),
    ],
)
def test_flags_that_cannot_be_served(surefoot: Run, arguments: list[str], words: str) -> None:
    assert words in one_line(surefoot("serve", str(MODEL), "--port", "0", *arguments))


def test_usage_errors_of_the_command_itself_are_one_line(surefoot: Run) -> None:
    assert "serve" in one_line(surefoot("serv"))
    assert f"surefoot serve {MODEL}" in one_line(surefoot(str(MODEL)))
    assert "surefoot serve" in one_line(surefoot("run", "llama3"))
    assert "path of its GGUF file" in one_line(surefoot("serve", "llama3", "--port", "0"))
    assert "name the GGUF file in it" in one_line(surefoot("serve", str(MODEL.parent), "--port", "0"))
    assert "model" in one_line(surefoot("inspect")).lower()
    assert one_line(surefoot("bench"))
    assert "SUREFOOT_PORT" in one_line(surefoot("serve", str(MODEL), SUREFOOT_PORT="x"))


def test_help_and_version(surefoot: Run) -> None:
    for arguments in ([], ["-h"], ["--help"], ["serve", "-h"], ["serve", "--help"], ["--version"]):
        ended = surefoot(*arguments)
        assert (ended.code, ended.err) == (0, "")
        assert "surefoot" in ended.out
    assert "[one per core]" in surefoot("serve", "--help", COLUMNS="200").out


def test_sigterm_ends_a_process_that_still_loads(tmp_path: Path) -> None:
    code = (
        "import os, signal, surefoot.server.run as run\n"
        "from surefoot.server.settings import HttpSettings, Settings\n"
        "run.launch = lambda *_: os.kill(os.getpid(), signal.SIGTERM)\n"
        f"run.run(Settings(model={str(tmp_path)!r}, http=HttpSettings(port=0)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (128 + signal.SIGTERM, "")


def test_busy_port(surefoot: Run) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        assert port in one_line(surefoot("serve", str(MODEL), "--port", port))


def test_variables(surefoot: Run) -> None:
    unknown = one_line(surefoot("inspect", str(MODEL), SUREFOOT_THREDS="2"))
    assert "SUREFOOT_THREDS" in unknown
    assert "SUREFOOT_THREADS" in unknown
    link = one_line(surefoot("inspect", str(MODEL), SUREFOOT_PORT="tcp://10.0.0.7:8000"))
    assert "enableServiceLinks" in link
    fine = surefoot(
        "inspect", str(MODEL), SUREFOOT_SERVICE_HOST="10.0.0.7", SUREFOOT_PORT_8000_TCP="tcp://10.0.0.7:8000"
    )
    assert (fine.code, fine.err) == (0, "")
    foreign = surefoot("inspect", str(MODEL), TS_SPEC_DRAFT_MODEL="x", TS_MTP_FOLD_CATCHUP="0")
    assert foreign.code == 0
    assert "use SUREFOOT_DRAFT_MODEL" in foreign.err
    assert "TS_MTP_FOLD_CATCHUP" in foreign.err


def test_inspect_prints_what_is_in_a_file(surefoot: Run) -> None:
    ended = surefoot("inspect", str(MODEL))
    assert ended.code == 0
    assert "qwen3" in ended.out


@pytest.mark.parametrize(
    ("text", "size"),
    [("1", 1), ("4k", 4000), ("4KiB", 4096), ("1.5 GiB", 3 << 29), ("500MB", 500_000_000), ("2Ti", 2 << 40)],
)
def test_sizes(text: str, size: int) -> None:
    assert byte_size(text) == size


@pytest.mark.parametrize("text", ["", "4i", "-1", "4 apples", "GiB", "0x10"])
def test_sizes_that_are_none(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="is not a size"):
        byte_size(text)


def test_every_flag_has_its_variable(surefoot: Run) -> None:
    text = surefoot("serve", "--help", COLUMNS="200", TERM="dumb").out
    flags = set(re.findall(r"--[a-z][a-z-]+", text)) - {"--help", "--no-spec"}  # the other side of --spec
    assert len(flags) >= 15
    assert {f"SUREFOOT_{flag[2:].replace('-', '_').upper()}" for flag in flags} <= set(known_variables())
