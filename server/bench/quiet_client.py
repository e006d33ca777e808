"""Streams that cost their reader next to nothing: the system keeps their bytes and wakes the reader for many at once.

For measuring what a server takes: bytes are looked at when the answer is over. `client.py` parses while it reads, as
real clients do, and on a small machine takes more than the server it measures.
"""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from .client import BenchError, greedy_stream, http_request

_WAKE_BYTES = 1 << 18  # or what the system has room for; the end wakes in any case


@dataclass(frozen=True, slots=True)
class QuietRun:
    """Streams that were opened together."""

    seconds: float  # from opening the first to the last byte of the last
    num_tokens: int
    num_reads: int  # times that bytes came


class _Stream(asyncio.Protocol):
    def __init__(self, request: bytes) -> None:
        self._request = request
        self.data = bytearray()
        self.num_reads = 0
        self.ended = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, _WAKE_BYTES)
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self.data += data
        self.num_reads += 1

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_result(None)


async def stream_all(base_url: str, prompts: Sequence[Sequence[int]], max_tokens: int) -> QuietRun:
    """One greedy completion of `max_tokens` tokens per prompt, all at once, plain decoding. Raises BenchError."""
    url = urlsplit(base_url)
    loop = asyncio.get_running_loop()
    plain = {"speculation": {"enabled": False}}
    bodies = [greedy_stream(prompt, max_tokens) | plain for prompt in prompts]
    streams = [_Stream(http_request(url, "POST", "/v1/completions", body)) for body in bodies]
    started = time.perf_counter()
    for stream in streams:
        await loop.create_connection(lambda stream=stream: stream, url.hostname or "", url.port or 80)
    await asyncio.gather(*(stream.ended for stream in streams))
    seconds = time.perf_counter() - started
    tokens = sum(_num_tokens(bytes(stream.data)) for stream in streams)
    return QuietRun(seconds, tokens, sum(stream.num_reads for stream in streams))


def _num_tokens(answer: bytes) -> int:
    """By the usage in the last chunk. Raises BenchError for anything but a whole stream."""
    head, _, chunked = answer.partition(b"\r\n\r\n")
    events = _unchunked(chunked).split(b"\n\n")
    if not head.startswith(b"HTTP/1.1 200") or b"data: [DONE]" not in events:
        raise BenchError(f"the stream is not a whole answer: {answer[:300].decode(errors='replace')}")
    last: dict[str, Any] = json.loads(events[events.index(b"data: [DONE]") - 1].removeprefix(b"data: "))
    return int(last["usage"]["completion_tokens"])


def _unchunked(data: bytes) -> bytes:
    """The body of a chunked answer, as far as it came."""
    parts: list[bytes] = []
    at = 0
    while (line := data.find(b"\r\n", at)) >= 0 and (size := int(data[at:line].split(b";")[0], 16)):
        parts.append(data[line + 2 : line + 2 + size])
        at = line + 4 + size
    return b"".join(parts)
