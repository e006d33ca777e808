"""One request's answer: turns drawn tokens into outputs, and knows when and why it ends. Knows no blocks and no rows.

Text and tokens may lag behind what is drawn: while the text could still become a stop string, nothing that would belong
to it is given out. Offsets count characters of the generated text:

    text      given out so far | held back: may start a stop string
    offsets   0 ..    _given   | .. _length
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ..kernels.sampling import Draw, SamplingSpec
from .repetition_guard import RepetitionGuard
from .request import REPETITION, Finish, FinishReason, GenerationParams, Output
from .stop_strings import StopStrings


class TextStream(Protocol):
    """Incremental detokenizer: whole characters only."""

    def take(self, token_id: int, /) -> str:
        """Text that became certain with this token."""
        ...

    def flush(self) -> str:
        """What is left: bytes that never became a character."""
        ...


def sampling_spec(params: GenerationParams, end_ids: frozenset[int]) -> SamplingSpec:
    """How to draw for these parameters. Ids that would end the request are suppressed until min_tokens are out."""
    return SamplingSpec(
        seed=params.seed,
        temperature=params.temperature,
        top_k=params.top_k,
        top_p=params.top_p,
        min_p=params.min_p,
        repetition_penalty=params.repetition_penalty,
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
        logit_bias=params.logit_bias,
        suppress_ids=tuple(sorted(end_ids)) if params.min_tokens > 0 else (),
        suppress_until=params.min_tokens,
        num_logprobs=params.num_logprobs,
    )


def end_ids(params: GenerationParams, end_of_generation: frozenset[int]) -> frozenset[int]:
    """Token ids that end the request."""
    own = frozenset(params.stop_token_ids)
    return own if params.ignore_eos else own | end_of_generation


class Generation:
    """State of one request's answer. `accept` is the only way forward; after a finish it is not called again."""

    __slots__ = (
        "_end_ids",
        "_end_of_generation",
        "_given",
        "_guard",
        "_held",
        "_length",
        "_max_output",
        "_min_tokens",
        "_num_prompt",
        "_stops",
        "_stream",
        "_wants_draws",
        "cached_tokens",
        "num_output",
        "prompt_draws",
    )

    def __init__(
        self,
        params: GenerationParams,
        num_prompt: int,
        max_output: int,
        end_of_generation: frozenset[int],
        stream: TextStream,
        stops: StopStrings | None,
    ) -> None:
        self._num_prompt = num_prompt
        self._max_output = max_output
        self._end_of_generation = end_of_generation
        self._end_ids = end_ids(params, end_of_generation)
        self._min_tokens = params.min_tokens
        self._stream = stream
        self._stops = stops
        limit = params.repetition_guard
        self._guard = None if limit is None else RepetitionGuard(limit)
        self._wants_draws = params.num_logprobs is not None
        self._held: list[tuple[Draw, int]] = []  # tokens not given out, with the offset where their text starts
        self._length = 0
        self._given = 0
        self.num_output = 0  # tokens drawn and kept
        self.cached_tokens = 0
        self.prompt_draws: list[Draw | None] | None = None  # complete, and not given out yet

    def accept(self, draws: Sequence[Draw]) -> tuple[int, Output]:
        """Takes drawn tokens up to the one that ends the request. Returns how many it took, and what to give out."""
        output = Output([], [])
        if self.prompt_draws is not None:
            output.prompt_draws, self.prompt_draws = self.prompt_draws, None
        taken = 0
        for draw in draws:
            taken += 1
            if self._take(draw, output):
                break
        return taken, output

    def end(self, reason: FinishReason, output: Output, stop_reason: int | str | None = None) -> None:
        """Gives out what is held back and closes the request."""
        self._flush(output)
        output.finish = self.finish(reason, stop_reason)

    def finish(self, reason: FinishReason, stop_reason: int | str | None = None) -> Finish:
        """A terminal event with the usage so far."""
        return Finish(reason, stop_reason, None, self._num_prompt, self.cached_tokens, self.num_output)

    def _take(self, draw: Draw, output: Output) -> bool:
        """One token. True if it ended the request."""
        token = draw.token_id
        self.num_output += 1
        if token in self._end_ids:  # never drawn before min_tokens are out
            self._flush(output)
            self._give(draw, output)
            output.finish = self.finish(FinishReason.STOP, None if token in self._end_of_generation else token)
            return True
        text = self._stream.take(token)
        if self._stops is None:
            output.token_ids.append(token)
            if self._wants_draws:
                output.draws.append(draw)
            output.text += text
        elif self._hold(draw, text, output):
            return True
        if self._guard is not None and self._guard.feed(token) and self.num_output > self._min_tokens:
            self.end(FinishReason.STOP, output, REPETITION)
            return True
        if self.num_output >= self._max_output:
            self.end(FinishReason.LENGTH, output)
            return True
        return False

    def _give(self, draw: Draw, output: Output) -> None:
        output.token_ids.append(draw.token_id)
        if self._wants_draws:
            output.draws.append(draw)

    def _hold(self, draw: Draw, text: str, output: Output) -> bool:
        """A token under stop strings. True if one was found: what lies wholly inside or after it is dropped."""
        assert self._stops is not None
        self._held.append((draw, self._length))
        self._length += len(text)
        if self.num_output <= self._min_tokens:  # stop strings count only after min_tokens
            safe, found = text, None
        else:
            safe = self._stops.feed(text)
            found = self._stops.match.stop if self._stops.match is not None else None
        self._given += len(safe)
        output.text += safe
        count = 0
        while count < len(self._held) and self._held[count][1] < self._given:
            self._give(self._held[count][0], output)
            count += 1
        del self._held[:count]
        if found is None:
            return False
        self.num_output -= len(self._held)
        self._held.clear()
        output.finish = self.finish(FinishReason.STOP, found)
        return True

    def _flush(self, output: Output) -> None:
        """No more text comes: everything held back is given out."""
        text = self._stream.flush()
        if self._stops is not None:
            text = self._stops.flush() + text
            for draw, _ in self._held:
                self._give(draw, output)
            self._held.clear()
        output.text += text
