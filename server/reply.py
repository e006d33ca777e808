"""From a generation to HTTP: server-sent events or one JSON answer, which is the fold of the same chunks.

Knows nothing of what a chunk holds; that is an Answer's business, one file per API. Ends the generation in every case:
finished, client gone, too slow, out of time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from fastapi import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ..engine.request import Output
from ..kernels.errors import RequestError
from .bridge import ClientGoneError, Generation
from .chunks import Chunk
from .connection import DirectBody, direct_body
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
        return json_response(answer.fold(await batches.rest()))
    except ClientGoneError:
        return Response(status_code=CLIENT_CLOSED_REQUEST)
    finally:
        watch.close()


class _Batches:
    """Chunks of an answer as steps complete them."""

    __slots__ = ("_answer", "_generation", "_head", "_idle_s", "ended")

    def __init__(self, generation: Generation, answer: Answer, idle_s: float | None) -> None:
        self._generation = generation
        self._answer = answer
        self._idle_s = idle_s
        self._head = answer.start()
        self.ended = False  # the last batch has been given

    async def next(self) -> list[Chunk]:
        """The next chunks; none means that nothing came for `idle_s`. Raises what ends the answer too early."""
        return await self._generation.follow(self._batch, self._idle_s)

    async def pass_on(self, take: Callable[[list[Chunk]], bool]) -> list[Chunk]:
        """Gives `take` one batch after the other, as `next` does, until it takes one no more. That one is returned, or
        the last one, which `take` does not get."""

        def given(outputs: Mapping[int, Output]) -> list[Chunk] | None:
            batch = self._batch(outputs)
            return batch if batch is not None and (self.ended or not take(batch)) else None

        return await self._generation.follow(given, self._idle_s)

    async def rest(self) -> list[Chunk]:
        """All chunks that are still to come."""
        chunks: list[Chunk] = []

        def collected(batch: list[Chunk]) -> bool:
            chunks.extend(batch)
            return True

        return chunks + await self.pass_on(collected)

    def _batch(self, outputs: Mapping[int, Output]) -> list[Chunk] | None:
        """The chunks that outputs complete. None: nothing is to be shown yet."""
        answer = self._answer
        chunks, self._head = self._head, []
        for index, output in outputs.items():
            chunks += answer.feed(index, output)
        if answer.done:
            self.ended = True
            return chunks + answer.end()
        return chunks if chunks or not outputs else None


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
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            await self._write(send, direct_body(scope))
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        except ClientGoneError:
            pass
        except TimeoutError:
            _log.warning("a client accepted no bytes for %g s; its request was ended", self._times.send_s)
        finally:
            self._watch.close()

    async def _write(self, send: Send, direct: DirectBody) -> None:
        def written(batch: list[Chunk]) -> bool:
            if not direct.is_open:
                return False
            direct.write(self._encoded(batch))
            return True

        batches, batch, fault = self._rest, self._first, None
        try:
            await self._send(send, self._encoded(batch))
            while not batches.ended:
                batch = await batches.pass_on(written)
                await self._send(send, self._encoded(batch))
        except RequestError as error:
            fault = error
        await self._send(send, self._answer.closing(fault))

    def _encoded(self, batch: list[Chunk]) -> bytes:
        """Something in any case: who waits hears that the stream goes on."""
        return (self._answer.encoded(batch) if batch else b"") or SSE_COMMENT

    async def _send(self, send: Send, data: bytes) -> None:
        """A piece of the body. TimeoutError if the client does not accept it."""
        async with asyncio.timeout(self._times.send_s):
            await send({"type": "http.response.body", "body": data, "more_body": True})
