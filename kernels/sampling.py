"""What a draw is: the parameters a row is sampled under and what comes back. Backends implement it.

The noise of a draw is a function of (seed, output position, token id) only, so speculation, batching and preemption
cannot shift it. Order: logit bias, penalties, mask, bans and exclusive tokens, temperature, top-k, top-p, min-p,
Gumbel-max.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from .errors import RequestError


@dataclass(frozen=True, slots=True)
class SamplingSpec:
    """Sampling parameters of one request. Temperature 0 is greedy: the lowest id among the largest logits."""

    seed: int  # 64 bits
    temperature: float = 1.0
    top_k: int = 0  # 0: off
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0  # over prompt and output: positive logits are divided, negative multiplied
    presence_penalty: float = 0.0  # over output
    frequency_penalty: float = 0.0  # over output
    # Added to logits; ids given twice add up. Infinite ones are the limits of large ones at any temperature: where mask
    # and suppressed ids leave one biased by plus infinity, only such are drawn; else, where they leave any token
    # not biased by minus infinity, none of those is. Among themselves they compare as if they had no bias.
    logit_bias: tuple[tuple[int, float], ...] = ()
    suppress_ids: tuple[int, ...] = ()  # never drawn at output positions below suppress_until (min_tokens)
    suppress_until: int = 0
    num_logprobs: int | None = None  # None: none; n: the drawn token's and the n best of the raw row

    @property
    def reads_prompt(self) -> bool:
        """Whether a draw depends on which tokens the prompt holds."""
        return self.repetition_penalty != 1

    def summed_bias(self) -> dict[int, float]:
        """The bias of each id that has one. Not a number where an id is given both infinities."""
        bias: dict[int, float] = {}
        for token_id, value in self.logit_bias:
            bias[token_id] = bias.get(token_id, 0.0) + value
        return bias

    def check(self, prompt_ids: Sequence[int], vocab_size: int) -> None:
        """Raises RequestError, naming the field, for values or token ids that cannot be sampled under."""
        usable = {
            "temperature": 0 <= self.temperature <= 1e6,
            "top_p": 0 <= self.top_p <= 1,
            "min_p": 0 <= self.min_p <= 1,
            "repetition_penalty": 0 < self.repetition_penalty <= 1e6,
            "presence_penalty": abs(self.presence_penalty) <= 1e6,
            "frequency_penalty": abs(self.frequency_penalty) <= 1e6,
            "logprobs": self.num_logprobs is None or self.num_logprobs >= 0,
            "logit_bias": not any(math.isnan(value) for value in self.summed_bias().values()),
        }
        for field, fits in usable.items():
            if not fits:
                raise RequestError(f"{field} is out of range", param=field)
        prompt = prompt_ids if self.reads_prompt else ()
        ids = {"prompt": prompt, "logit_bias": [i for i, _ in self.logit_bias], "stop_token_ids": self.suppress_ids}
        for field, values in ids.items():
            if len(values) and not 0 <= min(values) <= max(values) < vocab_size:
                raise RequestError(f"{field}: a token id outside the vocabulary of {vocab_size} tokens", param=field)


class Draw(NamedTuple):
    """A drawn token. Log-probabilities are those of the raw row, before bias, penalties, mask and temperature."""

    token_id: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()  # best first, ties to the lower id


@dataclass(frozen=True, slots=True)
class DrawFault:
    """A row that cannot be drawn from: why, in words for the request's error."""

    reason: str


NAN_ROW = DrawFault("the model's logits are not numbers (NaN)")
NOTHING_ALLOWED = DrawFault("no token is allowed at this position")
