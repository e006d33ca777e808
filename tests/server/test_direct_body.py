"""A stream's tokens go to the connection without a task, past the web framework: what that must not change."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from typing import Any

import httpx
import pytest
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from surefoot.server.deltas import PlainText
from surefoot.server.encoding import sse_data

ASK = {"messages": [{"role": "user", "content": "hi"}], "stream": True}


def contents(stream: str) -> str:
    events = [line.removeprefix("data: ") for line in stream.splitlines() if line.startswith("data: {")]
    return "".join(choice["delta"].get("content", "") for event in events for choice in json.loads(event)["choices"])


def test_tokens_do_not_pass_the_layers_of_the_web_framework(
    start: Any, script: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages: list[str] = []
    send = RequestResponseCycle.send

    async def counted(self: Any, message: Any) -> None:
        messages.append(message["type"])
        await send(self, message)

    monkeypatch.setattr(RequestResponseCycle, "send", counted)
    live = start(script(text=lambda _: b"0123456789" * 20, max_step=1, pause_s=0.001))
    with live.http() as http:
        stream = http.post("/v1/chat/completions", json=ASK).text
    assert contents(stream) == "0123456789" * 20
    assert stream.count("data: {") >= 100  # a step may bring what several gave, if the loop was late
    assert messages[0] == "http.response.start"
    assert len(messages) < 10


def test_a_defect_in_one_answer_ends_that_one_only(
    start: Any, script: Any, eventually: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed = PlainText.feed

    def broken(self: PlainText, text: str) -> Any:
        assert "!" not in text, "the defect"
        return feed(self, text)

    monkeypatch.setattr(PlainText, "feed", broken)
    live = start(script(text=lambda asked: bytes(asked.prompt_ids[5:7]) * 50, max_step=3, pause_s=0.002))
    found: dict[str, Any] = {}

    def ask(content: str) -> None:
        with live.http() as http:
            try:
                body = {**ASK, "messages": [{"role": "user", "content": content}]}
                found[content] = contents(http.post("/v1/chat/completions", json=body).text)
            except httpx.HTTPError as error:
                found[content] = error

    threads = [threading.Thread(target=ask, args=(content,)) for content in ("ab", "c!", "de")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (found["ab"], found["de"]) == ("ab" * 50, "de" * 50)
    assert found["c!"] == "" or isinstance(found["c!"], httpx.RemoteProtocolError)
    assert len(live.engine.cancelled) == 1
    assert eventually(lambda: live.service.bridge.num_running == 0)


def test_a_client_that_leaves_while_the_head_waits_is_no_defect(
    start: Any, script: Any, eventually: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = start(script(text=lambda _: b"0123456789" * 20, max_step=1, pause_s=0.001))
    host, port = live.url.removeprefix("http://").split(":")
    client = socket.create_connection((host, int(port)))
    send, run_asgi = RequestResponseCycle.send, RequestResponseCycle.run_asgi
    outcomes: list[BaseException | None] = []

    async def behind_what_the_client_has_not_read(self: Any, message: Any) -> None:
        if message["type"] == "http.response.start":
            client.close()
            while not self.disconnected:
                await asyncio.sleep(0.001)
        await send(self, message)

    async def watched(self: Any, app: Any) -> None:
        async def noted(*args: Any) -> None:
            try:
                await app(*args)
            except BaseException as fault:
                outcomes.append(fault)
                raise
            outcomes.append(None)

        await run_asgi(self, noted)

    monkeypatch.setattr(RequestResponseCycle, "send", behind_what_the_client_has_not_read)
    monkeypatch.setattr(RequestResponseCycle, "run_asgi", watched)
    body = json.dumps(ASK).encode()
    client.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n")
    client.sendall(b"Content-Length: %d\r\n\r\n" % len(body) + body)
    assert eventually(lambda: outcomes)
    assert outcomes == [None]
    assert len(live.engine.cancelled) == 1
    assert live.service.bridge.num_running == 0


def test_a_stream_that_is_read_slowly_comes_whole_and_in_order(start: Any, script: Any) -> None:
    text = b"".join(b"%05d " % number for number in range(3000))
    live = start(script(text=lambda _: text, max_step=12, pause_s=0.0005), max_context=100_000)
    body = json.dumps({**ASK, "logprobs": True, "top_logprobs": 5, "max_tokens": 90_000}).encode()
    host, port = live.url.removeprefix("http://").split(":")
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect((host, int(port)))
        head = (
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\n"
        )
        client.sendall(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        answer = b""
        while piece := client.recv(1 << 16):
            answer += piece
            time.sleep(0.002)
    head, _, chunks = answer.partition(b"\r\n\r\n")
    stream = b""
    while size := int(chunks[: chunks.index(b"\r\n")], 16):
        at = chunks.index(b"\r\n") + 2
        stream += chunks[at : at + size]
        assert chunks[at + size : at + size + 2] == b"\r\n"
        chunks = chunks[at + size + 2 :]
    assert chunks == b"0\r\n\r\n"
    assert contents(stream.decode()) == text.decode()
    assert stream.endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize("usage", [False, True])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}], "logprobs": True, "n": 2}),
        ("/v1/completions", {"prompt": "hi"}),
        ("/v1/completions", {"prompt": ["hi", "ho"], "logprobs": 2, "echo": True, "return_token_ids": True}),
    ],
)
def test_events_are_what_encoding_their_whole_chunks_gives(
    start: Any, script: Any, path: str, body: dict[str, Any], usage: bool
) -> None:
    live = start(script(text=lambda _: 'a "b"\n\t\\ \x00\x1f\x7f é \u2028 🌶 </s>'.encode()))
    options = {"stream": True, "max_tokens": 99} | ({"stream_options": {"include_usage": True}} if usage else {})
    with live.http() as http:
        events = http.post(path, json=body | options).content.split(b"\n\n")
    assert events[-2:] == [b"data: [DONE]", b""]
    chunks = [json.loads(event.removeprefix(b"data: ")) for event in events[:-2]]
    for event, chunk in zip(events, chunks, strict=False):
        assert event + b"\n\n" == sse_data(chunk)
        assert list(chunk)[:6] == ["id", "object", "created", "model", "system_fingerprint", "choices"]
        assert ("usage" in chunk) == usage
    assert (chunks[-1]["choices"] == []) == usage
    assert len({(chunk["id"], chunk["created"]) for chunk in chunks}) == 1
