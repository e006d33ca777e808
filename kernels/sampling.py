"""What a draw is: the parameters a row is sampled under and what comes back. Backends implement it.

The noise of a draw is a function of (seed, output position, token id) only, so speculation, batching and preemption
cannot shift it. Order: logit bias, penalties, mask, temperature, top-k, top-p, min-p, Gumbel-max.
"""

from __future__ import annotations

from dataclasses import dataclass


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
    logit_bias: tuple[tuple[int, float], ...] = ()
    suppress_ids: tuple[int, ...] = ()  # never drawn at output positions below suppress_until (min_tokens)
    suppress_until: int = 0
    num_logprobs: int | None = None  # None: none; n: the drawn token's and the n best of the raw row


@dataclass(frozen=True, slots=True)
class Draw:
    """A drawn token. Log-probabilities are those of the raw row, before bias, penalties, mask and temperature."""

    token_id: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()  # best first, ties to the lower id


@dataclass(frozen=True, slots=True)
class DrawFault:
    """A row that cannot be drawn from: why, in words for the request's error."""

    reason: str
