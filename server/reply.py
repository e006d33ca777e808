"""From a generation to HTTP: server-sent events or one JSON answer, which is the fold of the same chunks.

Knows nothing of what a chunk holds; that is an Answer's business, one file per API. Ends the generation in every case:
finished, client gone, too slow, out of time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
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
        batches = _batches(generation, answer, times.keep_alive_s)
        first = await anext(batches)
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
        batches = _batches(generation, answer, times.keep_alive_s)
        return json_response(answer.fold([chunk async for batch in batches for chunk in batch]))
    except ClientGoneError:
        return Response(status_code=CLIENT_CLOSED_REQUEST)
    finally:
        watch.close()


async def _batches(generation: Generation, answer: Answer, idle_s: float) -> AsyncGenerator[list[Chunk]]:
    """Chunks as steps complete them; an empty batch means that nothing came for `idle_s`."""
    head = answer.start()
    while not answer.done:
        outputs = await generation.take(idle_s)
        chunks = head + [chunk for index, output in outputs.items() for chunk in answer.feed(index, output)]
        head = []
        if chunks or not outputs:
            yield chunks
    yield head + answer.end()


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
        self,
        answer: StreamedAnswer,
        first: list[Chunk],
        rest: AsyncGenerator[list[Chunk]],
        watch: _Watch,
        times: ReplyTimes,
    ) -> None:
        super().__init__(
            media_type="text/event-stream", headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        )
        del self.headers["content-length"]
        self._answer, self._first, self._rest, self._watch, self._times = answer, first, rest, watch, times

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            async with aclosing(self._events()) as events:
                async for data in events:
                    async with asyncio.timeout(self._times.send_s):
                        await send({"type": "http.response.body", "body": data, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        except ClientGoneError:
            pass
        except TimeoutError:
            _log.warning("a client accepted no bytes for %g s; its request was ended", self._times.send_s)
        finally:
            self._watch.close()

    async def _events(self) -> AsyncGenerator[bytes]:
        fault = None
        try:
            yield self._answer.encoded(self._first) or SSE_COMMENT
            async for batch in self._rest:
                data = self._answer.encoded(batch)
                if data or not batch:
                    yield data or SSE_COMMENT
        except RequestError as error:
            fault = error
        yield self._answer.closing(fault)
