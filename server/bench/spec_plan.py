"""From the command's options to the loads of `surefoot bench spec`, fitted to the server's context."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from ...engine.bench.texts import TURNS
from ...kernels.errors import ConfigError
from .client import Target
from .spec import Options, Report, make_sides, run
from .spec_cases import CASES
from .spec_loads import Load, agent_chat, crowd, turn
from .spec_sides import served_model

CHAT, CROWD = "chat", "crowd"
LONGEST_SYSTEM = 3500  # words: about 5,000 tokens
TOKENS_PER_WORD = 1.6  # at most, of such text
TURN_ROOM = 600  # tokens of the notice and of a chat's questions


@dataclass(frozen=True, slots=True)
class Plan:
    """Which loads. `system_words` None: as many as fit, at most LONGEST_SYSTEM."""

    names: Sequence[str] | None
    tokens: int
    system_words: int | None
    concurrency: Sequence[int]
    stagger_ms: Sequence[int]

    def loads(self, context: int | None) -> list[Load]:
        """Raises ConfigError for an unknown name."""
        known = [*TURNS, CHAT, CROWD, *CASES]
        names = self.names or [*TURNS, CHAT, CROWD]
        if unknown := [name for name in names if name not in known]:
            raise ConfigError(f"--load {unknown[0]!r}: known are {', '.join(known)}")
        loads = [turn(name, self.tokens) for name in names if name in TURNS]
        if CHAT in names:
            loads.append(agent_chat(self._words(context), self.tokens))
        if CROWD in names:
            # A lone stream has nobody to keep a distance to.
            shapes = [(n, ms) for n in self.concurrency for ms in (self.stagger_ms if n > 1 else self.stagger_ms[:1])]
            loads += [crowd(count, ms, self.tokens) for count, ms in shapes]
        loads += [CASES[name](name, self.tokens) for name in names if name in CASES]
        return loads

    def _words(self, context: int | None) -> int:
        if self.system_words is not None:
            return self.system_words
        room = (context or 8192) - TURN_ROOM - 4 * self.tokens
        return max(50, min(LONGEST_SYSTEM, int(room / TOKENS_PER_WORD)))


async def measure(options: Options, plan: Plan) -> Report:
    """Asks the servers what they serve, and runs. Raises BenchError and ConfigError."""
    model, context = await served_model(Target(options.url, api_key=options.api_key, label=options.url))
    loads = plan.loads(context)
    other = None
    if options.against is not None:
        other, _ = await served_model(Target(options.against, api_key=options.api_key, label=options.against))
    # The seed comes from the clock: a second call must not find its prompts in a prefix cache.
    return await run(options, loads, make_sides(options, model, other), seed=time.time_ns() % 1_000_000)
