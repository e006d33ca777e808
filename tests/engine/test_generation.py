"""What a request gets: texts, stops, finish reasons and usage, token by token and in bursts."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from engine_drive import Answer, Drive, params
from fake_backend import FakeBackend, FakeModel, FakeSampler

from surefoot.engine.request import FinishReason

END = 94
PIECES = {
    0: "é".encode()[:1],
    1: "é".encode()[1:],
    2: b"ha ha",
    3: b" ha",
    4: b"STOP",
    5: b"a STOP b",
    6: b"",  # a control token
    **{10 + i: bytes([97 + i]) for i in range(26)},
    END: b"</s>",
}


def scripted(tokens: Sequence[int]) -> Drive:
    """An engine whose model says exactly these tokens, except where they are suppressed."""
    backend = FakeBackend()

    def say(sampler: FakeSampler, position: int) -> int | None:
        token = tokens[min(position, len(tokens) - 1)]
        spec = sampler.spec
        return 40 if position < spec.suppress_until and token in spec.suppress_ids else token

    backend.script = say
    return Drive(FakeModel(ends=frozenset({END}), pieces=PIECES), backend)


def answer(tokens: Sequence[int], **settings: object) -> Answer:
    return scripted(tokens).one([50, 51], params(**{"max_tokens": 50, "num_logprobs": 0, **settings}))  # type: ignore[arg-type]


def letters(text: str) -> list[int]:
    return [10 + ord(letter) - 97 for letter in text]


def test_an_end_token_ends_with_stop_and_counts() -> None:
    got = answer([*letters("ab"), END, 12])
    assert (got.text, got.token_ids) == ("ab", [10, 11, END])
    assert (got.done.reason, got.done.stop_reason, got.done.completion_tokens) == (FinishReason.STOP, None, 3)
    assert [draw.token_id for draw in got.draws] == got.token_ids


def test_ignore_eos_goes_on_to_the_limit() -> None:
    got = answer([*letters("ab"), END, *letters("c")], ignore_eos=True, max_tokens=5)
    assert (got.done.reason, got.done.completion_tokens) == (FinishReason.LENGTH, 5)
    assert got.text == "ab</s>cc"


def test_a_stop_token_is_named() -> None:
    got = answer(letters("abcd"), stop_token_ids=(12,))
    assert (got.text, got.token_ids, got.done.stop_reason) == ("ab", [10, 11, 12], 12)


def test_ignore_eos_leaves_stop_tokens_alone() -> None:
    got = answer([*letters("ab"), END], ignore_eos=True, stop_token_ids=(END,))
    assert (got.done.reason, got.done.completion_tokens) == (FinishReason.STOP, 3)


def test_min_tokens_suppresses_every_ending() -> None:
    got = answer([END], min_tokens=20)
    assert (got.done.completion_tokens, got.done.reason) == (21, FinishReason.STOP)
    stop = answer(letters("aaaaaaaa"), stop=("a",), min_tokens=4)
    assert (stop.text, stop.done.completion_tokens, stop.done.stop_reason) == ("aaaa", 4, "a")


@pytest.mark.parametrize(
    ("tokens", "stop", "text", "kept"),
    [
        ([*letters("ab"), 4], "STOP", "ab", [10, 11]),
        ([10, 5, 11], "STOP", "aa ", [10, 5]),  # a token that begins before the stop is kept
        ([*letters("abcdefg")], "cde", "ab", [10, 11]),  # across tokens
        ([3, 3, 3, 3, 10], " ha ha ha", "", []),  # from the first token on
        ([2, 3, 3, 10], " ha ha ha", "ha", [2]),
        ([10, 0, 1, 11], "é", "a", [10]),  # half a character is wholly inside
        ([10, 0, 1, 11], "b", "aé", [10, 0, 1]),
        ([*letters("xxabab"), *letters("abc")], "ababc", "xxab", letters("xxab")),
    ],
)
def test_a_stop_string_cuts_text_and_tokens_alike(tokens: list[int], stop: str, text: str, kept: list[int]) -> None:
    got = answer(tokens, stop=(stop, "not there"))
    assert (got.text, got.token_ids) == (text, kept)
    assert [draw.token_id for draw in got.draws] == kept
    assert (got.done.reason, got.done.stop_reason) == (FinishReason.STOP, stop)
    assert got.done.completion_tokens == len(kept)


def test_what_might_be_a_stop_is_held_back_and_given_when_it_is_not() -> None:
    drive = scripted([*letters("abcabx"), *letters("y" * 50)])
    got = drive.add([50], params(max_tokens=12, stop=("abcd",)))
    seen: list[str] = []
    while drive.core.has_work:
        drive.step()
        seen.append(got.text)
        assert len(got.text) == len(got.token_ids)
    assert seen[:7] == ["", "", "", "abc", "abc", "abcabx", "abcabxy"]
    assert got.text == "abcabxyyyyyy" and got.done.reason is FinishReason.LENGTH
    assert got.num_outputs < 12, "no output without content"


def test_what_is_held_back_comes_out_at_an_end_token_and_at_the_limit() -> None:
    assert answer([*letters("xab"), END], stop=("abc",)).text == "xab"
    limit = answer(letters("xab"), stop=("abc",), max_tokens=3)
    assert (limit.text, limit.token_ids, limit.done.completion_tokens) == ("xab", letters("xab"), 3)


def test_half_a_character_is_never_given_out() -> None:
    drive = scripted([0, 1, 0])
    got = drive.add([50], params(max_tokens=3))
    texts: list[str] = []
    while drive.core.has_work:
        drive.step()
        texts.append(got.text)
    assert texts == ["", "é", "é\ufffd"]
    assert got.token_ids == [0, 1, 0]


def test_the_context_ends_an_answer_with_length() -> None:
    drive = Drive(FakeModel(context_length=64), FakeBackend())
    got = drive.one([1] * 60, params(max_tokens=1000))
    assert (got.done.reason, got.done.completion_tokens) == (FinishReason.LENGTH, 4)


def test_prompts_are_scored_in_full_whatever_is_cached_and_however_they_are_cut() -> None:
    ids = [7 * i % 90 for i in range(150)]
    settings = params(max_tokens=2, prompt_logprobs=2, num_logprobs=2)
    whole = Drive(FakeModel((None, 40)), FakeBackend()).one(ids, settings)
    assert whole.prompt_draws is not None and whole.prompt_draws[0] is None
    assert [draw.token_id for draw in whole.prompt_draws[1:] if draw is not None] == ids[1:]
    cut = Drive(FakeModel((None, 40)), FakeBackend(), prefill_chunk=13, max_running=2)
    cut.one(ids)
    again = cut.one(ids, settings)
    assert again.prompt_draws == whole.prompt_draws and again.draws == whole.draws
    assert again.done.cached_tokens == 0
    assert cut.one(ids).done.cached_tokens == 128


def test_scoring_alone_generates_nothing() -> None:
    got = Drive(FakeModel(), FakeBackend()).one([3, 4, 5], params(max_tokens=0, prompt_logprobs=1))
    assert got.prompt_draws is not None and len(got.prompt_draws) == 3
    assert (got.done.reason, got.done.completion_tokens, got.token_ids) == (FinishReason.LENGTH, 0, [])
    bare = Drive(FakeModel(), FakeBackend()).one([3, 4, 5], params(max_tokens=0))
    assert (bare.prompt_draws, bare.done.reason, bare.num_outputs) == (None, FinishReason.LENGTH, 1)


def test_a_scored_prompt_may_fill_the_context() -> None:
    drive = Drive(FakeModel(context_length=64), FakeBackend())
    got = drive.one([1] * 64, params(max_tokens=0, prompt_logprobs=0))
    assert got.prompt_draws is not None and len(got.prompt_draws) == 64


def test_a_scored_prompt_survives_preemption() -> None:
    ids = [5 * i % 90 for i in range(100)]
    settings = params(max_tokens=3, prompt_logprobs=1)
    expected = Drive(FakeModel(), FakeBackend()).one(ids, settings)
    drive = Drive(FakeModel(), FakeBackend(), prefill_chunk=16, max_running=2)
    got = drive.add(ids, settings, name="scored")
    for _ in range(3):
        drive.step()
    drive.core.scheduler.preempt(drive.core.requests["scored"])
    drive.run()
    assert got.prompt_draws == expected.prompt_draws and got.token_ids == expected.token_ids


def test_a_detokenizer_fault_ends_only_its_request() -> None:
    drive = scripted([10, 11, 12, 13])
    good = drive.add([50], params(max_tokens=4), name="good")
    bad = drive.add([51], params(max_tokens=4), name="bad")
    drive.step()
    drive.core.requests["bad"].generation._stream = None  # type: ignore[assignment]
    with pytest.raises(AttributeError):  # a defect of ours, not a fault of the request: the loop's guard takes it
        drive.run()
    drive = scripted([10, 11, 12, 13])
    good = drive.add([50], params(max_tokens=4), name="good")
    bad = drive.add([51], params(max_tokens=4), name="bad")
    drive.step()

    class Broken:
        def take(self, token_id: int) -> str:
            raise ValueError("no such token")

    drive.core.requests["bad"].generation._stream = Broken()  # type: ignore[assignment]
    drive.run()
    assert bad.done.error is not None and "no such token" in bad.done.error.message
    assert len(good.token_ids) == 4
