"""What `surefoot bench spec` asks of a server: single turns of six kinds, agent chats, and crowds that meet.

A load runs once on one side and returns figures, the streams it got in a fixed order, and what the server reported.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ...engine.bench.texts import NOTICE, TURNS
from .client import Timing
from .spec_sides import Message, Side, prefill_steps

LOWER_IS_BETTER = ("ms",)  # ends of figures' names
SENTENCES = (
    "Tool {n}: call it with the arguments path and pattern; it returns at most {m} lines.",
    "Rule {n}: never change more than {m} files in one answer, and name each of them.",
    "Case {n}: when a test fails {m} times in a row, stop and say what you saw.",
)


@dataclass(slots=True)
class Result:
    """One run of a load on one side. Streams of two sides at the same index answer the same question."""

    figures: dict[str, float] = field(default_factory=dict[str, float])
    streams: list[tuple[int, ...]] = field(default_factory=list[tuple[int, ...]])
    counters: dict[str, float] = field(default_factory=dict[str, float])

    def add(self, timing: Timing, prefix: str = "") -> None:
        """Notes a solo stream: its figures, its tokens, and what speculation did for it."""
        new = timing.prompt_tokens - timing.cached_tokens
        self.figures[f"{prefix}first token ms"] = 1e3 * timing.first_token_seconds
        if new > 0:
            self.figures[f"{prefix}prefill tok/s"] = new / timing.first_token_seconds
        if timing.decode_rate:
            self.figures[f"{prefix}decode tok/s"] = timing.decode_rate
        self.take(timing)

    def take(self, timing: Timing) -> None:
        """Notes tokens and counters only."""
        self.streams.append(tuple(timing.token_ids))
        report = timing.speculation
        self._count("tokens", timing.completion_tokens)
        self._count("verified", report.get("verified_tokens", 0))
        self._count("accepted", report.get("accepted_tokens", 0))
        by_kind: dict[str, int] = report.get("steps") or {}
        for kind, steps in by_kind.items():
            self._count(f"{kind} steps", steps)

    def _count(self, name: str, value: float) -> None:
        self.counters[name] = self.counters.get(name, 0) + value


@dataclass(frozen=True, slots=True)
class Load:
    """`run(side, number of the pair, salt)`. `max_batch`: requests that it has running at once."""

    name: str
    run: Callable[[Side, int, str], Awaitable[Result]]
    max_batch: int = 1


def user(text: str) -> Message:
    """A user's turn."""
    return {"role": "user", "content": text}


def turn(kind: str, max_tokens: int) -> Load:
    """One turn of a kind, alone and cold."""

    async def run(side: Side, pair: int, salt: str) -> Result:
        result, before = Result(), await prefill_steps(side)
        prompts = TURNS[kind]
        timing = await side.ask([user(prompts[pair % len(prompts)])], max_tokens, salt)
        result.add(timing)
        after = await prefill_steps(side)
        if before is not None and after is not None and after > before:
            fresh = timing.prompt_tokens - timing.cached_tokens
            result.figures["prompt tok/prefill step"] = fresh / (after - before)
        return result

    return Load(kind, run)


def system_prompt(words: int, pair: int) -> str:
    """About so many words of instructions, with a notice in their middle that a turn can ask for."""
    lines: list[str] = []
    count = number = 0
    noticed = False
    while count < words:
        if not noticed and count >= words // 2:
            lines.append(f"Notice of the harbour:\n{NOTICE}")
            noticed = True
        line = SENTENCES[number % 3].format(n=number + 1, m=3 + (7 * number + pair) % 11)
        lines.append(line)
        count += len(line.split())
        number += 1
    return "You are a careful assistant of a small harbour.\n" + "\n".join(lines)


CHAT_TURNS = (
    ("chat 1: question", "In three sentences: what may you change, and when do you stop?"),
    ("chat 2: quote the prompt", "Repeat the notice of the harbour from your instructions word for word."),
    ("chat 3: quote yourself", "Repeat your first answer in this conversation word for word."),
)
FRESH_CHAT = (
    "chat 4: new chat, shared prefix",
    "When does the tide gate open in May? Quote the sentence that says so.",
)


def agent_chat(words: int, max_tokens: int) -> Load:
    """Three turns on a long system prompt, then a new chat on the same one."""

    async def run(side: Side, pair: int, salt: str) -> Result:
        result = Result()
        system: Message = {"role": "system", "content": system_prompt(words, pair)}
        history: list[Message] = [system]
        for name, text in CHAT_TURNS:
            history.append(user(text))
            timing = await side.ask(history, max_tokens, salt)
            result.add(timing, f"{name}: ")
            history.append({"role": "assistant", "content": timing.text})
        result.add(await side.ask([system, user(FRESH_CHAT[1])], max_tokens, salt), f"{FRESH_CHAT[0]}: ")
        return result

    return Load("agent chat", run)


def crowd(count: int, stagger_ms: int, max_tokens: int) -> Load:
    """`count` streams of mixed kinds, each starting so long after the one before: what newcomers and neighbours get."""
    kinds = ("quote", "prose", "edit", "code")

    async def run(side: Side, pair: int, salt: str) -> Result:
        async def one(number: int) -> Timing:
            await asyncio.sleep(number * stagger_ms / 1e3)
            prompts = TURNS[kinds[(number + pair) % len(kinds)]]
            return await side.ask([user(prompts[pair % len(prompts)])], max_tokens, f"{salt}-{number}")

        timings = await asyncio.gather(*(one(number) for number in range(count)))
        result = Result()
        for timing in timings:
            result.take(timing)
        span = max(t.chunk_times[-1] for t in timings) - min(t.started for t in timings)
        result.figures["total tok/s"] = sum(t.completion_tokens for t in timings) / span
        if count > 1:
            result.figures["newcomer's first token ms"] = 1e3 * timings[-1].first_token_seconds
        pauses = in_company(timings)
        if pauses:
            by_tokens = [gap / tokens for gap, tokens in pauses for _ in range(tokens)]
            result.figures["neighbours' p99 gap ms"] = 1e3 * percentile(by_tokens, 0.99)
            result.figures["neighbours' p99 pause ms"] = 1e3 * percentile([gap for gap, _ in pauses], 0.99)
        return result

    return Load(f"{count} streams, {stagger_ms} ms apart", run, max_batch=count)


def in_company(timings: Sequence[Timing]) -> list[tuple[float, int]]:
    """(seconds since the chunk before, tokens) of chunks of all streams but the last one, each while another stream
    ran too: what a stream that is alone does to itself is nobody's company."""
    return [
        (after - before, tokens)
        for number, t in enumerate(timings[:-1])
        for before, after, tokens in zip(t.chunk_times, t.chunk_times[1:], t.chunk_tokens[1:], strict=False)
        if any(
            other.started <= before and after <= other.chunk_times[-1] for i, other in enumerate(timings) if i != number
        )
    ]


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least this share of the values does not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def lower_is_better(figure: str) -> bool:
    """Whether less of a figure is more."""
    return figure.endswith(LOWER_IS_BETTER)


def summed(results: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Counters of several runs, added up."""
    total: dict[str, float] = {}
    for counters in results:
        for name, value in counters.items():
            total[name] = total.get(name, 0) + value
    return total
