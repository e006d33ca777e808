"""Several draws from one step give what single draws give: same tokens, text, log-probabilities, reasons and usage.

The drafts come from a recorded answer with mistakes in it, so that windows are accepted in part, whole and not at all.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest
from engine_drive import Answer, Drive, params
from fake_backend import FakeBackend, FakeModel, fail_when
from recorded_drafts import RecordedDrafts

from surefoot.engine.request import GenerationParams

WINDOWS = (None, 40)


def prompt(length: int, seed: int = 0) -> list[int]:
    return random.Random(seed).choices(range(90), k=length)


def drive(**config: object) -> Drive:
    return Drive(FakeModel(WINDOWS), FakeBackend(), **config)


def record(prompts: Sequence[list[int]], settings: GenerationParams) -> dict[tuple[int, ...], list[int]]:
    return {tuple(ids): drive().one(ids, settings).token_ids for ids in prompts}


def same(one: Answer, other: Answer) -> bool:
    return (one.token_ids, one.draws, one.text, one.done) == (other.token_ids, other.draws, other.text, other.done)


@pytest.mark.parametrize("window", range(9))
@pytest.mark.parametrize("mistakes", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_windows_change_nothing(window: int, mistakes: float, temperature: float) -> None:
    settings = params(
        max_tokens=45, seed=3, temperature=temperature, num_logprobs=2, presence_penalty=0.4, frequency_penalty=0.1
    )
    ids = prompt(50)
    plain = drive().one(ids, settings)
    speculative = drive()
    loop = speculative.core.speculation = RecordedDrafts({tuple(ids): plain.token_ids}, window, mistakes)
    assert same(speculative.one(ids, settings), plain)
    assert loop.released == ["r0"]
    executor = speculative.backend.executor  # type: ignore[attr-defined]
    assert loop.num_rows == executor.num_rows
    if mistakes == 0.0:
        assert len(executor.steps) == 1 + -(-44 // (window + 1)), "every draft accepted"
    if mistakes == 1.0:
        assert loop.num_accepted == 0 and len(executor.steps) == 45


STOPS: dict[str, Callable[[list[int]], dict[str, object]]] = {
    "token": lambda ids: {"stop_token_ids": (ids[20],)},
    "token after min_tokens": lambda ids: {"stop_token_ids": (ids[20],), "min_tokens": 15},
    "string of one token": lambda ids: {"stop": (chr(32 + ids[17]),)},
    "string across tokens": lambda ids: {"stop": ("".join(chr(32 + i) for i in ids[18:22]), "never there")},
    "string at the end": lambda ids: {"stop": ("".join(chr(32 + i) for i in ids[30:33]),), "max_tokens": 33},
    "limit": lambda ids: {"max_tokens": 23},
}


@pytest.mark.parametrize("stop", STOPS)
@pytest.mark.parametrize("window", range(9))
def test_every_stop_inside_a_window(stop: str, window: int) -> None:
    ids = prompt(33)
    free = drive().one(ids, params(max_tokens=60))
    settings = params(**{"max_tokens": 60, "num_logprobs": 1, **STOPS[stop](free.token_ids)})  # type: ignore[arg-type]
    plain = drive().one(ids, settings)
    assert plain.done.completion_tokens < 60
    speculative = drive()
    speculative.core.speculation = RecordedDrafts({tuple(ids): free.token_ids}, window, 0.0)
    assert same(speculative.one(ids, settings), plain)
    # What is cached afterwards is right: the next turn reuses it.
    follow = ids + free.token_ids[:40] + prompt(3)
    speculative.core.speculation = speculative.core.session
    second = speculative.one(follow, params(max_tokens=5))
    assert second.token_ids == drive().one(follow, params(max_tokens=5)).token_ids


def test_the_context_ends_inside_a_window() -> None:
    ids = prompt(40)
    short = Drive(FakeModel(WINDOWS, 64), FakeBackend())
    plain = short.one(ids, params(max_tokens=100))
    assert plain.done.completion_tokens == 24
    speculative = Drive(FakeModel(WINDOWS, 64), FakeBackend())
    speculative.core.speculation = RecordedDrafts({tuple(ids): plain.token_ids}, 7, 0.0)
    assert same(speculative.one(ids, params(max_tokens=100)), plain)


def test_batches_with_windows_preemption_and_neighbours_that_leave() -> None:
    prompts = [prompt(45, seed) for seed in range(6)]
    settings = params(max_tokens=60, seed=9, temperature=1.0, num_logprobs=1)
    answers = record(prompts, settings)
    busy = drive(max_running=4, kv_memory=26 * 1024, context_length=160)
    loop = busy.core.speculation = RecordedDrafts(answers, 5, 0.2)
    waiting = [busy.add(ids, settings, name=str(i)) for i, ids in enumerate(prompts)]
    for _ in range(8):
        busy.step()
    busy.cancel("1")
    busy.run()
    assert loop.num_accepted > 50
    for i, (ids, answer) in enumerate(zip(prompts, waiting, strict=True)):
        if i != 1:
            assert answer.token_ids == answers[tuple(ids)]


def test_a_failing_verify_is_run_again_with_its_drafts() -> None:
    ids, other = prompt(45, 1), prompt(45, 2)
    settings = params(max_tokens=30, num_logprobs=1)
    answers = record([ids, other], settings)
    both = drive()
    both.core.speculation = RecordedDrafts(answers, 4, 0.0)
    first, second = both.add(ids, settings), both.add(other, settings)
    both.step()
    both.backend.executor.before_step = fail_when(answers[tuple(ids)][1], times=1)  # type: ignore[attr-defined]
    both.run()
    assert first.token_ids == answers[tuple(ids)] and second.token_ids == answers[tuple(other)]
    assert both.core.metrics.step_faults == 1
