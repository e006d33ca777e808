"""Tokens depend on the prompt and the parameters only: not on chunks, caches, neighbours or preemption.

The fake backend's logits are hashes of every cache cell a row may see, through the block tables, so any bookkeeping
error changes them; freed blocks are poisoned.
"""

from __future__ import annotations

import random

import pytest
from engine_drive import Answer, Drive, params
from fake_backend import FakeBackend, FakeModel

from surefoot.engine.core import server_error

WINDOWS = [(None,), (None, 40), (33,), (None, 1, 64), (7,)]


def prompt(length: int, seed: int = 0) -> list[int]:
    return random.Random(seed).choices(range(90), k=length)


def drive(windows: tuple[int | None, ...] = (None,), context: int = 512, **config: object) -> Drive:
    return Drive(FakeModel(windows, context), FakeBackend(), **config)


def alone(windows: tuple[int | None, ...], ids: list[int], **rest: object) -> Answer:
    """The request on a fresh engine, prefilled whole, without a prefix cache."""
    return drive(windows, prefix_cache=False).one(ids, params(**rest))  # type: ignore[arg-type]


def same(one: Answer, other: Answer) -> bool:
    return (one.token_ids, one.draws, one.text) == (other.token_ids, other.draws, other.text)


@pytest.mark.parametrize("windows", WINDOWS)
@pytest.mark.parametrize("chunk", [1, 5, 16, 33, 64])
def test_chunks_change_nothing(windows: tuple[int | None, ...], chunk: int) -> None:
    ids = prompt(150)
    expected = alone(windows, ids, max_tokens=40, num_logprobs=2)
    answer = drive(windows, prefill_chunk=chunk).one(ids, params(max_tokens=40, num_logprobs=2))
    assert same(answer, expected)


@pytest.mark.parametrize("windows", WINDOWS)
def test_warm_equals_cold_at_every_offset_of_a_block(windows: tuple[int | None, ...]) -> None:
    warm = drive(windows)
    base = prompt(200)
    warm.one(base, params(max_tokens=4))
    for length in range(96, 130):
        ids = base[:length] + prompt(3, seed=length)
        answer = warm.one(ids, params(max_tokens=6, num_logprobs=1))
        assert answer.done.cached_tokens == 96 if length < 126 else answer.done.cached_tokens >= 96
        assert same(answer, alone(windows, ids, max_tokens=6, num_logprobs=1))


@pytest.mark.parametrize("windows", WINDOWS)
def test_a_second_turn_resumes_after_the_first_answer(windows: tuple[int | None, ...]) -> None:
    chat = drive(windows)
    first = chat.one(prompt(70), params(max_tokens=60))
    ids = prompt(70) + first.token_ids + prompt(9, seed=1)
    second = chat.one(ids, params(max_tokens=20))
    assert second.done.cached_tokens == 128
    assert same(second, alone(windows, ids, max_tokens=20))


@pytest.mark.parametrize("windows", WINDOWS)
def test_preempted_requests_continue_with_the_same_tokens(windows: tuple[int | None, ...]) -> None:
    # Blocks for about one and a half of these: they preempt each other again and again.
    small = drive(windows, context=160, kv_memory=9 * 1024 * len(windows), prefill_chunk=32, max_running=4)
    answers = [small.add(prompt(40, seed), params(max_tokens=50, seed=seed, temperature=1.0)) for seed in range(4)]
    small.run()
    if None in windows:
        assert small.core.scheduler.counts.preemptions > 0
    for seed, answer in enumerate(answers):
        assert same(answer, alone(windows, prompt(40, seed), max_tokens=50, seed=seed, temperature=1.0))
        assert answer.done.completion_tokens == 50


@pytest.mark.parametrize("windows", WINDOWS)
@pytest.mark.parametrize("seed", range(3))
def test_neighbours_change_nothing(windows: tuple[int | None, ...], seed: int) -> None:
    """A request beside seven others with other settings, joining late and cancelled at random moments."""
    rng = random.Random(seed)
    busy = drive(windows, prefill_chunk=24, kv_memory=60 * 1024 * len(windows), max_running=8)
    ids = prompt(77, seed)
    answer = busy.add(ids, params(max_tokens=60, seed=seed, temperature=1.0, num_logprobs=3), name="subject")
    for number in range(7):
        shared = ids[: rng.randrange(0, 77)]
        settings = params(max_tokens=80, seed=rng.randrange(100), temperature=rng.choice([0.0, 0.5, 2.0]))
        busy.add(shared + prompt(rng.randrange(1, 60), seed=number), settings, name=f"n{number}")
        for _ in range(rng.randrange(4)):
            busy.step()
    while busy.core.has_work:
        busy.step()
        if rng.random() < 0.1:
            busy.cancel(f"n{rng.randrange(7)}")
    busy.check_idle()
    assert same(answer, alone(windows, ids, max_tokens=60, seed=seed, temperature=1.0, num_logprobs=3))


def test_sixteen_at_once_compute_a_shared_prefix_once() -> None:
    many = drive((None, 48), prefill_chunk=64)
    shared = prompt(128, seed=9)
    tails = [prompt(5, seed) for seed in range(16)]
    answers = [many.add(shared + tail, params(max_tokens=5)) for tail in tails]
    many.run()
    executor = many.backend.executor  # type: ignore[attr-defined]
    assert executor.num_rows < 128 + 16 * 10 + 20, "the prefix was computed more than once"
    for tail, answer in zip(tails, answers, strict=True):
        assert same(answer, alone((None, 48), shared + tail, max_tokens=5))
    assert [answer.done.cached_tokens for answer in answers] == [0] + [128] * 15


@pytest.mark.parametrize("how", ["cancelled", "failed", "preempted"])
def test_when_a_producer_dies_the_first_waiter_computes(how: str) -> None:
    both = drive(prefill_chunk=16)
    shared = prompt(100)
    first = both.add(shared, params(max_tokens=3), name="first")
    both.step()
    second = both.add(shared, params(max_tokens=3), name="second")
    third = both.add(shared, params(max_tokens=3), name="third")
    both.step()
    assert not both.core.requests["second"].running
    if how == "cancelled":
        both.cancel("first")
    elif how == "failed":
        both.core._fail(both.core.requests["first"], server_error("x"))
    else:
        both.core.scheduler.preempt(both.core.requests["first"])
    both.run()
    expected = alone((None,), shared, max_tokens=3)
    assert same(second, expected) and same(third, expected)
    assert how != "preempted" or same(first, expected)


def test_tenants_share_nothing() -> None:
    two = drive()
    assert two.one(prompt(100), salt=b"a").done.cached_tokens == 0
    assert two.one(prompt(100), salt=b"b").done.cached_tokens == 0
    assert two.one(prompt(100), salt=b"a").done.cached_tokens == 96


def test_without_prefix_cache_nothing_is_reused() -> None:
    off = drive(prefix_cache=False)
    first, second = off.one(prompt(100)), off.one(prompt(100))
    assert same(first, second) and second.done.cached_tokens == 0


def test_full_pools_never_give_foreign_blocks() -> None:
    """Many more prompts than fit, repeated: every answer equals the cold one."""
    small = drive((None, 40), context=128, kv_memory=2 * 8 * 1024, max_running=3)
    prompts = [prompt(60, seed) for seed in range(12)]
    expected = [alone((None, 40), ids, max_tokens=6) for ids in prompts]
    rng = random.Random(1)
    for _ in range(20):
        chosen = rng.sample(range(12), 4)
        answers = [small.add(prompts[i], params(max_tokens=6)) for i in chosen]
        small.run()
        for i, answer in zip(chosen, answers, strict=True):
            assert same(answer, expected[i])


def test_a_prompt_longer_than_a_window_groups_pool_runs() -> None:
    drive = Drive(FakeModel((None, 40), 2048), FakeBackend(), max_running=1, prefill_chunk=16, kv_memory=90 << 10)
    ids = prompt(1900)
    full, window = drive.core.cache.pools
    assert window.num_usable < 1900 // 32 < full.num_usable
    first = drive.one(ids)
    again = drive.one(ids)
    assert again.done.cached_tokens == 1888 and same(first, again)


def test_a_chat_of_eight_turns_reuses_all_but_the_last_block_of_every_turn() -> None:
    chat = drive((None, 40), context=2048)
    ids: list[int] = []
    for turn in range(8):
        known = len(ids)
        ids = ids + prompt(75, seed=turn)
        answer = chat.one(ids, params(max_tokens=60, seed=turn, temperature=1.0))
        # Of the last turn's answer everything but its last token was computed.
        assert answer.done.cached_tokens == max(0, known - 1) // 32 * 32
        assert same(answer, alone_long(ids, turn))
        ids = ids + answer.token_ids


def alone_long(ids: list[int], seed: int) -> Answer:
    cold = drive((None, 40), context=2048, prefix_cache=False)
    return cold.one(ids, params(max_tokens=60, seed=seed, temperature=1.0))


def test_every_repeat_of_a_prompt_hits_within_one_block_of_all() -> None:
    repeated = drive((None, 40), context=2048)
    ids = prompt(2000)
    assert [repeated.one(ids).done.cached_tokens for _ in range(4)] == [0, 1984, 1984, 1984]


def test_a_pool_of_little_more_than_one_request_serves_two_hundred() -> None:
    small = drive((None, 40), context=128, kv_memory=2 * 6 * 1024, max_running=4)
    rng = random.Random(2)
    expected: dict[int, Answer] = {}
    for _ in range(50):
        seeds = [rng.randrange(10) for _ in range(4)]
        answers = [small.add(prompt(70, seed), params(max_tokens=20, seed=seed, temperature=1.0)) for seed in seeds]
        small.run()
        for seed, answer in zip(seeds, answers, strict=True):
            if seed not in expected:
                expected[seed] = alone((None, 40), prompt(70, seed), max_tokens=20, seed=seed, temperature=1.0)
            assert same(answer, expected[seed])


def test_blocks_of_a_request_aborted_in_a_step_hold_nothing_of_it_when_reused() -> None:
    busy = drive((None, 40), context=128, kv_memory=2 * 6 * 1024, max_running=2)
    for seed in range(20):
        busy.add(prompt(100, seed), params(max_tokens=20), name="aborted")
        busy.step()
        busy.cancel("aborted")
        ids = prompt(60, 100 + seed)
        assert same(busy.one(ids, params(max_tokens=5), name=f"n{seed}"), alone((None, 40), ids, max_tokens=5))
