"""A reset of the prefix cache does what it says: nothing from before is found, and whoever runs notices nothing."""

from __future__ import annotations

import random
from typing import Any

import pytest
from engine_drive import Drive, params
from fake_backend import FakeBackend, FakeModel

WINDOWS = [(None,), (None, 40), (33,), (7,)]


def prompt(length: int, seed: int = 0) -> list[int]:
    return random.Random(seed).choices(range(90), k=length)


def drive(windows: tuple[int | None, ...] = (None,), **config: object) -> Drive:
    return Drive(FakeModel(windows, 512), FakeBackend(), **config)


def clear(engine: Drive) -> tuple[int, int]:
    cleared = engine.core.cache.clear()
    assert not any(pool.num_cached for pool in engine.core.cache.pools)
    return cleared


@pytest.mark.parametrize("windows", WINDOWS)
def test_nothing_is_found_afterwards(windows: tuple[int | None, ...]) -> None:
    engine = drive(windows)
    first = engine.one(prompt(100))
    assert engine.one(prompt(100)).done.cached_tokens == 96
    cached = sum(pool.num_cached for pool in engine.core.cache.pools)
    assert clear(engine) == (cached, 0)
    assert len(engine.core.cache.index) == 0
    assert all(pool.num_free == pool.num_usable for pool in engine.core.cache.pools)
    again = engine.one(prompt(100))
    assert again.done.cached_tokens == 0 and again.token_ids == first.token_ids
    assert engine.one(prompt(100)).done.cached_tokens == 96, "it caches as before"
    assert clear(engine)[0] > 0 and clear(engine) == (0, 0)


@pytest.mark.parametrize("windows", WINDOWS)
def test_a_running_request_keeps_its_blocks_and_shows_them_to_nobody(windows: tuple[int | None, ...]) -> None:
    expected = drive(windows).one(prompt(100), params(max_tokens=60))
    engine = drive(windows)
    running = engine.add(prompt(100), params(max_tokens=60))
    while len(running.token_ids) < 5:
        engine.step()
    held = sum(pool.num_held for pool in engine.core.cache.pools)
    freed, kept = clear(engine)
    assert 0 < kept <= held and (freed == 0 or any(windows)), "what a window has left behind is nobody's"
    assert sum(pool.num_held for pool in engine.core.cache.pools) == held
    late = engine.add(prompt(100), params(max_tokens=60))
    engine.run()
    assert running.token_ids == late.token_ids == expected.token_ids
    assert late.done.cached_tokens == 0


@pytest.mark.parametrize("seed", range(12))
def test_resets_at_any_step_change_no_token(seed: int) -> None:
    """Requests that share prefixes, wait for each other's blocks, are preempted and cancelled, with resets between."""
    dice = random.Random(seed)
    windows = dice.choice(WINDOWS)
    small = {"max_running": 4, "prefill_chunk": dice.choice([16, 64])}
    engine = drive(windows, **small)
    wanted: list[tuple[list[int], int]] = []
    answers: list[Any] = []
    for turn in range(120):
        if dice.random() < 0.15:
            ids = prompt(dice.choice([64, 96, 130]), seed=dice.randrange(2)) + prompt(dice.randrange(1, 40), seed=turn)
            wanted.append((ids, dice.randrange(1, 40)))
            answers.append(engine.add(ids, params(max_tokens=wanted[-1][1])))
        if dice.random() < 0.2:
            clear(engine)
        if engine.core.scheduler.running and dice.random() < 0.05:
            engine.core.scheduler.preempt(dice.choice(list(engine.core.scheduler.running)))
        if engine.core.has_work:
            engine.step()
    engine.run()
    clear(engine)
    assert len(engine.core.cache.index) == 0
    for (ids, length), answer in zip(wanted, answers, strict=True):
        assert answer.token_ids == drive(windows, prefix_cache=False).one(ids, params(max_tokens=length)).token_ids


def test_without_a_prefix_cache_there_is_nothing_to_do() -> None:
    engine = drive(prefix_cache=False)
    engine.one(prompt(100))
    assert clear(engine) == (0, 0)
