"""What happens around a stream: clients that leave, read slowly or wait long; full and draining servers."""

from __future__ import annotations

import asyncio
import gc
import random
import re
import socket
import sys
import threading
import time
from typing import Any

import httpx
import openai
import pytest

MESSAGES = [{"role": "user", "content": "hi"}]
GOOD = {"model": "tiny", "messages": MESSAGES}


def endless(_: Any) -> bytes:
    return b"word " * 300


def test_a_client_that_gives_up_waiting_cancels_its_request(start: Any, script: Any, eventually: Any) -> None:
    live = start(script(text=endless, pause_s=0.02))
    with live.http() as http, pytest.raises(httpx.ReadTimeout):
        http.post("/v1/chat/completions", json={**GOOD, "n": 2}, timeout=0.15)
    assert eventually(lambda: live.service.bridge.num_running == 0 and live.engine.num_running == 0)
    assert len(live.engine.cancelled) == 2
    live.engine.script.pause_s = 0.0
    with live.client() as client:
        assert client.chat.completions.create(**GOOD).choices[0].message.content == endless(None).decode()


def test_closing_a_stream_after_its_first_chunk_50_times(start: Any, script: Any, eventually: Any) -> None:
    live = start(script(text=endless, pause_s=0.01))
    with live.http() as http:
        for _ in range(50):
            with http.stream("POST", "/v1/chat/completions", json={**GOOD, "stream": True}) as response:
                next(response.iter_lines())
        assert eventually(lambda: live.service.bridge.num_running == 0)
        assert len(live.engine.cancelled) == 50


def test_random_disconnects_leave_nothing_behind(start: Any, script: Any, eventually: Any) -> None:
    live = start(script(text=endless, pause_s=0.001), max_requests=64)
    dice = random.Random(1)

    async def one(client: httpx.AsyncClient) -> None:
        body = {**GOOD, "stream": dice.random() < 0.7, "n": dice.randint(1, 3)}
        try:
            async with asyncio.timeout(dice.uniform(0.001, 0.3)):
                await client.post("/v1/chat/completions", json=body)
        except TimeoutError:
            pass

    async def all_of_them() -> None:
        async with httpx.AsyncClient(base_url=live.url, timeout=20) as client:
            for _ in range(20):
                await asyncio.gather(*(one(client) for _ in range(10)))

    threads = threading.active_count()
    asyncio.run(all_of_them())
    assert eventually(lambda: live.service.bridge.num_running == 0 and live.engine.num_running == 0)
    assert not live.service.bridge._open
    assert threading.active_count() <= threads + 2  # the tokenizer's workers


def test_silence_is_filled_with_comments(start: Any, script: Any) -> None:
    from surefoot.server.settings import ReplyTimes

    live = start(script(pause_s=0.25, max_step=100), times=ReplyTimes(keep_alive_s=0.05))

    def slow(_: Any) -> bytes:
        time.sleep(0.25)  # before the first token
        return b"late"

    live.engine.script.text = slow
    with live.http() as http:
        text = http.post("/v1/chat/completions", json={**GOOD, "stream": True}).text
    assert "".join(re.findall(r'"content":"(\w*)"', text)) == "late"
    assert text.endswith("data: [DONE]\n\n")


def test_a_long_wait_for_the_first_token_opens_the_stream(start: Any, script: Any) -> None:
    from surefoot.server.settings import ReplyTimes

    live = start(script(max_step=1, pause_s=0.2), times=ReplyTimes(keep_alive_s=0.05))
    with live.http() as http:
        text = http.post("/v1/chat/completions", json={**GOOD, "stream": True, "max_tokens": 3}).text
    assert text.count(": keep-alive\n\n") >= 3
    assert '"finish_reason":"length"' in text


def test_request_timeout(start: Any, script: Any, eventually: Any) -> None:
    from surefoot.server.settings import ReplyTimes

    live = start(script(text=endless, pause_s=0.05), times=ReplyTimes(total_s=0.2))
    with live.http() as http:
        whole = http.post("/v1/chat/completions", json=GOOD)
        streamed = http.post("/v1/chat/completions", json={**GOOD, "stream": True})
    assert whole.status_code == 504
    assert whole.json()["error"]["code"] == "timeout"
    assert "event: error\n" in streamed.text
    assert streamed.text.endswith("data: [DONE]\n\n")
    assert eventually(lambda: live.engine.num_running == 0)


def test_a_client_that_does_not_read_is_let_go(start: Any, script: Any, eventually: Any) -> None:
    from surefoot.server.settings import ReplyTimes

    live = start(script(text=lambda _: b"x" * 60_000, max_step=1000), max_context=100_000, times=ReplyTimes(send_s=0.3))
    host, port = live.url.removeprefix("http://").split(":")
    body = b'{"messages": [{"role": "user", "content": "hi"}], "stream": true, "logprobs": true, "top_logprobs": 20}'
    with socket.socket() as raw:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        raw.connect((host, int(port)))
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n"
        head += "Content-Type: application/json\r\n\r\n"
        raw.sendall(head.encode() + body)
        assert eventually(lambda: live.engine.submissions, 60)
        assert eventually(lambda: not live.service.bridge._open and not _open_requests(live), 60)


def _open_requests(live: Any) -> int:
    value = live.engine.registry.get_sample_value("surefoot_http_requests_open")
    assert value is not None
    return int(value)


def test_full_server_says_so_before_a_stream_opens(start: Any, script: Any) -> None:
    live = start(script(text=endless, pause_s=0.02), max_requests=3)
    with (
        live.http() as http,
        http.stream("POST", "/v1/chat/completions", json={**GOOD, "stream": True, "n": 2}) as running,
    ):
        lines = running.iter_lines()  # kept: httpx closes a stream whose iterator is collected
        next(lines)
        for stream in (False, True):
            full = http.post("/v1/chat/completions", json={**GOOD, "stream": stream, "n": 2})
            assert (full.status_code, full.headers["retry-after"]) == (429, "1")
            assert full.json()["error"]["type"] == "rate_limit_error"
        never = http.post("/v1/chat/completions", json={**GOOD, "n": 4})
        assert (never.status_code, never.json()["error"]["param"]) == (400, "n")
        assert http.post("/v1/chat/completions", json={**GOOD, "max_tokens": 1}).status_code == 200


def test_drain_finishes_streams_and_refuses_new_requests(start: Any, script: Any, eventually: Any) -> None:
    live = start(script(text=lambda _: b"word " * 20, pause_s=0.02))
    with live.client() as client, live.http() as http:
        stream = client.chat.completions.create(**GOOD, stream=True)
        first = next(iter(stream))
        assert first.choices[0].delta.role == "assistant"
        answer = http.post("/admin/drain")
        assert (answer.status_code, answer.json()["draining"], answer.json()["requests"]) == (202, True, 1)
        refused = http.post("/v1/chat/completions", json={**GOOD, "stream": True})
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
        probes = {path: http.get(path) for path in ("/health", "/readyz", "/livez")}
        assert [probe.status_code for probe in probes.values()] == [503, 503, 200]  # a restart would end the stream
        assert {probe.json()["status"] for probe in probes.values()} == {"draining"}
        text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
        assert text == "word " * 20
        assert eventually(lambda: http.get("/admin/state").json()["server"]["requests"] == 0)


def test_drain_deadline_ends_streams_with_an_error(start: Any, script: Any) -> None:
    live = start(script(text=endless, pause_s=0.05))
    with live.client() as client, live.http() as http:
        stream = client.chat.completions.create(**GOOD, stream=True)
        next(iter(stream))
        http.post("/admin/drain", json={"deadline_s": 0.1})
        with pytest.raises(openai.APIError, match="shutting down"):
            list(stream)
    assert live.engine.num_running == 0


def test_streams_that_have_ended_leave_nothing_behind(start: Any, eventually: Any) -> None:
    """No timer, task or answer; an open connection may hold its last one."""
    from surefoot.server.bridge import Generation

    live = start()
    bridge = live.service.bridge

    def left() -> int:
        live.engine.submissions.clear()  # the scripted engine keeps them, and they know where to deliver
        gc.collect()
        return sum(isinstance(found, Generation) and found._bridge is bridge for found in gc.get_objects())

    with live.http() as http:
        for _ in range(5):
            assert http.post("/v1/chat/completions", json={**GOOD, "stream": True}).text.endswith("[DONE]\n\n")
        assert eventually(lambda: left() <= 1)


def test_one_wake_up_carries_the_outputs_of_many_requests() -> None:
    """The bridge asks the loop once, however many outputs arrive before it gets to run."""
    from surefoot.engine.request import Output
    from surefoot.server.bridge import Bridge, Generation

    class Loop:
        calls: list[Any] = []  # noqa: RUF012

        def call_soon_threadsafe(self, callback: Any) -> None:
            self.calls.append(callback)

    class Engine:
        def announce(self, bell: int | None) -> bool:
            return False

    loop, bridge = Loop(), Bridge(Engine(), max_requests=9)  # type: ignore[arg-type]
    bridge.attach(loop)  # type: ignore[arg-type]
    generations = [Generation(bridge, f"r{index}", 1) for index in range(8)]
    for step in range(3):
        for generation in generations:
            prompt_draws: Any = ["judged"] if step == 0 else None  # a prompt is judged once
            bridge.post(generation, 0, Output(token_ids=[step], text=str(step), prompt_draws=prompt_draws))
    assert len(loop.calls) == 1
    loop.calls[0]()
    assert [generation._pending[0].text for generation in generations] == ["012"] * 8
    assert generations[0]._pending[0].token_ids == [0, 1, 2]
    assert generations[0]._pending[0].prompt_draws == ["judged"]
    bridge.post(generations[0], 0, Output(text="3"))
    assert len(loop.calls) == 2


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no eventfd")
def test_a_bell_carries_the_outputs_of_many_requests() -> None:
    """An engine that announces its outputs wakes the loop, not `post`; a bell rung twice is answered once."""
    from surefoot.engine.request import Output
    from surefoot.kernels.bell import ring
    from surefoot.server.bridge import Bridge, Generation

    class Engine:
        bells: list[int | None] = []  # noqa: RUF012

        def announce(self, bell: int | None) -> bool:
            self.bells.append(bell)
            return True

    async def main() -> None:
        engine = Engine()
        bridge = Bridge(engine, max_requests=9)  # type: ignore[arg-type]
        bridge.attach(asyncio.get_running_loop())
        bell = engine.bells[0]
        assert bell is not None
        generations = [Generation(bridge, f"r{index}", 1) for index in range(8)]
        for step in range(2):
            for generation in generations:
                bridge.post(generation, 0, Output(text=str(step)))
        await asyncio.sleep(0.01)
        assert not any(generation._pending for generation in generations)
        ring(bell)
        ring(bell)
        for generation in generations:
            assert (await generation.follow(dict, 1.0))[0].text == "01"
        bridge.detach()
        assert engine.bells == [bell, None]
        with pytest.raises(OSError, match="Bad file descriptor"):
            ring(bell)

    asyncio.run(main())
