"""A guard against loops: fires at the first token at which the rule, read literally, holds, and at no other."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from engine_drive import Answer, Drive, params
from fake_backend import FakeBackend, FakeModel, FakeSampler
from hypothesis import given
from hypothesis import strategies as st
from recorded_drafts import RecordedDrafts

from surefoot.engine.repetition_guard import RepetitionGuard, RepetitionLimit
from surefoot.engine.request import FinishReason

END = 94


def is_loop(ids: Sequence[int], period: int, repeats: int) -> bool:
    """The rule, read literally."""
    return any(
        len(ids) >= size * repeats and list(ids[-size * repeats :]) == list(ids[-size:]) * repeats
        for size in range(1, period + 1)
    )


loops = st.tuples(st.lists(st.integers(0, 2), max_size=12), st.lists(st.integers(0, 2), min_size=1, max_size=6)).map(
    lambda parts: parts[0] + parts[1] * 6
)


@given(loops, st.integers(1, 6), st.integers(2, 5))
def test_it_agrees_with_the_rule_at_every_token(ids: list[int], period: int, repeats: int) -> None:
    guard = RepetitionGuard(RepetitionLimit(period, repeats))
    assert [guard.feed(token) for token in ids] == [
        is_loop(ids[:count], period, repeats) for count in range(1, len(ids) + 1)
    ]


def scripted(tokens: Sequence[int]) -> Drive:
    """An engine whose model says exactly these tokens, then the last one for ever, but no suppressed end."""
    backend = FakeBackend()

    def say(sampler: FakeSampler, position: int) -> int:
        token = tokens[min(position, len(tokens) - 1)]
        return 40 if position < sampler.spec.suppress_until and token in sampler.spec.suppress_ids else token

    backend.script = say
    return Drive(FakeModel(ends=frozenset({END})), backend)


def answer(tokens: Sequence[int], period: int, repeats: int, **rest: object) -> Answer:
    settings = {"max_tokens": 50, "num_logprobs": 1, **rest, "repetition_guard": RepetitionLimit(period, repeats)}
    return scripted(tokens).one([50, 51], params(**settings))  # type: ignore[arg-type]


def ended_by_guard(got: Answer) -> bool:
    return (got.done.reason, got.done.stop_reason) == (FinishReason.STOP, "repetition")


def test_a_loop_ends_with_its_last_token_given_out() -> None:
    got = answer([1, *[7, 8, 9] * 9], 3, 4)
    assert ended_by_guard(got)
    assert got.token_ids == [draw.token_id for draw in got.draws] == [1, *[7, 8, 9] * 4]
    assert len(got.text) == got.done.completion_tokens == 13


def test_blocks_longer_than_the_period_are_no_loop() -> None:
    got = answer([7, 8, 9] * 20, 2, 2, max_tokens=30)
    assert (got.done.reason, got.done.completion_tokens) == (FinishReason.LENGTH, 30)


def test_the_prompt_does_not_count() -> None:
    backend = FakeBackend()
    backend.script = lambda sampler, position: 50
    guarded = params(max_tokens=9, repetition_guard=RepetitionLimit(1, 5))
    got = Drive(FakeModel(), backend).one([50] * 20, guarded)
    assert ended_by_guard(got) and got.token_ids == [50] * 5


def test_it_waits_for_min_tokens_and_comes_before_the_limit() -> None:
    assert answer([7], 1, 3, min_tokens=10).done.completion_tokens == 11
    assert ended_by_guard(answer([7], 1, 3, max_tokens=3))


def test_an_end_token_and_a_stop_string_come_first() -> None:
    ended = answer([7, 7, END], 1, 3)
    assert (ended.done.reason, ended.done.stop_reason) == (FinishReason.STOP, None)
    stopped = answer([7, 7, 7, 7], 1, 3, stop=(chr(32 + 7) * 3,))
    assert (stopped.done.stop_reason, stopped.text) == ("'''", "")


def test_text_held_back_for_a_stop_string_comes_out() -> None:
    got = answer([7, 7, 7, 7], 1, 3, stop=(chr(32 + 7) * 4,))
    assert ended_by_guard(got)
    assert (got.text, got.token_ids) == ("'''", [7, 7, 7])


@pytest.mark.parametrize("window", range(9))
@pytest.mark.parametrize("lead", range(9))  # so that the loop's end meets every place in a window
@pytest.mark.parametrize(("period", "repeats"), [(1, 6), (3, 2), (4, 4)])
def test_it_cuts_accepted_windows_where_plain_decoding_stops(window: int, lead: int, period: int, repeats: int) -> None:
    said = [*range(20, 20 + lead), *[5, 6, 5, 7] * 3, *[5] * 30]
    ids = [50, 51]
    settings = params(max_tokens=50, num_logprobs=1, repetition_guard=RepetitionLimit(period, repeats))
    plain = scripted(said).one(ids, settings)
    assert ended_by_guard(plain) and plain.token_ids == said[: len(plain.token_ids)]
    speculative = scripted(said)
    loop = speculative.core.speculation = RecordedDrafts({tuple(ids): [*said, *[5] * 50]}, window, 0.0)
    cut = speculative.one(ids, settings)
    assert (cut.token_ids, cut.draws, cut.text, cut.done) == (plain.token_ids, plain.draws, plain.text, plain.done)
    assert loop.num_accepted > 0 or window == 0
