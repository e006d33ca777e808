"""What strangers can do to a connection before and besides sending a request."""

from __future__ import annotations

import json
import logging
import re
import select
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest

from surefoot.server.connection import BoundedConnection


def dial(live: Any) -> socket.socket:
    host, port = live.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=10)


def request(body: bytes, length: int | None = None, more_headers: bytes = b"") -> bytes:
    length = len(body) if length is None else length
    return (
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        + more_headers
        + b"Content-Length: %d\r\n\r\n" % length
        + body
    )


def everything(connection: socket.socket) -> bytes:
    """What the server sends until it closes."""
    pieces = list[bytes]()
    while piece := connection.recv(1 << 16):
        pieces.append(piece)
    return b"".join(pieces)


def one_answer(connection: socket.socket) -> bytes:
    """The next answer, which says how long it is."""
    answer = b""
    while True:
        head, end, body = answer.partition(b"\r\n\r\n")
        length = re.search(rb"(?i)content-length: (\d+)", head)
        if end and (length is None or len(body) >= int(length[1])):
            return answer
        piece = connection.recv(10_000)
        assert piece, answer
        answer += piece


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(BoundedConnection, "head_timeout_s", 0.6)
    yield


@pytest.mark.parametrize("piece", [b"y" * 4096, b"X-A: b\r\n" * 512], ids=["one header", "many headers"])
def test_an_endless_head_is_refused(start: Any, piece: bytes) -> None:
    live = start()
    with dial(live) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nX-A: ")
        sent = 0
        with pytest.raises(OSError, match=r"reset|[Bb]roken pipe"):
            while sent < 1 << 24:
                connection.sendall(piece)
                sent += len(piece)
        assert sent < 1 << 23  # what the buffers of the system hold
    with live.http() as http:
        assert http.get("/health").status_code == 200


def test_the_refusal_of_a_head_is_an_error_body(start: Any) -> None:
    with dial(start()) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nX-A: " + b"y" * 70_000)
        answer = everything(connection)
    assert answer.startswith(b"HTTP/1.1 431 ")
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "headers_too_large"


@pytest.mark.parametrize(
    "sent",
    [
        b"hello\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01",  # TLS
        b"GET / HTTP/1.1\r\nA\x00: b\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\n\r\n",
        b"OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n",
        b"CONNECT x:1 HTTP/1.1\r\nHost: x:1\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nContent-Length: x\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
    ],
)
def test_what_is_no_http_gets_an_error_body(start: Any, sent: bytes) -> None:
    live = start()
    with dial(live) as connection:
        connection.sendall(sent)
        connection.shutdown(socket.SHUT_WR)
        answer = everything(connection)
    if not answer.startswith(b"HTTP/1.1 404"):
        assert answer.startswith(b"HTTP/1.1 400 "), answer
    error = json.loads(answer.partition(b"\r\n\r\n")[2])["error"]
    assert set(error) == {"message", "type", "param", "code"}
    with live.http() as http:
        assert http.get("/health").status_code == 200


def deaf(live: Any, sent: bytes) -> socket.socket:
    """A client that reads nothing."""
    host, port = live.url.removeprefix("http://").split(":")
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.connect((host, int(port)))
    connection.sendall(sent)
    return connection


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_never_reads_its_answer_is_let_go(
    start: Any, script: Any, eventually: Any, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    monkeypatch.setattr(BoundedConnection, "unread_timeout_s", 0.3)
    live = start(script(text=lambda _: b"x" * 60_000, max_step=4000), max_context=100_000)
    ask = {"prompt": "x", "max_tokens": 90_000, "logprobs": 20, "stream": stream}
    with deaf(live, request(json.dumps(ask).encode())) as connection, live.http() as http:
        assert http.post("/v1/completions", json={"prompt": "x", "max_tokens": 1}).status_code == 200  # others go on
        assert eventually(lambda: "surefoot_http_requests_open 0.0" in metrics(live), 60)
        assert eventually(lambda: live.service.bridge.num_running == 0, 60)
        time.sleep(1)
        assert 0 < len(everything(connection)) < 10_000_000  # what had left the process, of 25 MB


def test_a_slow_reader_gets_its_whole_answer(start: Any, script: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BoundedConnection, "unread_timeout_s", 0.3)
    live = start(script(text=lambda _: b"x" * 2500, max_step=4000), max_context=100_000)
    ask = {"prompt": "x", "max_tokens": 90_000, "logprobs": 20}
    with deaf(live, request(json.dumps(ask).encode(), more_headers=b"Connection: close\r\n")) as connection:
        received = 0
        while piece := connection.recv(1 << 18):
            received += len(piece)
            time.sleep(0.02)
    assert received > 900_000


def test_the_rest_of_a_refused_body_is_not_waited_for(start: Any, impatient: None) -> None:
    live = start(api_keys=("alpha",))
    with dial(live) as connection:
        connection.sendall(request(b'{"prompt": ', length=10_000_000))
        assert connection.recv(10_000).startswith(b"HTTP/1.1 401 ")
        started = time.monotonic()
        with pytest.raises(OSError, match=r"reset|[Bb]roken pipe"):
            while time.monotonic() - started < 10:
                connection.sendall(b"x")
                time.sleep(0.02)
        assert 0.3 < time.monotonic() - started < 5


def test_a_refused_body_that_does_arrive_leaves_the_connection_usable(start: Any, impatient: None) -> None:
    with dial(start(api_keys=("alpha",))) as connection:
        for _ in range(3):
            connection.sendall(request(b"x" * 1000, length=100_000))
            assert one_answer(connection).startswith(b"HTTP/1.1 401 ")
            connection.sendall(b"x" * 99_000)
            time.sleep(0.3)


def test_a_body_that_drips_is_not_waited_for(start: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("surefoot.server.body._READ_TIMEOUT_S", 0.5)
    live = start()
    with dial(live) as connection:
        connection.sendall(request(b'{"prompt": "', length=10_000))
        started = time.monotonic()
        while not (ready := select.select([connection], [], [], 0.05)[0]) and time.monotonic() - started < 10:
            connection.sendall(b"x")  # never silent for long
        assert ready
        answer = one_answer(connection)  # what follows may be a reset: the last byte may have come after it
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "timeout"
    assert live.service.body_budget.free == 8 * live.service.settings.max_body_bytes


def test_bodies_of_many_clients_together_have_a_bound(start: Any, eventually: Any) -> None:
    live = start(max_body_bytes=100_000)
    whole = live.service.body_budget.free
    half = [dial(live) for _ in range(8)]
    for connection in half:
        connection.sendall(request(b'{"prompt": "' + b"x" * 95_000, length=99_000))
    assert eventually(lambda: live.service.body_budget.free < whole - 8 * 90_000)
    with live.http() as http:
        body = {"prompt": "x" * 60_000, "max_tokens": 1}
        full = http.post("/v1/completions", json=body)
        assert (full.status_code, full.headers["retry-after"]) == (503, "1")
        assert full.json()["error"]["code"] == "overloaded"
        assert http.post("/v1/completions", json={"prompt": "x", "max_tokens": 1}).status_code == 200
        for connection in half:
            connection.close()
        assert eventually(lambda: live.service.body_budget.free == whole)
        assert http.post("/v1/completions", json=body).status_code == 400  # too long for the context, but read


def test_endless_trailers_are_cut(start: Any) -> None:
    with dial(start()) as connection:
        connection.sendall(
            b"POST /v1/completions HTTP/1.1\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
            b"2\r\n{}\r\n0\r\n"
        )
        with pytest.raises(OSError, match=r"reset|[Bb]roken pipe"):
            for _ in range(1 << 12):
                connection.sendall(b"X-A: " + b"y" * 4000 + b"\r\n")


def test_large_bodies_in_any_pieces_pass(start: Any) -> None:
    body = json.dumps({"prompt": "hi", "metadata": {"k": "v" * 300_000}}).encode()
    with dial(start()) as connection:
        data = request(body, more_headers=b"X-A: " + b"y" * 60_000 + b"\r\n")
        for at in range(0, len(data), 1000):
            connection.sendall(data[at : at + 1000])
        assert connection.recv(100).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("sent", [b"", b"\r\n", b"GET /health HTTP/1.1\r\n"], ids=["nothing", "empty line", "half"])
def test_a_head_that_does_not_come_is_not_waited_for(start: Any, impatient: None, sent: bytes) -> None:
    with dial(start()) as connection:
        connection.sendall(sent)
        started = time.monotonic()
        assert connection.recv(100) == b""
        assert 0.4 < time.monotonic() - started < 5


def test_time_to_send_a_head_begins_anew_with_each_request(start: Any, impatient: None) -> None:
    with dial(start()) as connection:
        for _ in range(3):
            connection.sendall(b"GET /health HTTP/1.1\r\n")
            time.sleep(0.25)
            connection.sendall(b"Host: x\r\n\r\n")
            assert one_answer(connection).startswith(b"HTTP/1.1 200 ")
        time.sleep(0.8)  # idle between requests is the keep-alive's business
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        assert one_answer(connection).startswith(b"HTTP/1.1 200 ")


def test_a_long_answer_outlasts_the_time_for_a_head(start: Any, script: Any, impatient: None) -> None:
    live = start(script(text=lambda _: b"word " * 40, max_step=5, pause_s=0.03))
    with dial(live) as connection:
        connection.sendall(request(b'{"prompt": "x", "max_tokens": 500}') + b"GET /hea")  # and half of another
        assert b'"finish_reason":"stop"' in connection.recv(1 << 16)


def test_a_client_with_pipelined_requests_that_leaves_cancels_the_first(
    start: Any, script: Any, eventually: Any
) -> None:
    live = start(script(text=lambda _: b"word " * 1000, max_step=2, pause_s=0.02))
    with dial(live) as connection:
        connection.sendall(request(b'{"prompt": "x", "max_tokens": 1000}') * 3)
        assert eventually(lambda: live.engine.num_running == 1)
    assert eventually(lambda: live.engine.num_running == 0)
    assert eventually(lambda: live.service.bridge.num_running == 0)
    assert len(live.engine.submissions) == 1


def test_pipelined_requests_are_answered_in_order(start: Any, script: Any) -> None:
    live = start(script(text=lambda submission: bytes(submission.prompt_ids[1:]) * 2, pause_s=0.001))
    count = 40
    with dial(live) as connection:
        for number in range(count):
            connection.sendall(request(b'{"prompt": "p%02d", "max_tokens": 99}' % number))
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        answer = everything(connection)
    places = [answer.find(b'"text":"p%02dp%02d"' % (number, number)) for number in range(count)]
    assert -1 not in places
    assert places == sorted(places)


def test_a_client_that_leaves_within_its_body_is_no_fault(
    start: Any, eventually: Any, caplog: pytest.LogCaptureFixture
) -> None:
    live = start()
    with caplog.at_level(logging.INFO):
        with dial(live) as connection:
            connection.sendall(request(b'{"prompt": ', length=1000))
            assert eventually(lambda: "surefoot_http_requests_open 1.0" in metrics(live))
        count = 'surefoot_http_responses_total{route="/v1/completions",status="499"} 1.0'
        assert eventually(lambda: count in metrics(live))
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def metrics(live: Any) -> str:
    from prometheus_client import generate_latest

    return generate_latest(live.engine.registry).decode()


def test_a_wish_to_upgrade_is_ignored(start: Any, caplog: pytest.LogCaptureFixture) -> None:
    with dial(start()) as connection, caplog.at_level(logging.WARNING):
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
        assert one_answer(connection).startswith(b"HTTP/1.1 200 ")
    assert not caplog.records
