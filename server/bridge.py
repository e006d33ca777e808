"""The border between the engine thread and the event loop. Owns the open generations and admission.

Outputs cross in batches: the engine thread appends to an outbox, and the results of one step cost one wake-up, however
many streams it fed: the engine rings a bell once its thread does not need the GIL. Where there are no such bells, the
loop is woken by the first output, unless it is already on its way.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from ..engine.pooling import Pooling
from ..engine.request import NO_WISHES, GenerationParams, Output, RequestSpeculation, Submission
from ..kernels.errors import RequestError
from .limits import Allowance
from .ports import Engine
from .visit import Trace, current_visit

_RETRY_ELSEWHERE_S = 5  # by then a replacement may run

ResultT = TypeVar("ResultT")

_log = logging.getLogger("surefoot.server")


@dataclass(frozen=True, slots=True)
class Choice:
    """One continuation to compute: choice `index` of a request."""

    prompt_ids: Sequence[int]
    params: GenerationParams
    speculation: RequestSpeculation = NO_WISHES
    pooling: Pooling | None = None  # asks for the prompt's embedding


class ClientGoneError(Exception):
    """The client disconnected; nobody reads the answer. Never leaves the server's reply code."""


class Generation:
    """All choices of one HTTP request. Lives on the event loop, except that the bridge feeds it."""

    __slots__ = (
        "_allowance",
        "_bridge",
        "_fault",
        "_later",
        "_pending",
        "_read",
        "_result",
        "_running",
        "_since",
        "_timer",
        "_trace",
        "request_id",
    )

    def __init__(
        self,
        bridge: Bridge,
        request_id: str,
        num_choices: int,
        allowance: Allowance | None = None,
        trace: Trace | None = None,
    ) -> None:
        self.request_id = request_id
        self._allowance = allowance
        self._trace = trace
        self._bridge = bridge
        self._running = set(range(num_choices))
        self._later: deque[tuple[int, Submission]] = deque()  # choices that follow those that run
        self._pending: dict[int, Output] = {}
        self._read: Callable[[Mapping[int, Output]], object] | None = None
        self._result: asyncio.Future[Any] | None = None  # what `_read` returns in the end
        self._since = 0.0  # when something came last, or somebody began to wait
        self._timer: asyncio.TimerHandle | None = None  # of waits that must end
        self._fault: Exception | None = None

    @property
    def num_running(self) -> int:
        """Choices the engine has not ended yet."""
        return len(self._running)

    async def follow(
        self, read: Callable[[Mapping[int, Output]], ResultT | None], idle_s: float | None = None
    ) -> ResultT:
        """Calls `read` with what is added, by choice, until it returns something, and returns that.

        `read` runs right when the loop hears of a step's outputs: no task has to wake for a token. After `idle_s` of
        nothing it is called with nothing. What comes while nobody follows arrives merged, so a slow reader costs memory
        bounded by its own answer and never holds up the engine. Raises what `read` raises or `abort` was given.
        """
        assert self._result is None, "a generation has one reader"
        loop = asyncio.get_running_loop()
        self._since = loop.time()
        if self._timer is None and idle_s is not None:
            self._timer = loop.call_later(idle_s, self._check_idle, idle_s)
        self._read, self._result = read, loop.create_future()
        try:
            if self._pending or self._fault is not None:
                self.pass_on()
            result = await self._result
        finally:
            self._read = self._result = None
        if self._fault is not None:
            raise self._fault
        return result

    def pass_on(self) -> None:
        """Lets the reader, if one follows, have what was added. Called by the bridge once for all outputs of a step."""
        read, result = self._read, self._result
        if read is None or result is None or result.done():
            return
        if self._fault is not None:
            result.set_result(None)
            return
        self._since = asyncio.get_running_loop().time()
        pending, self._pending = self._pending, {}
        try:
            found = read(pending)
        except Exception as fault:  # noqa: BLE001  (`follow` raises it; here it would end other requests)
            self.abort(fault)
            return
        if found is not None:
            result.set_result(found)

    def _check_idle(self, idle_s: float) -> None:
        """One timer looks after all waits: to set and cancel one for every token costs more than the token."""
        loop = asyncio.get_running_loop()
        due = self._since + idle_s
        if due <= loop.time():
            self.pass_on()
            due = loop.time() + idle_s
        self._timer = loop.call_at(due, self._check_idle, idle_s)

    def receive(self, index: int, output: Output) -> None:
        """Called by the bridge, on the loop; `pass_on` follows."""
        if output.finish is not None:
            self._running.discard(index)
            if self._trace is not None:
                self._trace.ended(index, output.finish)
            self._go_on()
        if self._fault is None:
            held = self._pending.get(index)
            self._pending[index] = output if held is None else held.then(output)

    def queue(self, index: int, submission: Submission) -> None:
        """A choice that the engine gets when one before it has ended."""
        self._later.append((index, submission))

    def _go_on(self) -> None:
        """A choice has ended: its place goes to the next one or, if there is none, back to the bridge."""
        if self._later:
            index, submission = self._later.popleft()
            try:
                self._bridge.engine.submit(submission)
            except RequestError as fault:
                self.abort(fault)
            else:
                self._running.add(index)
                return
        self._give_back()

    def abort(self, fault: Exception) -> None:
        """Ends the generation from the server's side, once: the engine is told, and the reader gets `fault`."""
        if self._fault is not None:
            return
        self._fault = fault
        self._pending = {}
        self._later.clear()
        self.pass_on()
        for index in sorted(self._running):
            self._bridge.engine.cancel(choice_id(self.request_id, index))

    def withdraw(self, first: int) -> None:
        """Choices from `first` on never reached the engine, so it will not end them."""
        for index in [index for index in self._running if index >= first]:
            self._running.discard(index)
            self._give_back()

    def _give_back(self) -> None:
        """A choice's place is free."""
        if self._allowance is not None:
            self._allowance.num_choices -= 1
        self._bridge.ended(self)

    def close(self) -> None:
        """The reader is finished; what still runs is cancelled."""
        if self._timer is not None:
            self._timer.cancel()
        self.abort(ClientGoneError())

    def sink(self, index: int) -> Callable[[Output], None]:
        """The `deliver` of a choice's submission."""
        return partial(self._bridge.post, self, index)


def choice_id(request_id: str, index: int) -> str:
    """The engine's name of a choice."""
    return f"{request_id}/{index}"


class Bridge:
    """Admits generations, carries their outputs to the loop, and drains."""

    def __init__(self, engine: Engine, max_requests: int) -> None:
        self.engine = engine
        self.max_requests = max_requests  # choices in the engine, running and waiting
        self.draining = False
        self._open: set[Generation] = set()
        self._num_running = 0
        self._outbox: deque[tuple[Generation, int, Output]] = deque()
        self._wake_due = False
        self._bell: int | None = None  # an eventfd that the engine rings once a step; else `post` wakes the loop
        self._loop: asyncio.AbstractEventLoop | None = None
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def num_running(self) -> int:
        """Choices the engine has not ended yet."""
        return self._num_running

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Names the loop that outputs go to."""
        self._loop = loop
        if sys.platform == "linux":
            bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
            if self.engine.announce(bell):
                self._bell = bell
                loop.add_reader(bell, self._rung)
            else:
                os.close(bell)

    def detach(self) -> None:
        """The loop is about to close; later outputs are dropped. The engine must have stopped."""
        if self._bell is not None and self._loop is not None:
            self.engine.announce(None)
            self._loop.remove_reader(self._bell)
            os.close(self._bell)
        self._loop = self._bell = None

    def open(
        self,
        request_id: str,
        choices: Sequence[Choice],
        cache_salt: bytes,
        priority: int = 0,
        *,
        at_once: int | None = None,
    ) -> Generation:
        """Submits every choice, or none: RequestError 429 when full, 503 when draining, or the engine's own refusal.

        With `at_once`, so many; each of the others takes the place of one that has ended.
        """
        count = len(choices) if at_once is None else min(at_once, len(choices))
        self.admit(count)
        visit = current_visit()
        allowance, trace = (None, None) if visit is None else (visit.allowance, visit.trace)
        if visit is not None:
            visit.response_id = request_id
        generation = Generation(self, request_id, count, allowance, trace)
        if allowance is not None:
            allowance.num_choices += count
        if trace is not None:
            trace.submitted()
        self._open.add(generation)
        self._num_running += count
        self._idle.clear()
        for index, choice in enumerate(choices):
            submission = Submission(
                request_id=choice_id(request_id, index),
                prompt_ids=choice.prompt_ids,
                params=choice.params,
                cache_salt=cache_salt,
                deliver=generation.sink(index),
                priority=priority,
                speculation=choice.speculation,
                pooling=choice.pooling,
            )
            if index >= count:
                generation.queue(index, submission)
                continue
            try:
                self.engine.submit(submission)
            except RequestError:
                generation.withdraw(index)
                generation.close()
                raise
        return generation

    def at_most(self, num_choices: int) -> int:
        """So many choices, or as many as the request's key may run at once."""
        visit = current_visit()
        limit = None if visit is None or visit.allowance is None else visit.allowance.limits.at_once
        return num_choices if limit is None else min(num_choices, limit)

    def admit(self, num_choices: int) -> None:
        """RequestError 429 or 503 unless there is room. Also asked before the work that comes before `open`."""
        if self.draining:
            raise _shutting_down()
        if num_choices > self.max_requests:
            raise RequestError(
                f"{num_choices} choices are more than this server takes at once ({self.max_requests})", param="n"
            )
        visit = current_visit()
        if visit is not None and visit.allowance is not None:
            visit.allowance.admit(num_choices)
        if self._num_running + num_choices > self.max_requests:
            raise RequestError(
                f"The server is full: {self._num_running} of {self.max_requests} requests are running or waiting",
                code="rate_limit_exceeded",
                status=429,
                kind="rate_limit_error",
                retry_after=1,
            )

    def post(self, generation: Generation, index: int, output: Output) -> None:
        """Engine thread: queues an output and makes sure the loop will look."""
        self._outbox.append((generation, index, output))
        if self._bell is None and not self._wake_due:
            self._wake_due = True
            loop = self._loop
            if loop is not None:
                loop.call_soon_threadsafe(self._distribute)

    def _rung(self) -> None:
        assert self._bell is not None
        os.read(self._bell, 8)  # before emptying: an output posted from here on rings again
        self._distribute()

    def _distribute(self) -> None:
        self._wake_due = False  # before emptying: an output posted from here on wakes the loop again
        outbox = self._outbox
        grown: dict[Generation, None] = {}
        while outbox:
            generation, index, output = outbox.popleft()
            generation.receive(index, output)
            grown[generation] = None
        for generation in grown:
            generation.pass_on()

    def ended(self, generation: Generation) -> None:
        """A choice of `generation` reached its end."""
        self._num_running -= 1
        if generation.num_running == 0:
            self._open.discard(generation)
        if self._num_running == 0:
            self._idle.set()

    async def drain(self, deadline_s: float) -> None:
        """Refuses new work and waits for the old; what outlives the deadline is ended with an error."""
        self.draining = True
        try:
            async with asyncio.timeout(deadline_s):
                await self._idle.wait()
        except TimeoutError:
            _log.warning("drain deadline passed with %d requests running; ending them", self._num_running)
            self.cut()

    def cut(self) -> None:
        """Ends every open generation: the server stops."""
        for generation in list(self._open):
            generation.abort(_shutting_down())


def _shutting_down() -> RequestError:
    return RequestError(
        "The server is shutting down",
        code="shutting_down",
        status=503,
        kind="service_unavailable_error",
        retry_after=_RETRY_ELSEWHERE_S,
    )
