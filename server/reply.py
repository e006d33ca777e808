"""From a generation to HTTP: server-sent events or one JSON answer, which is the fold of the same chunks.

Knows nothing of what a chunk holds; that is an Answer's business, one file per API. Ends the generation in every case:
finished, client gone, too slow, out of time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Protocol

from fastapi import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ..engine.request import Output
from ..kernels.errors import RequestError
from .bridge import ClientGoneError, Generation
from .chunks import Chunk
from .encoding import SSE_COMMENT, json_response
from .errors import CLIENT_CLOSED_REQUEST
from .settings import ReplyTimes

_log = logging.getLogger("surefoot.server")


class Answer(Protocol):
    """Outputs of a generation in the shape of one API. Holds that shape's state for every choice."""

    def start(self) -> list[Chunk]:
        """Chunks that come before any output."""
        ...

    def feed(self, index: int, output: Output) -> list[Chunk]:
        """Chunks that an output of choice `index` completes, none while text is held. Raises its error."""
        ...

    def end(self) -> list[Chunk]:
        """Chunks that follow the last choice's end: usage."""
        ...

    @property
    def done(self) -> bool:
        """Every choice has ended."""
        ...

    def fold(self, chunks: Iterable[Chunk]) -> dict[str, object]:
        """All chunks of the answer, with usage, as the body of a response that is not streamed."""
        ...


class StreamedAnswer(Answer, Protocol):
    """An answer that may also go out as it grows."""

    def encoded(self, chunks: Iterable[Chunk]) -> bytes:
        """The chunks as a stream writes them."""
        ...

    def closing(self, error: RequestError | None) -> bytes:
        """A stream's last bytes, after all chunks or after an error."""
        ...


async def reply(
    request: Request, generation: Generation, answer: StreamedAnswer, stream: bool, times: ReplyTimes
) -> Response:
    """The response to a request whose choices run. Failing before the first output is an HTTP error, stream or not."""
    if not stream:
        return await whole_reply(request, generation, answer, times)
    watch = _Watch(request.receive, generation, times.total_s)
    try:
        batches = _Batches(generation, answer, times.keep_alive_s)
        first = await batches.next()
    except ClientGoneError:
        watch.close()
        return Response(status_code=CLIENT_CLOSED_REQUEST)
    except BaseException:
        watch.close()
        raise
    return EventStream(answer, first, batches, watch, times)


async def whole_reply(request: Request, generation: Generation, answer: Answer, times: ReplyTimes) -> Response:
    """One JSON answer, once every choice has ended."""
    watch = _Watch(request.receive, generation, times.total_s)
    try:
        batches = _Batches(generation, answer, None)
        chunks: list[Chunk] = []
        while not batches.ended:
            chunks += await batches.next()
        return json_response(answer.fold(chunks))
    except ClientGoneError:
        return Response(status_code=CLIENT_CLOSED_REQUEST)
    finally:
        watch.close()


class _Batches:
    """Chunks of an answer as steps complete them."""

    def __init__(self, generation: Generation, answer: Answer, idle_s: float | None) -> None:
        self._generation = generation
        self._answer = answer
        self._idle_s = idle_s
        self._head = answer.start()
        self.ended = False  # the last batch has been given

    async def next(self) -> list[Chunk]:
        """The next chunks; none means that nothing came for `idle_s`. Raises what ends the answer too early."""
        answer = self._answer
        chunks, self._head = self._head, []
        while not answer.done:
            outputs = await self._generation.take(self._idle_s)
            for index, output in outputs.items():
                chunks += answer.feed(index, output)
            if chunks or not outputs:
                return chunks
        self.ended = True
        return chunks + answer.end()


class _Watch:
    """Ends a generation whose client leaves or whose time is up."""

    def __init__(self, receive: Receive, generation: Generation, total_s: float | None) -> None:
        self._generation = generation
        self._listener = asyncio.create_task(self._listen(receive))
        self._timer = None
        if total_s is not None:
            self._timer = asyncio.get_running_loop().call_later(total_s, self._expire, total_s)

    async def _listen(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._generation.abort(ClientGoneError())

    def _expire(self, total_s: float) -> None:
        self._generation.abort(
            RequestError(
                f"The request took longer than {total_s:g} s", code="timeout", status=504, kind="timeout_error"
            )
        )

    def close(self) -> None:
        self._listener.cancel()
        if self._timer is not None:
            self._timer.cancel()
        self._generation.close()


class EventStream(Response):
    """A text/event-stream response over the batches of an answer."""

    def __init__(
        self, answer: StreamedAnswer, first: list[Chunk], rest: _Batches, watch: _Watch, times: ReplyTimes
    ) -> None:
        super().__init__(
            media_type="text/event-stream", headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        )
        del self.headers["content-length"]
        self._answer, self._first, self._rest, self._watch, self._times = answer, first, rest, watch, times

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        limited = _LimitedSend(send, self._times.send_s)
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            await self._write(limited)
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        except ClientGoneError:
            pass
        except TimeoutError:
            _log.warning("a client accepted no bytes for %g s; its request was ended", self._times.send_s)
        finally:
            limited.close()
            self._watch.close()

    async def _write(self, send: _LimitedSend) -> None:
        fault = None
        answer, batches = self._answer, self._rest
        try:
            await send(answer.encoded(self._first) or SSE_COMMENT)
            while not batches.ended:
                batch = await batches.next()
                data = answer.encoded(batch)
                if data or not batch:
                    await send(data or SSE_COMMENT)
        except RequestError as error:
            fault = error
        await send(answer.closing(fault))


class _LimitedSend:
    """Sends pieces of a body. TimeoutError where one takes longer than `limit_s`.

    asyncio.timeout would set and cancel a timer for every token; here one timer looks after a whole stream.
    """

    def __init__(self, send: Send, limit_s: float) -> None:
        self._send = send
        self._limit_s = limit_s
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        self._began: float | None = None  # when the piece that is being sent was
        self._late = False
        self._timer = self._loop.call_later(limit_s, self._check)

    async def __call__(self, data: bytes) -> None:
        self._began = self._loop.time()
        try:
            await self._send({"type": "http.response.body", "body": data, "more_body": True})
        except asyncio.CancelledError:
            if not self._late:
                raise
            assert self._task is not None
            self._task.uncancel()
            raise TimeoutError from None
        self._began = None

    def _check(self) -> None:
        now = self._loop.time()
        due = (now if self._began is None else self._began) + self._limit_s
        if due > now:
            self._timer = self._loop.call_at(due, self._check)
        else:
            assert self._task is not None, "the sender is a task"
            self._late = True
            self._task.cancel()

    def close(self) -> None:
        """Nothing more is sent."""
        self._timer.cancel()
