"""Two-model drafting on tiny models: exact, bounded in memory and time, and good where the two models agree."""

from __future__ import annotations

import math
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from engine_drive import Answer, Drive
from engine_drive import params as any_params
from harness import ORACLE
from speculation_doubles import FakeSequence

from surefoot.engine.request import GenerationParams
from surefoot.engine.speculation.contract import Committed, DraftContext
from surefoot.engine.speculation.draft_model import DraftModelSpeculator, State
from surefoot.engine.speculation.draft_resources import FOLDED_ROWS, DraftChoice, vocabulary_mismatch
from surefoot.engine.speculation.policy import SpeculationPolicy
from surefoot.kernels.backend import Backend
from surefoot.kernels.errors import ConfigError
from surefoot.kernels.registry import create_backend, has_native_module
from surefoot.models.load import LoadedModel, load_model

pytestmark = pytest.mark.skipif(not has_native_module(), reason="the native module is not built")

SAME = ORACLE / "llama" / "model.gguf"
NEAR = ORACLE / "llama" / "model-q8_0.gguf"  # the same weights, quantised
OTHER = ORACLE / "qwen3" / "model.gguf"
OFF = SpeculationPolicy(governor="off", type="draft-model", draft_tokens=5)
PROMPT = [7, 31, 55, 7, 90, 12, 44, 3, 18, 60] * 6
SAMPLINGS = [(0.0, 1), (0.8, 7), (1.0, 3)]


@cache
def target() -> LoadedModel:
    return load_model(SAME)


@cache
def backend() -> Backend:
    return create_backend("cpu", 1)


def drive(policy: SpeculationPolicy = OFF, draft: Path = NEAR, **config: object) -> Drive:
    config.setdefault("kv_memory", 32 << 20)
    return Drive(target(), backend(), context_length=320, speculation=policy, draft_model=str(draft), **config)


def settings(temperature: float, seed: int, max_tokens: int = 40, **rest: Any) -> GenerationParams:
    return any_params(
        max_tokens=max_tokens,
        seed=seed,
        temperature=temperature,
        num_logprobs=2,
        ignore_eos=True,
        presence_penalty=0.3,
        logit_bias=((5, 2.0),),
        **rest,
    )


@cache
def plain(temperature: float, seed: int, length: int = len(PROMPT), max_tokens: int = 40) -> Answer:
    engine = drive(SpeculationPolicy(enabled=False), prefix_cache=False)
    return engine.one(PROMPT[:length], settings(temperature, seed, max_tokens))


def check(answer: Answer, reference: Answer) -> None:
    assert answer.token_ids == reference.token_ids
    assert answer.draws == reference.draws


def rate(engine: Drive) -> float:
    counts = engine.core.session.counts
    return counts.accepted["draft-model"] / counts.drafted["draft-model"]


@pytest.mark.parametrize("window", [1, 2, 5, 16])
def test_every_window_and_temperature_gives_the_plain_stream(window: int) -> None:
    for (temperature, seed), length in product(SAMPLINGS, [1, 9, len(PROMPT)]):
        policy = SpeculationPolicy(governor="off", type="draft-model", draft_tokens=window)
        engine = drive(policy)
        check(engine.one(PROMPT[:length], settings(temperature, seed)), plain(temperature, seed, length))
        assert rate(engine) > 0.4, "the quantised twin guesses well at any temperature"


def test_the_same_weights_agree_about_every_draw() -> None:
    """Same noise, bias, penalties and filters at the same positions: a drafter that is the target is always right."""
    for temperature, seed in SAMPLINGS:
        engine = drive(draft=SAME)
        check(engine.one(PROMPT, settings(temperature, seed)), plain(temperature, seed))
        assert rate(engine) == 1.0


def test_governors_neighbours_and_policy_changes_change_nothing() -> None:
    for governor in ("cost", "probe", "off"):
        engine = drive(SpeculationPolicy(governor=governor, type="auto", max_batch=3))
        answers: list[tuple[Answer, Answer]] = []
        steps = 0
        pending = list(SAMPLINGS)
        while pending or engine.core.has_work:
            if pending and steps % 9 == 0:
                temperature, seed = pending.pop(0)
                answers.append((engine.add(PROMPT, settings(temperature, seed)), plain(temperature, seed)))
            if steps % 11 == 5:
                engine.core.session.change({"draft_tokens": steps % 4 + 1})
            if steps == 17:
                engine.core.session.change({"enabled": False})
            if steps == 20:
                engine.core.session.change({"enabled": True})
            engine.step()
            steps += 1
        engine.run()
        for answer, reference in answers:
            check(answer, reference)
        assert engine.core.session.counts.armed == 0


def runtime_of(engine: Drive) -> Any:
    (speculator,) = (s for s in engine.core.session.arming.speculators if isinstance(s, DraftModelSpeculator))
    return speculator._runtime


def test_nothing_is_left_behind_and_the_next_turn_reuses_what_was_read() -> None:
    engine = drive()
    runtime = runtime_of(engine)
    first = engine.one(PROMPT, settings(0.0, 1))
    assert all(pool.num_held == 0 for pool in runtime.cache.pools)
    assert runtime.cache.num_free_slots == engine.config.max_running
    history = PROMPT + first.token_ids[:30]
    before = engine.core.session.counts.catch_ups
    follow = [*history, 9, 8, 7]
    check(engine.one(follow, settings(0.0, 1)), drive(SpeculationPolicy(enabled=False)).one(follow, settings(0.0, 1)))
    assert sum(pool.num_cached for pool in runtime.cache.pools) > 0
    assert engine.core.session.counts.catch_ups - before <= 2, "what an earlier turn left is not read again"


def test_a_pool_too_small_for_the_request_means_no_draft_and_no_harm() -> None:
    engine = drive(
        kv_memory=24 * sum(backend().block_bytes(g, drive().config.kv_type) for g in target().program.kv_groups)
    )
    runtime = runtime_of(engine)
    held = [runtime.cache.holding(b"") for _ in range(2)]
    from surefoot.engine.kv_cache import Match

    for holding in held:
        runtime.cache.open(holding, Match([], None))
        while runtime.cache.reserve(holding, (holding.num_blocks + 1) * 32):
            pass
    check(engine.one(PROMPT, settings(0.0, 1)), plain(0.0, 1))
    assert sum(engine.core.session.counts.drafted.values()) == 0


def test_memory_is_bounded_by_what_the_operator_allows() -> None:
    engine = drive(kv_memory=8 << 20)
    resources = engine.core._resources
    assert resources.kv_bytes + runtime_of(engine).kv_bytes <= 8 << 20
    with pytest.raises(ConfigError, match=r"draft model's KV cache|holds no block|more than the"):
        drive(kv_memory=40_000)


def test_it_is_packed_at_load_and_not_by_the_policy_that_first_asks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = drive(SpeculationPolicy(enabled=False))

    def fail(*_: object) -> None:
        raise AssertionError("weights are packed while streams wait")

    monkeypatch.setattr(type(backend()), "load", fail)
    session = engine.core.session
    assert session.change({"enabled": True, "type": "draft-model", "governor": "off"})["not_effective"] == {}
    check(engine.one(PROMPT, settings(0.0, 1)), plain(0.0, 1))
    assert session.counts.drafted["draft-model"]


def test_a_model_of_another_vocabulary_is_declined_by_name() -> None:
    reason = vocabulary_mismatch(target(), load_model(ORACLE / "gemma3" / "model.gguf"))
    if reason is None:
        pytest.skip("the tiny models share one vocabulary")
    assert "vocabulary" in reason


def test_without_a_draft_model_it_declines_and_auto_goes_on() -> None:
    engine = Drive(target(), backend(), context_length=320, kv_memory=16 << 20)
    session = engine.core.session
    assert session.snapshot()["algorithms"] == ["ngram"]
    changed = session.change({"type": "draft-model"})
    assert changed["not_effective"] == {"type": "no draft model was given (--draft-model)"}
    check(engine.one(PROMPT, settings(0.0, 1)), plain(0.0, 1))


# --- the speculator alone --------------------------------------------------------------------------------------------


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 0.001
        return self.now


def armed(
    tokens: list[int], num_prompt: int = len(PROMPT) - 1, narrow: bool = False
) -> tuple[DraftModelSpeculator, FakeSequence, State]:
    choice = DraftChoice(runtime_of(drive(draft=SAME)), 0.3, 0.05)
    width = target().program.vocab_size
    speculator = DraftModelSpeculator(choice, width + 3 if narrow else width, Clock())
    sequence = FakeSequence(tokens, num_prompt, max_tokens=200)
    sequence.sampler = backend().sampler(sequence.sampling, tokens[:num_prompt], width)
    sequence.sampler.commit(tokens[num_prompt:])
    state = speculator.open(sequence)
    while speculator.lag(state):
        assert speculator.catch_up(state, 0.02) > 0
    return speculator, sequence, state


def propose(
    speculator: DraftModelSpeculator, state: State, size: int = 4, confidence: float = 0.0, go: Any = None
) -> Any:
    tokens = state.request.tokens
    context = DraftContext(state, tokens[-1], len(tokens) - 1, size, confidence, go or (lambda position, grade: True))
    (draft,) = speculator.propose([context])
    return draft


def emit(speculator: DraftModelSpeculator, sequence: FakeSequence, state: State, ids: list[int], drafted: int) -> None:
    start = sequence.emit(ids)
    sequence.sampler.commit(ids)
    kept = sequence.tokens[start : len(sequence.tokens) - 1]
    speculator.commit([Committed(state, start, kept, ids[-1], drafted)])


def test_rejected_rows_are_overwritten_and_accepted_ones_kept() -> None:
    speculator, sequence, state = armed(PROMPT)
    fresh = propose(speculator, state).token_ids
    for accepted in (0, 1, 2, 3, 4):
        draft = propose(speculator, state).token_ids
        wrong = (draft[accepted] + 1) % 50 if accepted < 4 else 17
        emit(speculator, sequence, state, [*draft[:accepted], wrong], 4)
        assert state.num_computed == len(sequence.tokens) - 1 - (accepted == 4)
        again, _, other = armed(list(sequence.tokens))
        assert propose(speculator, state).token_ids == propose(again, other).token_ids
        emit(speculator, sequence, state, [23], 0)
    assert len(fresh) == 4 and speculator.num_gap_errors == 0


def test_a_draft_ends_where_it_does_not_pay_or_is_not_sure() -> None:
    speculator, _, state = armed(PROMPT)
    asked: list[tuple[int, int]] = []

    def go(position: int, grade: int) -> bool:
        asked.append((position, grade))
        return position < 1

    assert len(propose(speculator, state, 8, go=go)) == 2
    assert [position for position, _ in asked] == [0, 1]
    sure = propose(speculator, state, 8, confidence=1.0)
    assert len(sure) == 0 and sure.reason == "below the confidence gate"
    assert propose(speculator, state, 3).seconds > 0


def test_steps_served_without_it_are_folded_into_the_next_draft_or_read() -> None:
    speculator, sequence, state = armed(PROMPT)
    for token in range(FOLDED_ROWS):
        sequence.emit([token])
        sequence.sampler.commit([token])
    assert speculator.lag(state) == 0
    assert len(propose(speculator, state)) == 4
    for token in range(FOLDED_ROWS + 2):  # its draft has read the last token of before
        sequence.emit([token])
        sequence.sampler.commit([token])
    assert speculator.lag(state) == FOLDED_ROWS + 1
    assert propose(speculator, state).reason == "history not read yet"


def test_reading_is_cut_into_pieces_by_time() -> None:
    choice = DraftChoice(runtime_of(drive(draft=SAME)), 0.3, 0.05)
    speculator = DraftModelSpeculator(choice, target().program.vocab_size, Clock())
    state = speculator.open(FakeSequence([3] * 200, max_tokens=50))
    pieces: list[int] = []
    while speculator.lag(state):
        pieces.append(speculator.catch_up(state, 0.004))
    assert pieces[0] == 16 and max(pieces) <= 100 and len(pieces) >= 3


def test_a_drafter_with_padding_counts_in_its_own_vocabulary() -> None:
    speculator, sequence, state = armed(PROMPT, narrow=True)
    assert state.own_sampler
    reference, _, other = armed(PROMPT)
    draft = propose(speculator, state)
    assert draft.token_ids == propose(reference, other).token_ids
    emit(speculator, sequence, state, [*draft.token_ids, 9], 4)
    assert len(propose(speculator, state)) == 4


def test_a_commit_elsewhere_is_counted_and_read_anew() -> None:
    speculator, sequence, state = armed(PROMPT)
    propose(speculator, state)
    start = sequence.emit([1, 2])
    speculator.commit([Committed(state, start - 3, [1, 2], 2, 4)])
    assert speculator.num_gap_errors == 1
    assert speculator.lag(state) == len(sequence.tokens) - 1
    assert math.isfinite(speculator.catch_up(state, 1.0))
