"""By bits, on tiny models: nothing around a request changes its tokens or its log-probabilities.

Runs on the CPU backend, whose rows are exact. Freed blocks are filled with NaN. The reference backend, which is not,
has to agree with the recorded greedy continuations.
"""

from __future__ import annotations

import random
from functools import cache

import numpy as np
import pytest
from engine_drive import Answer, Drive, params
from harness import ORACLE

from surefoot.engine.request import GenerationParams
from surefoot.kernels.backend import Backend
from surefoot.kernels.formats import KvType
from surefoot.kernels.registry import create_backend, has_native_module
from surefoot.models.load import LoadedModel, load_model

pytestmark = pytest.mark.skipif(not has_native_module(), reason="the native module is not built")

MODELS = ["llama", "gemma3", "qwen35"]
KV_TYPES = list(KvType)


@cache
def loaded(model: str) -> LoadedModel:
    return load_model(ORACLE / model / "model.gguf")


@cache
def backend(threads: int = 2) -> Backend:
    made = create_backend("cpu", threads)
    assert made.rows_exact
    return made


def expected(model: str, name: str) -> list[int]:
    with np.load(ORACLE / model / "expected.npz") as arrays:
        return arrays[name].tolist()


def drive(model: str, kv_type: KvType = KvType.F16, *, threads: int = 2, **config: object) -> Drive:
    config.setdefault("kv_memory", 24 << 20)
    return Drive(loaded(model), backend(threads), kv_type=kv_type, context_length=640, **config)


def settings(temperature: float, max_tokens: int = 24, seed: int = 11) -> GenerationParams:
    return params(
        max_tokens=max_tokens,
        seed=seed,
        temperature=temperature,
        top_k=40 if temperature else 0,
        num_logprobs=3,
        ignore_eos=True,
        repetition_penalty=1.1,
    )


@cache
def alone(model: str, kv_type: KvType, temperature: float, length: int = 300) -> Answer:
    """The request on its own: whole prompt in one step, no prefix cache, one thread."""
    cold = drive(model, kv_type, threads=1, prefix_cache=False)
    return cold.one(expected(model, "p300_ids")[:length], settings(temperature))


def check(answer: Answer, reference: Answer) -> None:
    assert answer.token_ids == reference.token_ids
    assert answer.draws == reference.draws
    assert answer.text == reference.text


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("name", ["cpu", "reference"])
def test_greedy_equals_the_recorded_continuation(model: str, name: str) -> None:
    made = backend() if name == "cpu" else create_backend("reference")
    engine = Drive(loaded(model), made, kv_type=KvType.F32, context_length=640, kv_memory=24 << 20, prefill_chunk=64)
    for prompt in ("p5", "p40", "p300"):
        ids, greedy = expected(model, f"{prompt}_ids"), expected(model, f"{prompt}_greedy")
        length = 64 if name == "cpu" else 8
        answer = engine.one(ids, params(max_tokens=length, ignore_eos=True))
        margins = np.array(expected(model, f"{prompt}_greedy_margin")[:length])
        certain = int(np.argmax(margins < 2e-3)) if (margins < 2e-3).any() else length
        assert answer.token_ids[:certain] == greedy[:certain]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("kv_type", KV_TYPES)
@pytest.mark.parametrize("model", MODELS)
class TestNothingChangesARequest:
    def test_chunks_and_threads(self, model: str, kv_type: KvType, temperature: float) -> None:
        ids = expected(model, "p300_ids")
        for chunk in (16, 37, 64):
            answer = drive(model, kv_type, prefill_chunk=chunk).one(ids, settings(temperature))
            check(answer, alone(model, kv_type, temperature))

    def test_a_warm_cache(self, model: str, kv_type: KvType, temperature: float) -> None:
        ids = expected(model, "p300_ids")
        warm = drive(model, kv_type)
        warm.one(ids[:200] + ids[:20], params(max_tokens=3))
        answer = warm.one(ids, settings(temperature))
        assert answer.done.cached_tokens == 192
        check(answer, alone(model, kv_type, temperature))
        again = warm.one(ids, settings(temperature))
        assert again.done.cached_tokens == 288
        check(again, alone(model, kv_type, temperature))

    def test_preemption(self, model: str, kv_type: KvType, temperature: float) -> None:
        ids = expected(model, "p300_ids")
        engine = drive(model, kv_type)
        answer = engine.add(ids, settings(temperature), name="subject")
        engine.add(ids[5:], settings(1.0, seed=1), name="other")
        for number in range(200):
            if not engine.core.has_work:
                break
            engine.step()
            subject = engine.core.requests.get("subject")
            if number in (1, 6, 15) and subject is not None and subject.running:
                engine.core.scheduler.preempt(subject)
        engine.run()
        assert engine.core.scheduler.counts.preemptions >= 2
        check(answer, alone(model, kv_type, temperature))

    def test_neighbours(self, model: str, kv_type: KvType, temperature: float) -> None:
        ids = expected(model, "p300_ids")
        rng = random.Random(f"{model} {kv_type} {temperature}")
        busy = drive(model, kv_type, prefill_chunk=48, max_running=8)
        answer = busy.add(ids, settings(temperature), name="subject")
        for number in range(7):
            start = rng.randrange(250)
            other = settings(rng.choice([0.0, 0.7, 1.5]), max_tokens=rng.randrange(1, 60), seed=rng.randrange(99))
            busy.add(
                ids[: rng.choice([0, 64, 160])] + ids[start : start + rng.randrange(1, 50)], other, name=f"n{number}"
            )
            busy.step()
        while busy.core.has_work:
            busy.step()
            if rng.random() < 0.15:
                busy.cancel(f"n{rng.randrange(7)}")
        busy.check_idle()
        check(answer, alone(model, kv_type, temperature))


@pytest.mark.parametrize("kv_type", [KvType.F16, KvType.Q8_0])
def test_windows_that_start_at_every_offset_of_a_block(kv_type: KvType) -> None:
    """Gemma's window of 64 begins inside a block; all blocks behind it are freed and hold NaN."""
    engine = drive("gemma3", kv_type, prefill_chunk=64)
    for length in range(200, 232):
        answer = engine.one(expected("gemma3", "p300_ids")[:length], settings(0.0, max_tokens=4))
        reference = alone("gemma3", kv_type, 0.0, length)
        assert answer.token_ids == reference.token_ids[:4]
        assert answer.draws == reference.draws[:4]


def test_sixteen_at_once_with_a_shared_prefix() -> None:
    ids = expected("gemma3", "p300_ids")
    engine = drive("gemma3", prefill_chunk=64)
    requests = [ids[:200] + ids[number : number + 9] for number in range(16)]
    answers = [engine.add(request, settings(1.0, max_tokens=6, seed=n)) for n, request in enumerate(requests)]
    engine.run()
    assert [answer.done.cached_tokens for answer in answers] == [0] + [192] * 15
    for number, (request, answer) in enumerate(zip(requests, answers, strict=True)):
        cold = drive("gemma3", prefix_cache=False)
        check(answer, cold.one(request, settings(1.0, max_tokens=6, seed=number)))


def test_full_pools_give_what_cold_ones_give() -> None:
    """A pool of 1.2 requests and int8 KV, many prompts again and again: every answer equals the cold one."""
    ids = expected("gemma3", "p300_ids")
    prompts = [ids[number : number + 100] for number in range(0, 200, 25)]
    cold = [drive("gemma3", KvType.Q8_0, prefix_cache=False).one(each, settings(0.0, max_tokens=6)) for each in prompts]
    blocks = [backend().block_bytes(group, KvType.Q8_0) for group in loaded("gemma3").program.kv_groups]
    small = Drive(
        loaded("gemma3"),
        backend(),
        kv_type=KvType.Q8_0,
        context_length=128,
        kv_memory=7 * sum(blocks),
        max_running=2,
        prefill_chunk=32,
    )
    rng = random.Random(0)
    for _ in range(15):
        chosen = rng.sample(range(len(prompts)), 3)
        answers = [small.add(prompts[number], settings(0.0, max_tokens=6)) for number in chosen]
        small.run()
        for number, answer in zip(chosen, answers, strict=True):
            check(answer, cold[number])
