"""What crosses between server and engine: a submission down, outputs up, exactly one of them final. Knows no HTTP."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from ..kernels.errors import RequestError
from ..kernels.sampling import Draw
from ..models.pooling import Pooling
from .grammar.matcher import Grammar
from .repetition_guard import RepetitionLimit
from .speculation.policy import NO_WISHES, RequestSpeculation


@dataclass(frozen=True, slots=True)
class GenerationParams:
    """How to continue a prompt. Values are already validated; the seed is already drawn."""

    max_tokens: int  # 0 is allowed: only the prompt is evaluated (log-probabilities of an echoed prompt)
    seed: int
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    min_tokens: int = 0
    repetition_guard: RepetitionLimit | None = None  # a loop that ends the answer
    visible_ids: frozenset[int] = frozenset()  # control tokens that the text shows: markers that its reader looks for
    num_logprobs: int | None = None
    prompt_logprobs: int | None = None  # n: log-probabilities of every prompt token but the first, with the n best
    grammar: Grammar | None = None  # compiled: what the whole answer must match


REPETITION = "repetition"  # the stop reason of an answer that its guard ended


class FinishReason(Enum):
    """Why a request ended."""

    STOP = "stop"  # end-of-generation token, stop token id, stop string or repetition guard
    LENGTH = "length"  # max_tokens or the context's end
    POOLED = "pooled"  # its embedding has been taken
    CANCELLED = "cancelled"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Finish:
    """The terminal event of a request."""

    reason: FinishReason
    stop_reason: int | str | None = None  # the request's stop token id or stop string that matched, or REPETITION
    error: RequestError | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0  # of the prompt, taken from the prefix cache
    completion_tokens: int = 0  # every token drawn and kept, the stop token included
    speculation: Mapping[str, object] | None = None  # what it did, if the request asked for a report
    # Seconds from submission to the first row and to the first token, None without one. No part of what the answer is.
    queue_s: float | None = field(default=None, compare=False)
    first_token_s: float | None = field(default=None, compare=False)


@dataclass(slots=True)
class Output:
    """What one step added to a request. `text` may lag behind `token_ids`: a possible stop string or half a character
    is held back. Tokens wholly inside or after a matched stop string are dropped from `token_ids` and `draws` alike."""

    token_ids: list[int] = field(default_factory=list[int])
    draws: list[Draw] = field(default_factory=list[Draw])  # parallel to token_ids when log-probabilities were asked for
    text: str = ""
    prompt_draws: list[Draw | None] | None = None  # once, with the first output: entry i judges prompt token i
    embedding: NDArray[np.float64] | None = None  # [hidden size], with the finish; not normalised
    finish: Finish | None = None

    def then(self, later: Output) -> Output:
        """What this one, which has no finish, and a later one added."""
        return Output(
            token_ids=self.token_ids + later.token_ids,
            draws=self.draws + later.draws,
            text=self.text + later.text,
            prompt_draws=self.prompt_draws if self.prompt_draws is not None else later.prompt_draws,
            embedding=later.embedding,
            finish=later.finish,
        )


@dataclass(frozen=True, slots=True)
class Submission:
    """A request as the engine takes it. `deliver` is called on the engine thread, in order, a final Output last."""

    request_id: str
    prompt_ids: Sequence[int]
    params: GenerationParams
    cache_salt: bytes  # prefix-cache tenant
    deliver: Callable[[Output], None]
    priority: int = 0  # lower runs first
    speculation: RequestSpeculation = NO_WISHES
    pooling: Pooling | None = None  # asks for the prompt's embedding; then max_tokens is 0
