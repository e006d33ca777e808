"""An engine driven without a server around it: what `bench overhead` holds HTTP against. Knows no HTTP."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from ...kernels.errors import RequestError
from ..core import EngineCore
from ..engine import Engine
from ..request import FinishReason, GenerationParams, Output, RequestSpeculation, Submission


@dataclass(frozen=True, slots=True)
class DirectRun:
    """Streams that were submitted together."""

    seconds: float  # from the first submission to the last token
    num_tokens: int


@dataclass(frozen=True, slots=True)
class DecodeTurns:
    """The engine thread's turns with nothing but decodes: how many, and their seconds by who had the time."""

    steps: float
    native: float
    gil_wait: float
    python: float

    def since(self, before: DecodeTurns) -> DecodeTurns:
        """What came after `before`."""
        return DecodeTurns(
            self.steps - before.steps,
            self.native - before.native,
            self.gil_wait - before.gil_wait,
            self.python - before.python,
        )


def decode_turns(engine: Engine) -> DecodeTurns:
    """So far, looked at between two turns."""

    def look(core: EngineCore) -> DecodeTurns:
        times = core.metrics.turn_seconds["decode"]
        return DecodeTurns(core.metrics.step_seconds["decode"].count, times.native, times.waiting, times.python)

    return engine.call(look).result()


class _Stream:
    """Counts what one request gives."""

    def __init__(self) -> None:
        self.num_tokens = 0
        self.error: RequestError | None = None
        self.ended = threading.Event()

    def take(self, output: Output) -> None:
        """On the engine thread: as little as a listener can do."""
        self.num_tokens += len(output.token_ids)
        if output.finish is not None:
            if output.finish.reason is FinishReason.ERROR:
                self.error = output.finish.error
            self.ended.set()


def drive(engine: Engine, prompts: Sequence[Sequence[int]], max_tokens: int) -> DirectRun:
    """One greedy stream of `max_tokens` tokens per prompt, all at once, plain decoding. Raises RequestError."""
    params = GenerationParams(max_tokens=max_tokens, seed=1, temperature=0.0, ignore_eos=True)
    streams = [_Stream() for _ in prompts]
    started = time.perf_counter()
    for number, (ids, stream) in enumerate(zip(prompts, streams, strict=True)):
        plain = RequestSpeculation(enabled=False)
        engine.submit(Submission(f"direct-{number}", ids, params, b"", stream.take, speculation=plain))
    for stream in streams:
        stream.ended.wait()
    seconds = time.perf_counter() - started
    for stream in streams:
        if stream.error is not None:
            raise stream.error
    return DirectRun(seconds, sum(stream.num_tokens for stream in streams))
