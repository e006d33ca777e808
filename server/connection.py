"""uvicorn's HTTP connection, with bounds on what comes around an answer: the size of a request's head, the time that it
and the rest of a refused body take to arrive, and the time that a client takes to accept what is written for it.

uvicorn has none of them, so a stranger without a key could fill the memory with one endless header, which also keeps
the event loop busy, and could hold every file descriptor, and answers behind them, with connections that stay silent.
"""

from __future__ import annotations

import asyncio
import weakref
from typing import Any

from pydantic_core import to_json
from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from ..kernels.errors import RequestError
from .errors import error_body

MAX_HEAD_BYTES = 64 * 1024  # also of a chunked body's trailers
HEAD_TIMEOUT_S = 30.0
UNREAD_TIMEOUT_S = 60.0
_DIRECT = "surefoot.direct"  # an ASGI extension
_MAX_QUEUED = 16  # pipelined requests up to which the connection is still read


class DirectBody:
    """The way of a streamed body's pieces past the layers of the web framework. They look at an answer's head only, and
    going through all of them costs more than making the event of a token."""

    __slots__ = ("_flow", "_request", "_transport")

    def __init__(self, request: RequestResponseCycle) -> None:
        assert request.chunked_encoding or request.disconnected, "a stream's length is not known"
        self._request = request
        self._flow = request.flow
        self._transport = request.transport

    @property
    def is_open(self) -> bool:
        """Whether the client is there and keeps up; else the next piece is for `send`, which knows how to wait."""
        return not self._flow.write_paused and not self._request.disconnected

    def write(self, data: bytes) -> None:
        """Writes the next piece, which is not empty. Only while open."""
        self._transport.write(b"%x\r\n%b\r\n" % (len(data), data))


def direct_body(scope: Scope) -> DirectBody:
    """That of the answer to a request, once its head has been sent or, its client having left, dropped."""
    request = scope["extensions"][_DIRECT]["request"]()
    assert request is not None, "who serves a request keeps it"
    return DirectBody(request)


class BoundedConnection(HttpToolsProtocol):
    """One client's connection."""

    max_head_bytes = MAX_HEAD_BYTES
    head_timeout_s = HEAD_TIMEOUT_S
    unread_timeout_s = UNREAD_TIMEOUT_S  # without a byte of progress

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._unused_bytes = 0  # received since the parser last had something to show for it
        self._awaits_head = True
        self._deadline: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None  # runs while the client has bytes to accept
        self._unread_bytes = 0  # when it was started
        self._open: list[RequestResponseCycle] = []  # requests without their whole answer, the oldest first

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_deadline()
        if self._unread is not None:
            self._unread.cancel()
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
        self.scope["extensions"] = {_DIRECT: {"request": weakref.ref(self.cycle)}}  # weak: it holds the scope
        if len(self.pipeline) <= _MAX_QUEUED:
            self.flow.resume_reading()  # a connection that is not read does not notice that its client has left

    def on_body(self, body: bytes) -> None:
        self._unused_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._unused_bytes = 0
        self._awaits_head = True
        self._cancel_deadline()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self._awaits_head:
            self._expect_head()  # the rest of a body that nobody reads comes first, within the same time
        self._expect_reader()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._expect_reader()

    def send_400_response(self, msg: str) -> None:
        """What is no HTTP."""
        self._refuse(400, "Bad Request", RequestError("The request is not valid HTTP", code="invalid_http"))

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
        error = RequestError("The request's headers are too large", code="headers_too_large")
        self._refuse(431, "Request Header Fields Too Large", error)

    def _refuse(self, status: int, phrase: str, error: RequestError) -> None:
        """Ends the connection with an error body, unless that could be taken for the answer to another request."""
        waiting = [request for request in self._open if not request.response_complete]
        own = 0 if self._awaits_head else 1  # a body at fault belongs to the newest
        if len(waiting) <= own and not any(request.response_started for request in waiting):
            body = to_json(error_body(error))
            head = (
                f"HTTP/1.1 {status} {phrase}\r\nConnection: close\r\n"
                f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
            )
            self.transport.write(head.encode() + body)
        self.transport.close()
        self._expect_reader()

    def _expect_reader(self) -> None:
        """From now until nothing is left, the client has to accept some of what is written for it now and then."""
        if self._unread is None:
            self._unread_bytes = self.transport.get_write_buffer_size()
            if self._unread_bytes:
                self._unread = self.loop.call_later(self.unread_timeout_s, self._check_reader)

    def _check_reader(self) -> None:
        before, self._unread = self._unread_bytes, None
        if self.transport.get_write_buffer_size() >= before:
            self.transport.abort()  # to close would wait for the client
        else:
            self._expect_reader()
