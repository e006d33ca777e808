"""Speculation changes no token and no log-probability: by bits, on tiny models, through the real engine.

Every reference is the same request on its own, plain, in a fresh engine. A bias keeps answers to three tokens, so that
n-gram drafts are accepted in part, whole and not at all; the tests assert that they are.
"""

from __future__ import annotations

import logging
import random
import re
import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any

import pytest
from engine_drive import Answer, Drive
from engine_drive import params as any_params
from harness import ORACLE
from speculation_doubles import Scripted

from surefoot.engine.core import EngineCore
from surefoot.engine.repetition_guard import RepetitionLimit
from surefoot.engine.request import FinishReason, GenerationParams, Submission
from surefoot.engine.speculation.contract import Capabilities, Draft, DraftContext
from surefoot.engine.speculation.policy import RequestSpeculation, SpeculationPolicy
from surefoot.engine.speculation.registry import Entry, Registry
from surefoot.kernels.backend import Backend
from surefoot.kernels.bell import NO_BELL
from surefoot.kernels.errors import RequestError
from surefoot.kernels.registry import create_backend, has_native_module
from surefoot.models.load import LoadedModel, load_model

pytestmark = pytest.mark.skipif(not has_native_module(), reason="the native module is not built")

MODELS = ["llama", "gemma3", "qwen35"]
PLAIN = SpeculationPolicy(enabled=False)
SAMPLINGS = [(0.0, 1), (0.8, 7), (1.0, 3)]


@cache
def loaded(model: str) -> LoadedModel:
    return load_model(ORACLE / model / "model.gguf")


@cache
def backend() -> Backend:
    return create_backend("cpu", 2)


def drive(model: str, policy: SpeculationPolicy, **config: object) -> Drive:
    config.setdefault("kv_memory", 24 << 20)
    config.setdefault("context_length", 640)
    return Drive(loaded(model), backend(), speculation=policy, **config)


def prompt(kind: str, seed: int = 0) -> list[int]:
    """Ids that repeat themselves, or do not."""
    pick = random.Random(seed)
    base = [pick.randrange(1, 200) for _ in range(24)]
    return {"repeating": base * 3 + base[:9], "plain": [pick.randrange(1, 200) for _ in range(70)], "short": [5]}[kind]


def settings(temperature: float, seed: int, max_tokens: int = 40, **rest: object) -> GenerationParams:
    return any_params(
        max_tokens=max_tokens,
        seed=seed,
        temperature=temperature,
        logit_bias=((40, 90.0), (41, 90.0), (42, 90.0)),
        frequency_penalty=0.7,
        num_logprobs=2,
        ignore_eos=True,
        **rest,
    )


@cache
def plain(model: str, kind: str, temperature: float, seed: int, max_tokens: int = 40) -> Answer:
    return drive(model, PLAIN, prefix_cache=False).one(prompt(kind), settings(temperature, seed, max_tokens))


def check(answer: Answer, reference: Answer) -> None:
    assert answer.token_ids == reference.token_ids
    assert answer.draws == reference.draws
    assert answer.text == reference.text
    assert answer.done.reason == reference.done.reason


def counts(engine: Drive) -> Any:
    return engine.core.session.counts


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("governor", ["off", "probe", "cost"])
def test_every_window_gives_the_plain_stream(model: str, governor: str) -> None:
    accepted = rejected = 0
    for window, kind, (temperature, seed) in product([*range(9), 12, 16], ["repeating", "plain", "short"], SAMPLINGS):
        engine = drive(model, SpeculationPolicy(governor=governor, draft_tokens=window))
        check(engine.one(prompt(kind), settings(temperature, seed)), plain(model, kind, temperature, seed))
        accepted += sum(counts(engine).accepted.values())
        rejected += sum(counts(engine).drafted.values()) - sum(counts(engine).accepted.values())
    if governor == "off":
        assert accepted > 300 and rejected > 300, f"{accepted} drafts accepted, {rejected} rejected"


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("chunk", [1, 16, 33])
def test_neighbours_chunks_and_warm_prefixes_change_nothing(model: str, chunk: int) -> None:
    """Requests join and leave while others speculate, alone and in batches; some reuse what is cached."""
    accepted = 0
    for max_batch in (1, 4):
        engine = drive(
            model, SpeculationPolicy(governor="off", draft_tokens=6, max_batch=max_batch), prefill_chunk=chunk
        )
        pending = list(product(["repeating", "plain", "repeating"], SAMPLINGS))
        answers: list[tuple[Answer, Answer]] = []
        steps = 0
        while pending or engine.core.has_work:
            if pending and steps % 7 == 0:
                kind, (temperature, seed) = pending.pop(0)
                answer = engine.add(prompt(kind), settings(temperature, seed))
                answers.append((answer, plain(model, kind, temperature, seed)))
            engine.step()
            steps += 1
        engine.run()
        for answer, reference in answers:
            check(answer, reference)
        accepted += sum(counts(engine).accepted.values())
        assert counts(engine).armed == 0 and not engine.core.session.arming.tracked
    assert accepted > 15


def test_a_policy_that_changes_in_mid_stream_changes_nothing() -> None:
    model, pick = "gemma3", random.Random(4)
    for kind, (temperature, seed) in product(["repeating", "plain"], SAMPLINGS):
        engine = drive(model, SpeculationPolicy(governor="off", draft_tokens=4))
        answer = engine.add(prompt(kind), settings(temperature, seed))
        while engine.core.has_work:
            engine.step()
            body = {
                "enabled": pick.random() > 0.2,
                "draft_tokens": pick.choice([None, 0, 1, 3, 9]),
                "governor": pick.choice(["cost", "probe", "off"]),
                "type": pick.choice(["auto", "ngram"]),
                "min_confidence": pick.choice([None, 0.0, 0.5, 1.0]),
            }
            changed = engine.core.session.change({key: body[key] for key in pick.sample(list(body), 2)})
            assert changed["policy"]["generation"] > 0  # type: ignore[index]
        check(answer, plain(model, kind, temperature, seed))


@pytest.mark.parametrize("stop", ["token", "string", "limit", "loop"])
@pytest.mark.parametrize("window", [0, 1, 3, 8])
def test_stops_inside_a_window(stop: str, window: int) -> None:
    model, kind = "llama", "repeating"
    free = plain(model, kind, 0.0, 1, 60)
    at = next(i for i in range(30, 60) if free.token_ids[i] not in free.token_ids[:i] or i == 45)
    wanted: dict[str, dict[str, Any]] = {
        "token": {"stop_token_ids": (free.token_ids[at],), "min_tokens": 20},
        "string": {"stop": (free.text[-12:-8],)},
        "limit": {},
        "loop": {"repetition_guard": RepetitionLimit(3, 2), "min_tokens": 25},
    }
    request = replace(settings(0.0, 1, at if stop == "limit" else 60), **wanted[stop])
    reference = drive(model, PLAIN).one(prompt(kind), request)
    assert reference.done.completion_tokens < 60, "it stopped"
    engine = drive(model, SpeculationPolicy(governor="off", draft_tokens=window))
    answer = engine.one(prompt(kind), request)
    check(answer, reference)
    assert answer.done.stop_reason == reference.done.stop_reason
    assert answer.done.completion_tokens == reference.done.completion_tokens
    follow = [*prompt(kind), *free.token_ids[: at - 2], 9]
    check(engine.one(follow, settings(0.0, 1)), drive(model, PLAIN).one(follow, settings(0.0, 1)))


def test_short_of_blocks_the_window_shrinks_and_nobody_is_preempted() -> None:
    model = "llama"
    block = backend().block_bytes(loaded(model).program.kv_groups[0], Drive(loaded(model), backend()).config.kv_type)
    engine = drive(model, SpeculationPolicy(governor="off", draft_tokens=16), kv_memory=6 * block, context_length=128)
    answer = engine.one(prompt("repeating"), settings(0.0, 1, 40))
    check(answer, plain(model, "repeating", 0.0, 1))
    assert engine.core.scheduler.counts.preemptions == 0
    assert sum(counts(engine).accepted.values()) > 0


def test_preempted_and_cancelled_requests_leave_nothing_armed() -> None:
    model = "llama"
    engine = drive(model, SpeculationPolicy(governor="off", draft_tokens=5, max_batch=8), max_running=4)
    answers = [engine.add(prompt("repeating"), settings(0.8, 7), name=f"r{i}") for i in range(4)]
    for step in range(60):
        engine.step()
        if step == 8:
            engine.core.scheduler.preempt(engine.core.scheduler.running[-1])
        if step == 12 and "r1" in engine.core.requests:
            engine.cancel("r1")
    engine.run()
    assert answers[1].done.reason is FinishReason.CANCELLED
    for answer in (answers[0], answers[2], answers[3]):
        check(answer, plain(model, "repeating", 0.8, 7))
    assert counts(engine).armed == 0 and not engine.core.session.arming.tracked


def test_gaps_between_tokens_add_up_to_the_time_that_they_took() -> None:
    """The tokens of one step share its time."""
    engine = drive("llama", SpeculationPolicy(governor="off", draft_tokens=8))
    began = time.monotonic()
    answer = engine.one(prompt("repeating"), settings(0.0, 1, 60))
    took = time.monotonic() - began
    gaps, first = engine.core.metrics.inter_token, answer.done.first_token_s
    assert sum(counts(engine).accepted.values()) > 15
    assert gaps.count == len(answer.token_ids) - 1
    assert first is not None and 0 < gaps.total <= took - first


def test_a_broken_engine_leaves_nothing_armed() -> None:
    engine = drive("llama", SpeculationPolicy(governor="off", draft_tokens=5))
    answer = engine.add(prompt("repeating"), settings(0.8, 7))
    while not counts(engine).armed:
        engine.step()
    engine.core.reset("a defect")
    engine.run()
    assert answer.done.reason is FinishReason.ERROR
    assert counts(engine).armed == 0 and not engine.core.session.arming.tracked


def test_a_request_may_switch_it_off_and_may_ask_for_a_report() -> None:
    engine = drive("llama", SpeculationPolicy(governor="off", draft_tokens=4))
    answers: list[Answer] = []
    for name, wishes in (
        ("off", RequestSpeculation(enabled=False, report=True)),
        ("on", RequestSpeculation(report=True)),
        ("quiet", RequestSpeculation()),
    ):
        answer = Answer()
        engine.core.add(
            Submission(name, prompt("repeating"), settings(0.0, 1), b"", answer.take, speculation=wishes), 0.0
        )
        engine.run()
        for submission, output in engine.core.outbox:
            submission.deliver(output)
        answers.append(answer)
        check(answer, plain("llama", "repeating", 0.0, 1))
    off, on, quiet = (answer.done.speculation for answer in answers)
    assert off is not None and off["declined"] == "the request switched it off" and off["drafted_tokens"] == 0
    assert on is not None and on["accepted_tokens"] > 0 and on["steps"]["verify"] > 0  # type: ignore[index, operator]
    assert quiet is None


def test_a_line_in_the_log_says_what_speculation_did(caplog: pytest.LogCaptureFixture) -> None:
    engine = drive("llama", SpeculationPolicy(governor="off", draft_tokens=4))
    with caplog.at_level(logging.INFO):
        engine.one(prompt("repeating"), settings(0.0, 1), name="long")
        engine.one(prompt("repeating"), settings(0.0, 1, max_tokens=1), name="one token")
        engine.add(prompt("repeating"), settings(0.0, 1), name="left")
        for _ in range(9):
            engine.step()
        engine.cancel("left")
    done = counts(engine)
    found = [record.getMessage() for record in caplog.records if "speculation by" in record.getMessage()]
    assert [line.split(":")[0] for line in found] == ["request long", "request left"], "only requests that were armed"
    assert all("speculation by ngram: drafted" in line and "ms per token plain" in line for line in found)
    for kind, total in done.steps.items():
        numbers = [int(part) for line in found for part in re.findall(rf"\b{kind} (\d+) \(", line)]
        assert sum(numbers) == total, kind
    assert sum(int(n) for line in found for n in re.findall(r"accepted (\d+)", line)) == done.accepted["ngram"] > 0


# --- algorithms that others write ------------------------------------------------------------------------------------


def with_algorithm(engine: Drive, speculator: Any) -> None:
    """Puts an algorithm of the test's own into the engine's registry, and selects it."""
    arming = engine.core.session.arming
    arming.registry = Registry().extended("mine", Entry(lambda target, resources: speculator))
    engine.core.session.change({"type": "mine"})


def boom(context: DraftContext) -> Draft:
    raise RuntimeError("boom")


@pytest.mark.parametrize(
    "script",
    [
        boom,
        lambda context: Draft([3] * (context.max_tokens + 1), [0] * 99),
        lambda context: Draft([1 << 20], [0]),
        lambda context: Draft([-5], [0]),
        lambda context: "tokens",
    ],
)
def test_a_hostile_algorithm_is_disarmed_and_the_stream_goes_on(
    script: Callable[[DraftContext], Any], caplog: pytest.LogCaptureFixture
) -> None:
    engine = drive("llama", SpeculationPolicy(governor="off"))
    with_algorithm(engine, Scripted(script, Capabilities("mine", 8, (0.5,))))
    with caplog.at_level(logging.ERROR):
        check(engine.one(prompt("repeating"), settings(0.8, 7)), plain("llama", "repeating", 0.8, 7))
    assert sum(counts(engine).disarmed.values()) == 1
    assert "speculation is disarmed" in caplog.text


def test_an_oracle_accepts_everything_and_a_liar_nothing() -> None:
    reference = plain("llama", "repeating", 1.0, 3)
    start = len(prompt("repeating"))

    def oracle(context: DraftContext) -> Draft:
        done = context.position + 1 - start
        return Draft(reference.token_ids[done : done + context.max_tokens], [0] * 8)

    def liar(context: DraftContext) -> Draft:
        return Draft([(token + 1) % 200 for token in oracle(context).token_ids], [0] * 8)

    for script, rate in ((oracle, 1.0), (liar, 0.0)):
        engine = drive("llama", SpeculationPolicy(governor="off", draft_tokens=8))
        with_algorithm(engine, Scripted(script, Capabilities("mine", 8, (0.5,))))
        check(engine.one(prompt("repeating"), settings(1.0, 3)), reference)
        drafted, accepted = counts(engine).drafted["mine"], counts(engine).accepted["mine"]
        assert drafted > 30 and accepted == rate * drafted
        steps = counts(engine).steps["verify"] + counts(engine).steps["plain"] + counts(engine).steps["parked"]
        assert steps == (5 if rate else 39)


def test_the_core_refuses_a_malformed_patch_and_changes_nothing() -> None:
    engine = drive("llama", SpeculationPolicy())
    core: EngineCore = engine.core
    for body in ({"window": 3}, {"draft_tokens": "many"}):
        with pytest.raises(RequestError) as caught:
            core.session.change(body)
        assert caught.value.status == 422
    assert core.session.arming.policy.generation == 0
    changed = core.session.change({"draft_tokens": 64, "max_batch": 1000})
    assert list(changed["not_effective"]) == ["max_batch"]  # type: ignore[call-overload]


def test_outputs_do_not_wait_for_a_drafter_that_takes_its_time() -> None:
    """The first token too: it is out before the drafter is armed and reads the prompt."""
    engine = drive("llama", SpeculationPolicy(governor="off"))
    core, waiting = engine.core, list[int]()

    def hand_out() -> int:
        outbox, core.outbox = core.outbox, []
        for submission, output in outbox:
            submission.deliver(output)
        return NO_BELL

    def script(context: DraftContext) -> Draft:
        waiting.append(len(core.outbox))
        return Draft([], reason="none")

    with_algorithm(engine, Scripted(script, Capabilities("mine", 8, (0.5,), paid=True)))
    core.hand_out = hand_out
    answer = engine.add(prompt("repeating"), settings(0.8, 7))
    while core.has_work:
        core.step()
    hand_out()
    check(answer, plain("llama", "repeating", 0.8, 7))
    assert len(waiting) > 1
    assert not any(waiting)
