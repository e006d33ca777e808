"""A streaming completions client that costs little: on a small machine the load generator shares cores with the server.

Speaks just enough HTTP/1.1 over asyncio streams for any OpenAI-compatible server; knows no scenario.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import SplitResult, urlsplit

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample


class BenchError(Exception):
    """The server under test answered something a benchmark cannot use."""


@dataclass(slots=True)
class Timing:
    """One streamed completion. Times are seconds on the monotonic clock."""

    started: float
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    chunk_times: list[float] = field(default_factory=list[float])  # of chunks that carried text or tokens
    chunk_tokens: list[int] = field(default_factory=list[int])  # in each of them; 1 where the server does not say
    text: str = ""
    token_ids: list[int] = field(default_factory=list[int])
    speculation: dict[str, Any] = field(default_factory=dict[str, Any])  # the report, where one was asked for

    @property
    def first_token_seconds(self) -> float:
        """Time from sending the request to the first token."""
        return self.chunk_times[0] - self.started

    @property
    def decode_rate(self) -> float:
        """Tokens per second after the first chunk."""
        span = self.chunk_times[-1] - self.chunk_times[0]
        return (self.completion_tokens - 1) / span if span > 0 else 0.0

    @property
    def gaps(self) -> list[float]:
        """Seconds between successive chunks."""
        return [b - a for a, b in zip(self.chunk_times, self.chunk_times[1:], strict=False)]


@dataclass(frozen=True, slots=True)
class Target:
    """A server under test."""

    base_url: str
    model: str | None = None
    api_key: str | None = None
    label: str = "server"

    async def get_json(self, path: str) -> Any:
        """GET path; raises BenchError unless it answers 200 with JSON."""
        return json.loads(b"".join([part async for part in self._exchange("GET", path, None)]))

    async def post_json(self, path: str, body: dict[str, Any], method: str = "POST") -> Any:
        """POST a JSON body; raises BenchError unless it answers 200 with JSON."""
        return json.loads(b"".join([part async for part in self._exchange(method, path, body)]))

    async def metrics(self) -> list[Sample]:
        """GET /metrics; raises BenchError unless it answers 200."""
        text = b"".join([part async for part in self._exchange("GET", "/metrics", None)]).decode()
        return samples(text)

    async def token_ids(self, text: str) -> list[int]:
        """Token ids of a text by the server's own /tokenize (vLLM's and llama.cpp's field names are both sent)."""
        body = {"prompt": text, "content": text, "add_special_tokens": False, "add_special": False}
        return list((await self.post_json("/tokenize", body))["tokens"])

    async def complete(self, prompt: Sequence[int], max_tokens: int, **fields: Any) -> Timing:
        """Streams one greedy completion of `prompt`, `max_tokens` long (end-of-text ignored) unless told otherwise."""
        body = greedy_stream(prompt, max_tokens)
        if self.model is not None:
            body["model"] = self.model
        return await self.stream("/v1/completions", body | fields)

    async def stream(self, path: str, body: dict[str, Any]) -> Timing:
        """Streams a completion or chat completion and times its chunks."""
        timing = Timing(time.perf_counter())
        pending = b""
        async for part in self._exchange("POST", path, body):
            now = time.perf_counter()
            pending += part
            *events, pending = pending.split(b"\n\n")
            for event in events:
                if event.startswith(b"data: {"):
                    _note(timing, json.loads(event[6:]), now)
        if not timing.chunk_times:
            raise BenchError(f"{self.label}: the stream carried no token")
        timing.completion_tokens = timing.completion_tokens or len(timing.chunk_times)
        return timing

    async def _exchange(self, method: str, path: str, body: dict[str, Any] | None) -> AsyncIterator[bytes]:
        url = urlsplit(self.base_url)
        reader, writer = await asyncio.open_connection(url.hostname, url.port or 80, limit=1 << 22)
        try:
            writer.write(http_request(url, method, path, body, self.api_key))
            await writer.drain()
            header = await reader.readuntil(b"\r\n\r\n")
            status = int(header.split(b" ", 2)[1])
            chunks = _body(reader, header.lower())
            if status != 200:
                text = b"".join([part async for part in chunks]).decode(errors="replace")
                raise BenchError(f"{self.label}: {method} {path} answered {status}: {text[:300]}")
            async for part in chunks:
                yield part
        finally:
            writer.close()


def samples(exposition: str) -> list[Sample]:
    """The samples in a text of Prometheus' format."""
    return [sample for family in text_string_to_metric_families(exposition) for sample in family.samples]


def greedy_stream(prompt: Sequence[int], max_tokens: int) -> dict[str, Any]:
    """The body of a streamed greedy completion, `max_tokens` long."""
    return {
        "prompt": list(prompt),
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def http_request(
    base_url: SplitResult, method: str, path: str, body: Mapping[str, Any] | None, api_key: str | None = None
) -> bytes:
    """A request after whose answer the connection ends."""
    payload = b"" if body is None else json.dumps(body).encode()
    auth = f"Authorization: Bearer {api_key}\r\n" if api_key else ""
    head = (
        f"{method} {base_url.path.rstrip('/')}{path} HTTP/1.1\r\nHost: {base_url.netloc}\r\nConnection: close\r\n{auth}"
        f"Content-Type: application/json\r\nContent-Length: {len(payload)}\r\n\r\n"
    )
    return head.encode() + payload


async def _body(reader: asyncio.StreamReader, header: bytes) -> AsyncIterator[bytes]:
    if b"transfer-encoding: chunked" not in header:
        while part := await reader.read(1 << 16):
            yield part
        return
    while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
        yield await reader.readexactly(size)
        await reader.readexactly(2)


def _note(timing: Timing, event: dict[str, Any], now: float) -> None:
    if "error" in event:
        raise BenchError(f"error in the stream: {event['error']}")
    if usage := event.get("usage"):
        timing.prompt_tokens = usage["prompt_tokens"]
        timing.completion_tokens = usage["completion_tokens"]
        details: dict[str, int] = usage.get("prompt_tokens_details") or {}
        timing.cached_tokens = details.get("cached_tokens", 0)
    for choice in event.get("choices", ()):
        delta: dict[str, Any] = choice.get("delta") or choice
        text = delta.get("text") or delta.get("content") or delta.get("reasoning_content") or ""
        tokens = choice.get("token_ids") or choice.get("tokens") or ()
        if text or tokens:
            timing.chunk_times.append(now)
            timing.chunk_tokens.append(len(tokens) or 1)
        timing.text += text
        timing.speculation = choice.get("speculation") or timing.speculation
        timing.token_ids += tokens
