"""The log as JSON: every line of a process, whatever it holds, and what a line says beside its words."""

from __future__ import annotations

import io
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_core import from_json
from server_process import Process

from surefoot.engine.log_fields import fields
from surefoot.server.logs import JSON, JsonLines, LineFormatter, asked_format, begin_logs
from surefoot.server.visit import Visit, begin_visit

MODEL = Path(__file__).parents[1] / "data" / "oracle" / "qwen3" / "model.gguf"
HEAD = ["time", "level", "logger", "message"]
TEXTS = st.text(st.characters(), max_size=50)  # surrogates, controls and line separators too


def parsed(text: str) -> list[dict[str, Any]]:
    """The lines of a log, by a parser that refuses what strict ones refuse: NaN, lone surrogates, names given twice."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        assert len({name for name, _ in pairs}) == len(pairs), pairs
        return dict(pairs)

    assert text.isascii() and (not text or text.endswith("\n"))
    lines = text.removesuffix("\n").split("\n") if text else []
    for line in lines:
        from_json(line.encode(), allow_inf_nan=False)
    entries = [json.loads(line, object_pairs_hook=once) for line in lines]
    for entry in entries:
        assert list(entry)[:4] == HEAD
        assert datetime.fromisoformat(entry["time"]).tzinfo == UTC and entry["time"].endswith("Z")
    return entries


class Sink:
    """A logger whose lines are kept."""

    def __init__(self) -> None:
        self.stream = io.StringIO()
        self.log = logging.Logger("a.logger")
        self.log.addHandler(JsonLines(self.stream))

    def lines(self) -> list[dict[str, Any]]:
        return parsed(self.stream.getvalue())


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXTS | st.binary(max_size=20) | st.builds(object),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS | st.integers(), inner, max_size=4),
    max_leaves=12,
)


@given(message=TEXTS, name=TEXTS, value=VALUES)
def test_every_line_is_json_whatever_it_holds(message: str, name: str, value: Any) -> None:
    sink = Sink()
    sink.log.name = name
    sink.log.info("%s", message, extra=fields(value=value))
    sink.log.info(message.replace("%", "%%"), extra=fields(**{"from": [value]}))
    first, second = sink.lines()
    clean = message.encode("utf-8", "backslashreplace").decode()
    assert (first["message"], first["level"], "value" in first) == (clean, "INFO", value is not None)
    assert "from" in second


@given(message=TEXTS, arguments=st.lists(TEXTS | st.integers(), max_size=3))
def test_a_line_whose_values_do_not_fit_is_a_line_too(message: str, arguments: list[Any]) -> None:
    sink = Sink()
    sink.log.warning(message, *arguments)
    [line] = sink.lines()
    assert line["level"] == "WARNING"


class Vicious:
    def __str__(self) -> str:
        raise ZeroDivisionError("no text")

    __repr__ = __str__


@given(message=TEXTS)
def test_a_line_for_people_is_one_line(message: str) -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(LineFormatter("%(name)s: %(message)s"))
    log = logging.Logger("a.logger")
    log.addHandler(handler)
    log.info("%s", message)
    assert len(stream.getvalue().splitlines()) == 1
    assert stream.getvalue().endswith("\n") and "\x1b" not in stream.getvalue()
    try:
        raise ValueError
    except ValueError:
        log.exception("it failed")
    assert "\nTraceback (most recent" in stream.getvalue()


def test_what_cannot_be_shown_is_said() -> None:
    sink = Sink()
    sink.log.info("one %s", Vicious())
    sink.log.info(Vicious())
    sink.log.info("three", extra=fields(it=Vicious()))
    sink.log.info("four", extra=fields(it=10**5000))
    lines = sink.lines()
    assert len(lines) == 4
    assert all("could not be logged" in line["message"] for line in lines)


@given(TEXTS)
def test_exceptions_are_a_field(text: str) -> None:
    sink = Sink()
    try:
        raise ValueError(text)
    except ValueError:
        sink.log.exception("it failed")
    [line] = sink.lines()
    assert line["exception"].startswith("Traceback") and "ValueError" in line["exception"]
    assert line["message"] == "it failed"


def test_lines_name_the_request_in_whose_answer_they_are_written() -> None:
    sink = Sink()

    def answer() -> None:
        begin_visit(Visit("abc-1"))
        sink.log.info("inside")
        sink.log.info("own", extra=fields(request_id="abc-2"))

    thread = threading.Thread(target=answer)
    thread.start()
    thread.join()
    sink.log.info("outside")
    assert [line.get("request_id") for line in sink.lines()] == ["abc-1", "abc-2", None]


def test_a_log_that_nobody_reads_stops_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    class Full(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(28, "No space left on device")

    log = logging.Logger("full")
    log.addHandler(JsonLines(Full()))
    log.info("x")
    log.info("%d", "x")
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("arguments", "variable", "asked"),
    [
        ("", None, "text"),
        ("", "json", "json"),
        ("", "", "text"),
        ("--log-format json", None, "json"),
        ("--log-format=json", None, "json"),
        ("--log-format text", "json", "text"),
        ("--log-format json --log-format text", None, "text"),
        ("--port 1 --log-format", None, ""),
    ],
)
def test_the_format_that_is_asked_for(arguments: str, variable: str | None, asked: str) -> None:
    environment = {} if variable is None else {"SUREFOOT_LOG_FORMAT": variable}
    assert asked_format(["serve", *arguments.split()], environment) == asked


@pytest.fixture
def own_logging() -> Iterator[None]:
    """Logging is put back afterwards."""
    root, hooks = logging.getLogger(), (sys.excepthook, threading.excepthook)
    handlers, level = list(root.handlers), root.level
    root.handlers = []  # so that they are not closed
    yield
    logging.captureWarnings(False)
    root.handlers, (sys.excepthook, threading.excepthook) = handlers, hooks
    root.setLevel(level)


@pytest.mark.filterwarnings("default")
@pytest.mark.usefixtures("own_logging")
def test_crashes_and_warnings_are_lines_too(capsys: pytest.CaptureFixture[str]) -> None:
    begin_logs(JSON)

    def crash() -> None:
        raise ZeroDivisionError("in a thread")

    thread = threading.Thread(target=crash, name="the-worker")
    thread.start()
    thread.join()
    try:
        crash()
    except ZeroDivisionError:
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
    sys.excepthook(KeyboardInterrupt, KeyboardInterrupt(), None)
    warnings.warn("mind\nthe gap", stacklevel=1)
    of_thread, of_process, warning = parsed(capsys.readouterr().err)
    assert "the-worker" in of_thread["message"] and "in a thread" in of_thread["exception"]
    assert of_process["level"] == "CRITICAL" and "ZeroDivisionError" in of_process["exception"]
    assert (warning["logger"], warning["level"]) == ("py.warnings", "WARNING")
    assert "mind\nthe gap" in warning["message"]


# --- of a process ----------------------------------------------------------------------------------------------------

PROMPT = "a secret prompt"


def started(log: Path, *flags: str) -> Process:
    return Process(MODEL, 8 << 20, log, "--log-format", "json", *flags)


def test_all_that_a_server_says_is_json(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("sk-secret alice\n")
    keys.chmod(0o604)
    log = tmp_path / "log"
    server = started(log, "--api-key-file", str(keys), "--admin-key", "sk-admin")
    try:
        url = server.url.rstrip('",')
        body = {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 40, "temperature": 0}
        with httpx.Client(base_url=url, headers={"Authorization": "Bearer sk-secret"}, timeout=30) as http:
            answer = http.post("/v1/chat/completions?q=hidden", json=body, headers={"X-Request-Id": "abc-1"})
            http.get("/no%0A%ED%A0%80thing")
            http.get("/v1/models", headers={"Authorization": "Bearer sk-wrong"})
    finally:
        server.popen.send_signal(signal.SIGTERM)
        assert server.popen.wait(timeout=30) == 0
    text = log.read_text()
    lines = parsed(text)
    assert not any(secret in text for secret in (PROMPT, "sk-secret", "sk-admin", "sk-wrong", "hidden"))
    asked, lost, refused = [line for line in lines if line["logger"] == "surefoot.access"]
    assert asked.pop("duration_ms") > 0
    assert {name: asked[name] for name in list(asked)[4:]} == {
        "client": "127.0.0.1",
        "method": "POST",
        "path": "/v1/chat/completions",
        "status": 200,
        "request_id": "abc-1",
        "response_id": answer.json()["id"],
        "key": "alice",
    }
    assert (lost["status"], lost["path"][:4]) == (404, "/no\n")
    assert refused["status"] == 401 and "key" not in refused and "response_id" not in refused
    messages = [line["message"] for line in lines]
    assert any(message.startswith("listening on ") for message in messages)
    assert any(message.startswith("SIGTERM: ") for message in messages)
    [warning] = [line for line in lines if line["level"] == "WARNING"]
    assert "every user of this machine" in warning["message"]
    of_request = [line for line in lines if line.get("choice_id") == f"{answer.json()['id']}/0"]
    assert [set(line["speculation"]) >= {"drafted_tokens", "steps", "step_ms"} for line in of_request] == [True]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["/nowhere/model.gguf"], "/nowhere/model.gguf"),
        ([str(MODEL), "--port", "x"], "--port"),
        ([str(MODEL), "--api-key-file", "/nowhere/keys"], "/nowhere/keys"),
        ([str(MODEL), "-ngl", "99"], "leave it out"),
    ],
)
def test_why_a_server_does_not_start_is_json(arguments: list[str], words: str) -> None:
    command = [sys.executable, "-m", "surefoot.server", "serve", *arguments]
    environment = {**os.environ, "SUREFOOT_LOG_FORMAT": "json", "TS_SPEC_DRAFT": "4"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    *before, last = parsed(done.stderr)
    assert last["level"] == "ERROR" and words in last["message"]
    assert all(line["level"] == "WARNING" and "TS_SPEC_DRAFT" in line["message"] for line in before)


def test_another_format_is_refused(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "surefoot.server", "serve", str(MODEL), "--log-format", "xml"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "--log-format" in done.stderr and "'json'" in done.stderr
