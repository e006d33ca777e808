"""Models with recurrent layers: what is resumed, waited for, evicted and run again, by bits.

That nothing around a request changes its answer is tested beside the other models (test_exact, test_speculation); here
is what only states have.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache

import pytest
from engine_drive import Answer, Drive, params
from fake_backend import FakeBackend
from harness import ORACLE

from surefoot.engine.config import EngineConfig
from surefoot.engine.memory import MIB
from surefoot.engine.recurrent_cache import CHECKPOINT_SPACING, RecurrentCache
from surefoot.engine.request import FinishReason, GenerationParams
from surefoot.engine.speculation.policy import SpeculationPolicy
from surefoot.engine.state_memory import LOG_ROWS, plan_states
from surefoot.kernels.backend import DrawRequest, Executor, RecurrentBackend, StepBatch
from surefoot.kernels.cpu.backend import CpuBackend
from surefoot.kernels.errors import ConfigError, StepCancelled, StepError
from surefoot.kernels.registry import create_backend, has_native_module
from surefoot.kernels.sampling import Draw, DrawFault
from surefoot.models.load import LoadedModel, load_model

pytestmark = pytest.mark.skipif(not has_native_module(), reason="the native module is not built")

PLAIN = SpeculationPolicy(enabled=False)


@cache
def model() -> LoadedModel:
    return load_model(ORACLE / "qwen35" / "model.gguf")


@cache
def backend() -> RecurrentBackend:
    made = create_backend("cpu", 2)
    assert isinstance(made, RecurrentBackend)
    return made


def drive(made: object = None, **config: object) -> Drive:
    config.setdefault("kv_memory", 16 * MIB)
    config.setdefault("context_length", 1024)
    config.setdefault("speculation", PLAIN)
    return Drive(model(), made or backend(), **config)  # type: ignore[arg-type]


def prompt(length: int, seed: int = 0) -> list[int]:
    return random.Random(seed).choices(range(1, 1000), k=length)


def settings(max_tokens: int = 12, seed: int = 3, temperature: float = 0.9) -> GenerationParams:
    return params(max_tokens, seed, temperature, num_logprobs=2, ignore_eos=True)


def cold(ids: Sequence[int], request: GenerationParams) -> Answer:
    return drive(prefix_cache=False, prefill_chunk=1024).one(ids, request)


def check(answer: Answer, ids: Sequence[int], request: GenerationParams) -> None:
    expected = cold(ids, request)
    assert answer.token_ids == expected.token_ids
    assert answer.draws == expected.draws


def sizes() -> tuple[int, int]:
    """Bytes of a state and of a log."""
    group = model().program.recurrent
    assert group is not None
    return backend().state_bytes(group), backend().log_bytes(group, LOG_ROWS)


def states(engine: Drive) -> RecurrentCache:
    assert isinstance(engine.core.cache, RecurrentCache)
    return engine.core.cache


# --- what is resumed -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunk", [16, 50, 512])
@pytest.mark.parametrize("length", [33, 64, 65, 100, 161])
def test_a_prompt_is_resumed_at_its_last_border(length: int, chunk: int) -> None:
    engine = drive(prefill_chunk=chunk)
    first = engine.one(prompt(length), settings())
    again = engine.one(prompt(length), settings())
    assert again.done.cached_tokens == (length - 1) // 32 * 32
    longer = engine.one(prompt(length) + prompt(50, seed=1), settings())
    assert longer.done.cached_tokens == (length - 1) // 32 * 32
    check(first, prompt(length), settings())
    check(again, prompt(length), settings())
    check(longer, prompt(length) + prompt(50, seed=1), settings())


@pytest.mark.parametrize("spare", [0, 7, 31])
def test_a_conversation_is_resumed_in_its_answer(spare: int) -> None:
    """Every turn repeats all before it; what was answered needs no computing again."""
    engine, history = drive(), prompt(40)
    for turn in range(4):
        answer = engine.one(history, settings(64 + spare))
        check(answer, history, settings(64 + spare))
        known = len(history) + 64 + spare - 1  # the last token was never fed
        history = history + answer.token_ids + prompt(5, seed=turn)
        again = engine.one(history, settings(1))
        assert again.done.cached_tokens == known // 32 * 32 - 32 * (known % 32 == 0)
    pool = states(engine).state_pool
    assert pool is not None and pool.num_cached <= 12, "an answer keeps its last checkpoint only"


def test_where_prompts_part_there_is_a_checkpoint_from_the_second_on() -> None:
    engine, shared = drive(), prompt(200)
    prompts = [shared + prompt(60, seed=10 + number) for number in range(4)]
    answers = [engine.one(ids, settings()) for ids in prompts]
    assert [answer.done.cached_tokens for answer in answers] == [0, 0, 192, 192]
    for ids, answer in zip(prompts, answers, strict=True):
        check(answer, ids, settings())


def test_long_prompts_leave_checkpoints_on_their_way() -> None:
    engine = drive(context_length=3200, prefill_chunk=400)
    long = prompt(3000)
    engine.one(long, settings(1))
    answer = engine.one(long[:2500] + prompt(30, seed=1), settings())
    assert answer.done.cached_tokens == 2400, "the first chunk's end that lies so far behind the one before"
    assert 2 * CHECKPOINT_SPACING < 2400
    expected = drive(context_length=3200, prefix_cache=False).one(long[:2500] + prompt(30, seed=1), settings())
    assert (answer.token_ids, answer.draws) == (expected.token_ids, expected.draws)


def test_who_comes_at_the_same_time_waits_for_the_checkpoint() -> None:
    engine = drive(prefill_chunk=48)
    answers = [engine.add(prompt(150), settings(seed=number)) for number in range(5)]
    engine.run()
    assert [answer.done.cached_tokens for answer in answers] == [0, 128, 128, 128, 128]
    for number, answer in enumerate(answers):
        check(answer, prompt(150), settings(seed=number))


def test_who_waits_computes_it_when_the_first_is_cancelled() -> None:
    engine = drive(prefill_chunk=16)
    engine.add(prompt(150), settings(), name="first")
    second = engine.add(prompt(150), settings(), name="second")
    for _ in range(3):
        engine.step()
    engine.cancel("first")
    engine.run()
    assert second.done.cached_tokens == 0
    check(second, prompt(150), settings())


def test_a_preempted_request_goes_on_from_its_last_checkpoint() -> None:
    engine = drive()
    answer = engine.add(prompt(100), settings(80), name="subject")
    while len(answer.token_ids) < 70:
        engine.step()
    subject = engine.core.requests["subject"]
    engine.core.scheduler.preempt(subject)
    engine.step()
    assert subject.num_computed >= len(subject.tokens) - 1, "what is left was one short prefill"
    before = engine.core.scheduler.counts.preemptions
    assert before == 1
    engine.run()
    check(answer, prompt(100), settings(80))


def test_checkpoints_go_with_their_blocks_and_resets() -> None:
    engine = drive()
    for seed in range(3):
        engine.one(prompt(100, seed), settings(40))
    pool = states(engine).state_pool
    assert pool is not None and pool.num_cached > 3
    cleared = engine.core.cache.clear()
    assert cleared.kept == 0 and pool.num_cached == 0 and pool.num_free == pool.num_usable
    assert len(engine.core.cache.index) == 0
    assert engine.one(prompt(100), settings()).done.cached_tokens == 0
    assert engine.one(prompt(100), settings()).done.cached_tokens == 96


def test_few_blocks_leave_no_checkpoint_without_keys() -> None:
    """A pool that holds two prompts and many checkpoints: what can still be found has all that it needs."""
    block = backend().block_bytes(model().program.kv_groups[0], EngineConfig().kv_type)
    engine = drive(kv_memory=16 * MIB, context_length=128, max_running=1)
    cache = states(engine)
    usable = cache.pools[0].num_usable
    assert usable * block < 8 * MIB
    for seed in range(usable):
        engine.one(prompt(100, seed), settings(1))
        for held in list(cache.index._holders[-1].values()):
            assert held.blocks[0], "a checkpoint whose keys are gone"


# --- what is run again -----------------------------------------------------------------------------------------------


class Failing(CpuBackend):
    """A backend whose steps fail now and then, when all of their work is done."""

    def __init__(self, seed: int, cancels: bool) -> None:
        super().__init__(2)
        self.pick, self.cancels, self.failed = random.Random(seed), cancels, 0

    def step(
        self, executor: Executor, batch: StepBatch, requests: list[DrawRequest], bell: int
    ) -> list[list[Draw] | DrawFault]:
        results = super().step(executor, batch, requests, bell)
        if self.pick.random() < 0.3 and (self.cancels or len(batch.slots) > 1):  # alone, its second failure is its end
            self.failed += 1
            raise StepCancelled("cancelled") if self.cancels else StepError("failed")
        return results


@pytest.mark.parametrize("cancels", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_steps_that_failed_are_run_again_with_the_same_bits(seed: int, cancels: bool) -> None:
    failing = Failing(seed, cancels)
    pick = random.Random(seed)
    engine = drive(failing, prefill_chunk=pick.choice([16, 40, 512]), max_running=3)
    wanted = [(prompt(pick.randrange(1, 140), number // 2), settings(pick.randrange(1, 50))) for number in range(8)]
    answers = [engine.add(ids, request) for ids, request in wanted]
    engine.run()
    assert failing.failed > 5
    for (ids, request), answer in zip(wanted, answers, strict=True):
        check(answer, ids, request)


# --- all of it at once -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(10))
def test_everything_at_once_changes_no_bit(seed: int) -> None:
    """Few states, few blocks, shared prefixes, n-gram windows of all widths, preemptions, cancels, resets, and steps
    that fail."""
    pick = random.Random(seed)
    each, log = sizes()
    draft_tokens = pick.choice([0, 3, 16, 40])
    engine = drive(
        Failing(seed, cancels=True) if seed % 2 else backend(),
        max_running=pick.choice([2, 4]),
        prefill_chunk=pick.choice([16, 48, 512]),
        context_length=320,
        kv_memory=2 * (pick.choice([5, 9, 14]) * each + 4 * log),
        speculation=SpeculationPolicy(governor="off", draft_tokens=draft_tokens, max_batch=4),
    )
    wanted: dict[str, tuple[list[int], GenerationParams]] = {}
    shared = prompt(130, seed)
    for turn in range(500):
        if pick.random() < 0.05:
            base = pick.choice([shared[: pick.choice([64, 96, 130])], shared[:24] * 4])
            ids = base + prompt(pick.randrange(1, 30), seed=pick.randrange(3))
            request = params(
                pick.randrange(1, 60),
                turn,
                pick.choice([0.0, 0.9]),
                logit_bias=((40, 90.0), (41, 90.0), (42, 90.0)),
                frequency_penalty=0.7,
                num_logprobs=1,
                ignore_eos=True,
            )
            name = f"r{turn}"
            wanted[name] = ids, request
            engine.add(ids, request, name=name)
        if pick.random() < 0.03:
            engine.core.cache.clear()
        running = engine.core.scheduler.running
        if running and pick.random() < 0.04:
            engine.core.scheduler.preempt(pick.choice(list(running)))
        if running and pick.random() < 0.02:
            engine.cancel(pick.choice(running).request_id)
        if engine.core.has_work:
            engine.step()
    engine.run()
    assert len(wanted) > 15
    whole = 0
    for name, (ids, request) in wanted.items():
        answer, expected = engine.answers[name], cold(ids, request)
        if answer.done.reason is FinishReason.CANCELLED:
            assert answer.token_ids == expected.token_ids[: len(answer.token_ids)]
        else:
            whole += 1
            assert (answer.token_ids, answer.draws) == (expected.token_ids, expected.draws)
    assert whole > 10
    assert draft_tokens == 0 or engine.core.session.counts.accepted["ngram"] > 20
    cache = states(engine)
    assert cache.state_pool is not None and cache.state_pool.num_held == 0
    cache.clear()
    assert len(cache.index) == 0 and cache.state_pool.num_free == cache.state_pool.num_usable


# --- memory and refusals ---------------------------------------------------------------------------------------------


def test_states_are_counted_and_bounded() -> None:
    each, log = sizes()
    for running, memory in ((16, 64 * MIB), (16, 2 * (7 * each + 3 * log)), (1, 2 * (2 * each + log))):
        config = EngineConfig(kv_memory=memory, max_running=running)
        plan = plan_states(backend(), model().program, config)
        assert plan.max_running is not None and 1 <= plan.max_running <= running
        assert plan.total_bytes == (plan.num_blocks - 1) * each + plan.max_running * log <= memory // 2
        assert plan.num_blocks - 1 >= plan.max_running + 1, "a step of a prompt always finds a block"
        assert plan.rest(config).kv_memory == memory - plan.total_bytes
    with pytest.raises(ConfigError, match="recurrent states"):
        plan_states(backend(), model().program, EngineConfig(kv_memory=2 * (2 * each + log) - 2))
    few = drive(kv_memory=2 * (7 * each + 3 * log), max_running=16, context_length=256)
    assert few.core._resources.config.max_running == 3
    assert few.core._resources.kv_bytes <= 2 * (7 * each + 3 * log)


def test_a_backend_without_states_says_so() -> None:
    with pytest.raises(ConfigError, match="keeps no recurrent states"):
        Drive(model(), FakeBackend())


def test_a_draft_model_with_states_is_declined() -> None:
    path = str(ORACLE / "qwen35" / "model.gguf")
    engine = drive(draft_model=path, speculation=SpeculationPolicy(type="draft-model"))
    assert "recurrent" in str(engine.core.session.snapshot()["declined"])
    check(engine.one(prompt(40), settings()), prompt(40), settings())
