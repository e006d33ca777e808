"""The loads that `surefoot bench serve` puts on a server. Each scenario runs once and returns named figures.

Prompts are token ids made from a seed, so that both sides of a comparison read the same ids and no run meets the prefix
cache of another unless the scenario is about that.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from .client import Target, Timing

WORDS = (
    "river stone lantern market engine winter garden signal paper copper harbor violin meadow ladder compass thunder "
    "pocket mirror orchard bridge captain silver valley window hammer feather station blanket pepper journey island "
    "number because under before through always never often slowly quickly bright quiet heavy narrow ancient simple "
    "carries follows answers measures returns gathers opens closes finds keeps writes reads turns holds moves waits"
).split()


@dataclass(slots=True)
class Prompts:
    """Makes prompts of an exact number of token ids, different for every seed, out of one tokenized stock of prose."""

    stock: list[int]

    @classmethod
    async def from_target(cls, target: Target) -> Prompts:
        """Tokenizes the stock with the server's own tokenizer."""
        rng = random.Random(7)
        text = " ".join(" ".join(rng.choice(WORDS) for _ in range(12)).capitalize() + "." for _ in range(600))
        return cls(await target.token_ids(text))

    def make(self, length: int, seed: int) -> list[int]:
        """`length` ids. The first sixteen are drawn one by one, so two seeds share no prefix."""
        rng = random.Random(seed)
        start = rng.randrange(max(1, len(self.stock) - length))
        body = (self.stock[start:] + self.stock * (1 + length // len(self.stock)))[:length]
        return [rng.choice(self.stock) for _ in range(min(16, length))] + body[min(16, length) :]


Figures = dict[str, float]
Scenario = Callable[[Target, Prompts, int], Awaitable[Figures]]


async def decode(target: Target, prompts: Prompts, seed: int) -> Figures:
    """One stream: tokens per second after the first, plain decoding (drafts depend on the text, see `bench spec`)."""
    timing = await target.complete(prompts.make(64, seed), 96, speculation={"enabled": False})
    return {"decode tok/s": timing.decode_rate}


async def prefill(target: Target, prompts: Prompts, seed: int) -> Figures:
    """512 prompt tokens, one output token: prompt tokens per second."""
    timing = await target.complete(prompts.make(512, seed), 1)
    return {"prefill tok/s": 512 / timing.first_token_seconds}


def streams(count: int) -> Scenario:
    """`count` streams at once: total output tokens per second from the first request to the last token."""

    async def run(target: Target, prompts: Prompts, seed: int) -> Figures:
        started = time.perf_counter()
        jobs = [target.complete(prompts.make(64, seed * 100 + i), 64) for i in range(count)]
        timings = await asyncio.gather(*jobs)
        ended = max(t.chunk_times[-1] for t in timings)
        return {f"{count} streams tok/s": sum(t.completion_tokens for t in timings) / (ended - started)}

    return run


async def shared_prefix(target: Target, prompts: Prompts, seed: int) -> Figures:
    """Time to first token of 1,500 shared prompt tokens and 16 of its own: cold, then warm."""
    prefix = prompts.make(1500, seed)
    cold = await target.complete(prefix + prompts.make(16, seed + 1), 1)
    warm = await target.complete(prefix + prompts.make(16, seed + 2), 1)
    return {
        "cold first token ms": 1e3 * cold.first_token_seconds,
        "warm first token ms": 1e3 * warm.first_token_seconds,
        "warm/cold": warm.first_token_seconds / cold.first_token_seconds,
    }


async def mixed(target: Target, prompts: Prompts, seed: int) -> Figures:
    """Three running streams while a 2,000-token prompt arrives: their longest gap, and the newcomer's first token."""
    running = [asyncio.create_task(target.complete(prompts.make(32, seed * 100 + i), 160)) for i in range(3)]
    await asyncio.sleep(0.5)
    newcomer = await target.complete(prompts.make(2000, seed * 100 + 50), 8)
    timings: list[Timing] = [await task for task in running]
    return {
        "longest gap ms": 1e3 * max(gap for t in timings for gap in t.gaps),
        "newcomer first token ms": 1e3 * newcomer.first_token_seconds,
    }


SCENARIOS: dict[str, Scenario] = {
    "decode": decode,
    "prefill": prefill,
    "streams-1": streams(1),
    "streams-4": streams(4),
    "streams-8": streams(8),
    "streams-16": streams(16),
    "shared-prefix": shared_prefix,
    "mixed": mixed,
}
LOWER_IS_BETTER = ("ms", "/cold")
