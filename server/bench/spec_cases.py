"""Loads of `surefoot bench spec` that speculation elsewhere was reported to lose on: text that changes its nature
within an answer or a chat, company that comes and goes, a machine with other work."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable

from ...engine.bench.texts import NOTICE, TURNS
from .client import Timing
from .spec_loads import Load, Result, user
from .spec_sides import Message, Side

FALSE_DAWN = (
    "Repeat the first two sentences of this notice word for word. Then write a long story about the sea that has "
    f"nothing to do with the notice.\n\n{NOTICE}"
)
ALTERNATING = (
    "Explain three ways to sort a list in Python. For each, first a paragraph of plain prose without any code, then a "
    "code block with a complete function, then a paragraph about when to use it."
)
QUOTE = f"Repeat the following notice word for word, and nothing else:\n\n{NOTICE}"
VISITORS = 4
SPIN = "while True: pass"


def one_turn(name: str, text: str, max_tokens: int) -> Load:
    """A single question, alone and cold."""

    async def run(side: Side, pair: int, salt: str) -> Result:
        result = Result()
        result.add(await side.ask([user(text)], max_tokens, salt))
        return result

    return Load(name, run)


def after_prose(name: str, max_tokens: int) -> Load:
    """A chat whose first answer is free prose and whose second one is a quote; and the same quote alone."""

    async def run(side: Side, pair: int, salt: str) -> Result:
        result = Result()
        history: list[Message] = [user(TURNS["prose"][pair % 2])]
        first = await side.ask(history, max_tokens, salt)
        result.add(first, "prose: ")
        history += [{"role": "assistant", "content": first.text}, user(QUOTE)]
        result.add(await side.ask(history, max_tokens, salt), "then a quote: ")
        result.add(await side.ask([user(QUOTE)], max_tokens, f"{salt}-alone"), "the quote alone: ")
        return result

    return Load(name, run)


def busy_spell(name: str, max_tokens: int) -> Load:
    """A stream that quotes, alone; after a third of its tokens others come for a while, then it is alone again."""

    async def run(side: Side, pair: int, salt: str) -> Result:
        result = Result()
        alone = await side.ask([user(QUOTE)], max_tokens, f"{salt}-alone")
        result.take(alone)

        async def visit(number: int) -> Timing:
            await asyncio.sleep(alone.first_token_seconds + (alone.chunk_times[-1] - alone.chunk_times[0]) / 3)
            text = TURNS["prose"][number % 2]
            return await side.ask([user(text)], max(2, max_tokens // 8), f"{salt}-{number}")

        quote, *visits = await asyncio.gather(
            side.ask([user(QUOTE)], max_tokens, salt), *(visit(number) for number in range(VISITORS))
        )
        for timing in (quote, *visits):
            result.take(timing)
        rate = quote.decode_rate
        if rate:
            result.figures["quote with visitors, decode tok/s"] = rate
        return result

    return Load(name, run)


def loaded_machine(name: str, kind: str, max_tokens: int) -> Load:
    """A turn beside a process that never rests."""

    async def run(side: Side, pair: int, salt: str) -> Result:
        result = Result()
        other = await asyncio.create_subprocess_exec(sys.executable, "-c", SPIN)
        try:
            result.add(await side.ask([user(TURNS[kind][pair % len(TURNS[kind])])], max_tokens, salt))
        finally:
            other.kill()
            await other.wait()
        return result

    return Load(name, run)


CASES: dict[str, Callable[[str, int], Load]] = {
    "false-dawn": lambda name, tokens: one_turn(name, FALSE_DAWN, tokens),
    "alternating": lambda name, tokens: one_turn(name, ALTERNATING, tokens),
    "after-prose": after_prose,
    "busy-spell": busy_spell,
    "loaded-machine": lambda name, tokens: loaded_machine(name, "code", tokens),
}
