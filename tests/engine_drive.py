"""Drives an engine core without a thread, and collects what requests get."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from prometheus_client import CollectorRegistry

from surefoot.engine.config import EngineConfig
from surefoot.engine.core import EngineCore
from surefoot.engine.metrics import Metrics
from surefoot.engine.request import Finish, GenerationParams, Output, Submission
from surefoot.engine.resources import allocate
from surefoot.engine.speculation.policy import NO_WISHES, RequestSpeculation
from surefoot.kernels.backend import Backend
from surefoot.kernels.sampling import Draw
from surefoot.models.pooling import Pooling


@dataclass
class Answer:
    """Everything one request got."""

    token_ids: list[int] = field(default_factory=list)
    draws: list[Draw] = field(default_factory=list)
    text: str = ""
    prompt_draws: list[Draw | None] | None = None
    embedding: NDArray[np.float64] | None = None
    finish: Finish | None = None
    num_outputs: int = 0

    def take(self, output: Output) -> None:
        assert self.finish is None, "an output after the final one"
        self.num_outputs += 1
        self.token_ids += output.token_ids
        self.draws += output.draws
        self.text += output.text
        if output.prompt_draws is not None:
            assert self.num_outputs == 1
            self.prompt_draws = output.prompt_draws
        self.embedding = output.embedding
        self.finish = output.finish

    @property
    def done(self) -> Finish:
        assert self.finish is not None, "the request has not ended"
        return self.finish


def params(max_tokens: int = 8, seed: int = 0, temperature: float = 0.0, **rest: object) -> GenerationParams:
    return GenerationParams(max_tokens=max_tokens, seed=seed, temperature=temperature, **rest)  # type: ignore[arg-type]


class Drive:
    """A core over a backend; `run` steps it until all requests have ended."""

    def __init__(self, model: Any, backend: Backend, **config: Any) -> None:
        config.setdefault("measure_cost", False)
        config.setdefault("poison_freed", True)
        self.config = EngineConfig(**config)
        self.backend = backend
        self.core = EngineCore(
            allocate(model, backend, self.config),
            Metrics(CollectorRegistry()),
        )
        self.answers: dict[str, Answer] = {}

    def add(
        self,
        prompt_ids: Sequence[int],
        request: GenerationParams | None = None,
        *,
        name: str | None = None,
        salt: bytes = b"",
        priority: int = 0,
        wishes: RequestSpeculation = NO_WISHES,
        pooling: Pooling | None = None,
    ) -> Answer:
        name = name or f"r{len(self.answers)}"
        answer = self.answers[name] = Answer()
        submission = Submission(
            name, list(prompt_ids), request or params(), salt, answer.take, priority, wishes, pooling=pooling
        )
        self.core.add(submission, time.monotonic())
        return answer

    def step(self) -> None:
        self.core.step()
        outbox, self.core.outbox = self.core.outbox, []
        for submission, output in outbox:
            submission.deliver(output)

    def cancel(self, name: str) -> None:
        self.core.cancel(name)

    def run(self, max_steps: int = 20_000) -> None:
        for _ in range(max_steps):
            if not self.core.has_work:
                break
            self.step()
        assert not self.core.has_work, "requests did not end"
        self.step()
        self.check_idle()

    def check_idle(self) -> None:
        """Nothing is held, claimed or lost."""
        cache = self.core.cache
        for pool in cache.pools:
            assert pool.num_held == 0
            assert pool.num_free + pool.num_cached == pool.num_usable
        assert cache.num_free_slots == self.core.scheduler.limits.max_running
        assert not self.core.scheduler.running and not self.core.scheduler.waiting
        assert not cache.index._claims
        held = sum(any(node.blocks) for node in cache.index._nodes.values())
        assert held <= sum(pool.num_cached for pool in cache.pools)

    def one(self, prompt_ids: Sequence[int], request: GenerationParams | None = None, **rest: object) -> Answer:
        """One request on its own."""
        answer = self.add(prompt_ids, request, **rest)  # type: ignore[arg-type]
        self.run()
        return answer
