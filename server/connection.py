"""uvicorn's HTTP connection, with bounds on what comes before an answer: the size of a request's head, and the time it
takes to arrive.

uvicorn has neither, so a stranger without a key could fill the memory with one endless header, which also keeps the
event loop busy, and could hold every file descriptor with connections that stay silent.
"""

from __future__ import annotations

import asyncio
from typing import Any

from pydantic_core import to_json
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from ..kernels.errors import RequestError
from .errors import error_body

MAX_HEAD_BYTES = 64 * 1024  # also of a chunked body's trailers
HEAD_TIMEOUT_S = 30.0
_MAX_QUEUED = 16  # pipelined requests up to which the connection is still read


class BoundedConnection(HttpToolsProtocol):
    """One client's connection."""

    max_head_bytes = MAX_HEAD_BYTES
    head_timeout_s = HEAD_TIMEOUT_S

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._unused_bytes = 0  # received since the parser last had something to show for it
        self._awaits_head = True
        self._deadline: asyncio.TimerHandle | None = None
        self._open: list[RequestResponseCycle] = []  # requests without their whole answer, the oldest first

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_deadline()
        for request in self._open:  # uvicorn tells the newest one only, which may be waiting behind the one that runs
            if not request.response_complete:
                request.disconnected = True
                request.message_event.set()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._unused_bytes += len(data)
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self._unused_bytes > self.max_head_bytes:
            self._refuse_head()
        elif self._awaits_head and not self._answers:
            self._expect_head()

    def on_headers_complete(self) -> None:
        self._unused_bytes = 0
        self._awaits_head = False
        self._cancel_deadline()
        super().on_headers_complete()
        self._open = [request for request in self._open if not request.response_complete] + [self.cycle]
        if len(self.pipeline) <= _MAX_QUEUED:
            self.flow.resume_reading()  # a connection that is not read does not notice that its client has left

    def on_body(self, body: bytes) -> None:
        self._unused_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._unused_bytes = 0
        self._awaits_head = True
        super().on_message_complete()

    def _unsupported_upgrade_warning(self) -> None:
        """Nothing is logged: the request is answered without the upgrade, as HTTP allows."""

    @property
    def _answers(self) -> bool:
        return any(not request.response_complete for request in self._open)

    def _expect_head(self) -> None:
        if self._deadline is None:
            self._deadline = self.loop.call_later(self.head_timeout_s, self.transport.close)

    def _cancel_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _refuse_head(self) -> None:
        if not self._answers:
            body = to_json(error_body(RequestError("The request's headers are too large", code="headers_too_large")))
            head = (
                "HTTP/1.1 431 Request Header Fields Too Large\r\nConnection: close\r\n"
                f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
            )
            self.transport.write(head.encode() + body)
        self.transport.close()
