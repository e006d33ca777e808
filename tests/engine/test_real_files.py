"""On real files: exact by bits, and a long prompt does not stall a running stream."""

from __future__ import annotations

import json
import random
import threading
import time
from functools import cache
from itertools import pairwise

import pytest
from engine_drive import Answer, Drive, params
from harness import DATA
from real_models import real_model

from surefoot.engine.config import EngineConfig
from surefoot.engine.engine import Engine
from surefoot.engine.request import GenerationParams, Output, Submission
from surefoot.kernels.backend import Backend
from surefoot.kernels.formats import KvType
from surefoot.kernels.registry import create_backend, has_native_module
from surefoot.models.load import LoadedModel, load_model

SMALL = ["smollm2-135m-instruct-q4_1", "gemma3-270m-q4_k_m"]
LARGE = "qwen2.5-coder-1.5b-instruct-q4_k_m"

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not has_native_module(), reason="the native module is not built")]


@cache
def loaded(name: str) -> LoadedModel:
    return load_model(real_model(name))


@cache
def backend(threads: int = 2) -> Backend:
    return create_backend("cpu", threads)


def prompt(name: str, length: int) -> list[int]:
    """Text of the recorded cases, as long as wanted."""
    cases = json.loads((DATA / "real" / f"{name}.json").read_text())["complete"]
    ids = [token for case in cases for token in case["prompt_ids"]]
    return (ids * (length // len(ids) + 1))[:length]


def settings(temperature: float, seed: int = 5, max_tokens: int = 16) -> GenerationParams:
    return params(
        max_tokens=max_tokens, seed=seed, temperature=temperature, top_p=0.95, num_logprobs=2, ignore_eos=True
    )


def drive(name: str, kv_type: KvType = KvType.F16, threads: int = 2, **config: object) -> Drive:
    return Drive(loaded(name), backend(threads), kv_type=kv_type, context_length=1024, **config)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(("name", "length"), [(SMALL[0], 150), (SMALL[1], 560)])  # beyond Gemma's window of 512
def test_nothing_changes_a_request(name: str, length: int, temperature: float) -> None:
    ids = prompt(name, length)
    expected = drive(name, threads=1, prefix_cache=False).one(ids, settings(temperature))

    def check(answer: Answer) -> None:
        assert (answer.token_ids, answer.draws, answer.text) == (expected.token_ids, expected.draws, expected.text)

    cut = drive(name, prefill_chunk=64)
    check(cut.one(ids, settings(temperature)))
    warm = cut.one(ids, settings(temperature))
    assert warm.done.cached_tokens == (length - 1) // 32 * 32
    check(warm)
    check(drive(name, prefill_chunk=37).one(ids, settings(temperature)))
    rng = random.Random(length)
    busy = drive(name, prefill_chunk=96, max_running=8)
    answer = busy.add(ids, settings(temperature), name="subject")
    for number in range(7):
        other = settings(rng.choice([0.0, 0.7, 1.5]), seed=number, max_tokens=rng.randrange(4, 30))
        busy.add(ids[: rng.choice([0, 64, 96])] + ids[number : number + rng.randrange(1, 40)], other, name=f"n{number}")
        busy.step()
    preempted = False
    while busy.core.has_work:
        busy.step()
        if rng.random() < 0.1:
            busy.cancel(f"n{rng.randrange(7)}")
        subject = busy.core.requests.get("subject")
        if not preempted and subject is not None and subject.running and subject.generation.num_output == 5:
            busy.core.scheduler.preempt(subject)
            preempted = True
    assert preempted
    check(answer)


class Stream(Answer):
    def __init__(self) -> None:
        super().__init__()
        self.times: list[float] = []
        self.ended = threading.Event()

    def take(self, output: Output) -> None:
        super().take(output)
        self.times.append(time.monotonic())
        if output.finish is not None:
            self.ended.set()


@pytest.mark.quiet
def test_a_long_prompt_does_not_stall_a_running_stream() -> None:
    engine = Engine(loaded(LARGE), backend(), EngineConfig(context_length=4096, kv_memory=512 << 20))
    engine.start()
    try:
        stream, newcomer = Stream(), Stream()
        engine.submit(Submission("s", prompt(LARGE, 20), params(max_tokens=3000, ignore_eos=True), b"", stream.take))
        while len(stream.times) < 5:
            time.sleep(0.05)
        began = len(stream.times)
        engine.submit(Submission("n", prompt(LARGE, 3000), params(max_tokens=1), b"", newcomer.take))
        assert newcomer.ended.wait(400)
        gaps = sorted(after - before for before, after in pairwise(stream.times[began:]))
        engine.cancel("s")
        assert stream.ended.wait(60)
        assert gaps[-1] < 0.4
        assert engine.metrics.step_seconds["mixed"].count > 20, "the prompt was cut into pieces"
    finally:
        engine.stop()
