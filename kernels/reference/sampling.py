"""The oracle of sampling: numpy, one row at a time, every filter spelled out over the whole sorted row.

Rows are float32; scores and probabilities float64. "Best first" means by value, ties to the lower token id. Minus
infinity in an adjusted row marks a token that must not be drawn; plus infinity outweighs everything finite.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..backend import DrawRequest
from ..sampling import NAN_ROW, NOTHING_ALLOWED, Draw, DrawFault, SamplingSpec
from . import noise

Row = NDArray[np.float32]  # [vocabulary]
Ids = NDArray[np.int64]


class ReferenceSampler:
    """The spec, which tokens prompt and output hold, and how often the output holds each."""

    def __init__(self, spec: SamplingSpec, prompt_ids: Sequence[int], vocab_size: int) -> None:
        spec.check(prompt_ids, vocab_size)
        self.spec = spec
        self.bias = np.zeros(vocab_size, np.float32)
        with np.errstate(over="ignore"):
            for token_id, value in spec.summed_bias().items():
                self.bias[token_id] = value
        self.wanted = self.bias == np.inf
        self.banned = self.bias == -np.inf
        self.bias[self.wanted | self.banned] = 0
        self.in_prompt = np.zeros(vocab_size, np.bool_)
        if spec.reads_prompt:
            self.in_prompt[list(prompt_ids)] = True
        self.output_counts = np.zeros(vocab_size, np.int64)

    @property
    def reads_output(self) -> bool:
        return True

    def commit(self, token_ids: Sequence[int]) -> None:
        for token_id in token_ids:
            self.output_counts[token_id] += 1


def draw_window(logits: NDArray[np.float32], request: DrawRequest) -> list[Draw] | DrawFault:
    """What `DrawRequest` says, over `logits` [rows, vocabulary]."""
    assert isinstance(request.sampler, ReferenceSampler)
    draws: list[Draw] = []
    for j in range(len(request.drafts) + 1):
        mask = None if request.masks is None else request.masks[j]
        drafted = [*request.history, *request.drafts[:j]]
        drawn = draw_row(logits[request.first_row + j], request.sampler, request.position + j, drafted, mask)
        if isinstance(drawn, DrawFault):
            return draws or drawn
        draws.append(drawn)
        if j < len(request.drafts) and drawn.token_id != request.drafts[j]:
            break
    return draws


def draw_row(
    row: Row, sampler: ReferenceSampler, position: int, drafted: Sequence[int], mask: NDArray[np.uint32] | None
) -> Draw | DrawFault:
    """One draw at output position `position`, as if `drafted` had been committed."""
    spec = sampler.spec
    if np.isnan(row).any():
        return NAN_ROW
    adjusted = adjust(row, sampler, position, drafted, mask)
    if not (adjusted > -np.inf).any():
        return NOTHING_ALLOWED
    token_id = int(np.argmax(adjusted)) if spec.temperature == 0 else _draw_at_temperature(adjusted, spec, position)
    if spec.num_logprobs is None:
        return Draw(token_id)
    return log_probabilities(row, token_id, spec.num_logprobs)


def adjust(
    row: Row, sampler: ReferenceSampler, position: int, drafted: Sequence[int], mask: NDArray[np.uint32] | None
) -> Row:
    """Logit bias, penalties, suppressed ids, mask, bans and exclusive tokens; float32, one rounding per operation."""
    spec = sampler.spec
    with np.errstate(invalid="ignore", over="ignore"):
        x = np.where(row == -np.inf, np.float32(-np.inf), row + sampler.bias)
        counts = sampler.output_counts + np.bincount(np.array(drafted, np.int64), minlength=len(row))
        repetition = np.float32(spec.repetition_penalty)
        x = np.where(sampler.in_prompt | (counts > 0), np.where(x > 0, x / repetition, x * repetition), x)
        x = x - np.float32(spec.frequency_penalty) * counts.astype(np.float32)
        x = x - np.float32(spec.presence_penalty) * (counts > 0).astype(np.float32)
    if position < spec.suppress_until:
        x[list(spec.suppress_ids)] = -np.inf
    if mask is not None:
        allowed = np.unpackbits(mask.astype("<u4").view(np.uint8), count=len(row), bitorder="little")
        x[allowed == 0] = -np.inf
    possible = x > -np.inf
    if (possible & sampler.wanted).any():
        x[~sampler.wanted] = -np.inf
    elif (possible & ~sampler.banned).any():
        x[sampler.banned] = -np.inf
    return x.astype(np.float32)


def below_best(x: Row) -> NDArray[np.float64]:
    """Distance of each value to the largest: 0 for the best. Only plus infinities count where there are any."""
    best = np.float64(x.max())
    return np.where(x == best, 0.0, -np.inf) if np.isinf(best) else x - best


def _draw_at_temperature(x: Row, spec: SamplingSpec, position: int) -> int:
    scaled = below_best(x) / spec.temperature
    ids = keep(x, scaled, spec)
    scores = scaled[ids] + noise.gumbel(spec.seed, position, ids)
    return int(ids[scores == scores.max()].min())


def keep(x: Row, scaled: NDArray[np.float64], spec: SamplingSpec) -> Ids:
    """The ids that top-k, top-p and min-p leave, best first. Never empty."""
    ids = best_first(x)
    ids = ids[scaled[ids] > -np.inf]
    if spec.top_k > 0:
        ids = ids[: spec.top_k]
    if spec.top_p < 1:  # the shortest run of best tokens that holds top_p of what top-k left
        mass = np.cumsum(np.exp(scaled[ids]))
        before = np.concatenate([[0.0], mass[:-1]])
        ids = ids[: max(1, int((before < spec.top_p * mass[-1]).sum()))]
    if spec.min_p > 0:  # at least min_p times as probable as the best
        ids = ids[scaled[ids] >= noise.log(np.array(spec.min_p))]
    return ids


def best_first(x: Row) -> Ids:
    """All ids, by value descending, then by id."""
    return np.lexsort((np.arange(len(x)), -x))


def log_probabilities(row: Row, token_id: int, num_top: int) -> Draw:
    """The raw row's log-softmax at `token_id` and at the `num_top` best possible tokens."""
    distance = below_best(row)
    logprobs = distance - np.log(np.exp(distance).sum())
    best = best_first(row)[:num_top]
    top = tuple((int(i), float(logprobs[i])) for i in best if logprobs[i] > -np.inf)
    return Draw(token_id, float(logprobs[token_id]), top)
