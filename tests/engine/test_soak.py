"""Many requests of every kind, cancelled at any moment: right answers, and nothing is left behind."""

from __future__ import annotations

import gc
import random
import sys
import threading
import time

import psutil
import pytest
from engine_drive import Answer, Drive, params
from fake_backend import FakeBackend, FakeModel

from surefoot.engine.config import EngineConfig
from surefoot.engine.engine import Engine
from surefoot.engine.request import FinishReason, Output, Submission


def test_memory_is_flat_over_one_token_requests() -> None:
    """The prefix cache, the queues and the metrics keep nothing per request beyond their bounds."""
    drive = Drive(FakeModel(context_length=64), FakeBackend(), kv_memory=33 * 1024, poison_freed=False)
    rng = random.Random(0)

    def serve(count: int) -> None:
        for _ in range(count):
            answer = drive.add(rng.choices(range(90), k=40), params(max_tokens=1), name="x")
            drive.run()
            assert answer.done.completion_tokens == 1
            drive.answers.clear()

    serve(500)
    gc.collect()
    objects, nodes = len(gc.get_objects()), len(drive.core.cache.index)
    blocks = sys.getallocatedblocks()
    serve(2000)
    gc.collect()
    assert len(drive.core.cache.index) == nodes == 31  # one block is always half full and not indexed
    assert abs(len(gc.get_objects()) - objects) < 50
    assert abs(sys.getallocatedblocks() - blocks) < 2000


class Client(threading.Thread):
    """Sends requests one after the other, hangs up at random, and checks whole answers against their solo run."""

    def __init__(self, engine: Engine, number: int, count: int, solo: list[tuple[list[int], Answer]]) -> None:
        super().__init__(name=f"client{number}")
        self.engine = engine
        self.number = number
        self.count = count
        self.solo = solo
        self.num_whole = self.num_cancelled = 0
        self.fault: str | None = None

    def run(self) -> None:
        rng = random.Random(self.number)
        for turn in range(self.count):
            index = rng.randrange(len(self.solo))
            ids, expected = self.solo[index]
            ended, answer = threading.Event(), Answer()

            def take(output: Output, answer: Answer = answer, ended: threading.Event = ended) -> None:
                answer.take(output)
                if output.finish is not None:
                    ended.set()

            name = f"{self.number}-{turn}"
            settings = params(max_tokens=20, seed=index, temperature=index % 3, num_logprobs=1)
            self.engine.submit(Submission(name, ids, settings, b"", take, priority=index % 2))
            if rng.random() < 0.5:
                time.sleep(rng.random() * 0.02)
                self.engine.cancel(name)
            if not ended.wait(60):
                self.fault = "no final output"
                return
            reason = answer.done.reason
            if reason is FinishReason.CANCELLED:
                self.num_cancelled += 1
            elif (reason, answer.token_ids, answer.draws) != (FinishReason.LENGTH, expected.token_ids, expected.draws):
                self.fault = f"request {name} got {answer}"
                return
            else:
                self.num_whole += 1


@pytest.mark.slow
def test_a_thousand_requests_with_random_disconnects() -> None:
    def model() -> FakeModel:
        return FakeModel((None, 40), 192)

    rng = random.Random(5)
    base = rng.choices(range(90), k=100)
    solo: list[tuple[list[int], Answer]] = []
    for index in range(24):
        ids = base[: rng.choice([0, 40, 70, 100])] + rng.choices(range(90), k=rng.randrange(1, 60))
        settings = params(max_tokens=20, seed=index, temperature=index % 3, num_logprobs=1)
        solo.append((ids, Drive(model(), FakeBackend(), prefix_cache=False).one(ids, settings)))
    config = EngineConfig(
        kv_memory=2 * 24 * 1024, max_running=6, prefill_chunk=48, measure_cost=False, poison_freed=True, max_waiting=100
    )
    engine = Engine(model(), FakeBackend(), config)  # type: ignore[arg-type]
    engine.start()
    threads = threading.active_count()
    resident = psutil.Process().memory_info().rss
    clients = [Client(engine, number, 84, solo) for number in range(12)]
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    assert [client.fault for client in clients if client.fault] == []
    assert sum(client.num_whole for client in clients) > 300 and sum(client.num_cancelled for client in clients) > 100
    assert engine.drain(30)
    state = engine.state()
    assert state["requests"] == [] and state["free_slots"] == 6
    assert all(group["held"] == 0 for group in state["kv_blocks"].values())  # type: ignore[attr-defined]
    assert threading.active_count() == threads
    assert psutil.Process().memory_info().rss < resident + (32 << 20)
    assert state["preemptions"] != 0, "the pool was meant to be too small"  # type: ignore[comparison-overlap]
    engine.stop()
