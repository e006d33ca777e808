"""Constrained requests in the engine: nonsense models write valid answers, alone and together, drafted or not."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest
from engine_drive import Answer, Drive, params
from fake_backend import VOCAB, FakeBackend, FakeModel
from grammar_cases import PERSON
from harness import ORACLE

from surefoot.engine.active_request import ActiveRequest
from surefoot.engine.grammar.compiler import Grammars
from surefoot.engine.grammar.constraint import Constraint
from surefoot.engine.grammar.matcher import Grammar
from surefoot.engine.request import FinishReason, GenerationParams
from surefoot.engine.sequence import Rows
from surefoot.engine.speculation.policy import RequestSpeculation
from surefoot.kernels.registry import create_backend, has_native_module
from surefoot.models.load import LoadedModel, load_model

END = VOCAB - 1
PLAIN = RequestSpeculation(enabled=False)
SCHEMA = Constraint.json_schema(PERSON, "response_format")
LONG = Constraint.regex("[a-z]{3} a text that is prescribed from its beginning to its end [a-z]{2}", "p")


@cache
def fake_grammars() -> Grammars:
    return Grammars(model().tokenizer, VOCAB)


def model() -> FakeModel:
    return FakeModel((None, 40), ends=frozenset({END}))


def drive(**config: object) -> Drive:
    return Drive(model(), FakeBackend(), **config)


def compiled(constraint: Constraint) -> Grammar:
    return fake_grammars().compile(constraint).result(30)


def asked(constraint: Constraint, seed: int = 0, temperature: float = 1.0, **rest: object) -> GenerationParams:
    return params(rest.pop("max_tokens", 200), seed, temperature, grammar=compiled(constraint), **rest)  # type: ignore[arg-type]


def prompt(seed: int = 0, length: int = 20) -> list[int]:
    return random.Random(seed).choices(range(90), k=length)


def same(one: Answer, other: Answer) -> bool:
    return (one.token_ids, one.draws, one.text, one.done) == (other.token_ids, other.draws, other.text, other.done)


class Drafts:
    """Drafts what an earlier answer says, and nonsense here and there."""

    taps = ()

    def __init__(self, answer: Sequence[int], window: int, mistakes: float) -> None:
        self.answer, self.window, self.mistakes = answer, window, mistakes
        self.rng = random.Random(window)
        self.accepts: list[tuple[int, int]] = []  # proposed, accepted
        self.certain: list[int] = []  # of the accepted
        self.proposed = 0

    def prepare(self, running: Sequence[ActiveRequest], crowded: bool) -> None:
        for request in running:
            request.draft_window = self.window

    def draft(self, entries: Sequence[Rows[ActiveRequest]]) -> list[list[int]]:
        (rows,) = entries
        done = len(rows.sequence.tokens) - rows.sequence.num_prompt
        ids = self.answer[done : done + min(self.window, rows.window)]
        self.proposed = len(ids)
        return [[self.rng.randrange(VOCAB) if self.rng.random() < self.mistakes else token for token in ids]]

    def accepted(
        self, sequence: ActiveRequest, start: int, num_accepted: int, first_row: int, num_certain: int
    ) -> None:
        assert num_accepted <= self.proposed
        self.accepts.append((self.proposed, num_accepted))
        self.certain.append(num_certain)
        self.proposed = 0

    def finish(self, sequences: int, rows: int, prefill_rows: int) -> None:
        pass

    def release(self, sequence: ActiveRequest) -> None:
        pass


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("seed", range(4))
def test_answers_are_valid(seed: int, temperature: float) -> None:
    answer = drive().one(prompt(seed), asked(SCHEMA, seed, temperature))
    value = json.loads(answer.text)
    assert list(value) == ["name", "age", "tags"] and 0 <= value["age"] <= 150
    assert answer.done.reason is FinishReason.STOP and answer.done.stop_reason is None


@pytest.mark.parametrize("constraint", [SCHEMA, LONG], ids=["schema", "prescribed"])
@pytest.mark.parametrize("window", [0, 1, 3, 8])
@pytest.mark.parametrize("mistakes", [0.0, 0.2, 1.0])
def test_drafts_change_nothing(constraint: Constraint, window: int, mistakes: float) -> None:
    settings = asked(constraint, 5, num_logprobs=2)
    plain = drive()
    reference = plain.one(prompt(), settings, wishes=PLAIN)
    drafting = drive()
    drafting.core.speculation = drafts = Drafts(reference.token_ids, window, mistakes)  # type: ignore[assignment]
    answer = drafting.one(prompt(), settings)
    assert same(answer, reference)
    if window and not mistakes:
        assert drafting.core.num_steps < plain.core.num_steps
        assert any(accepted for _, accepted in drafts.accepts)


def test_prescribed_tokens_take_one_step() -> None:
    """Jump-ahead: a long prescribed text is verified in one window, which costs no proposal."""
    settings = asked(LONG, 3)
    jumping, off, plain = drive(), drive(), drive()
    off.core.session.change({"enabled": False})
    first, second, third = (
        jumping.one(prompt(), settings),
        off.one(prompt(), settings),
        plain.one(prompt(), settings, wishes=PLAIN),
    )
    assert same(first, second) and same(first, third)
    assert re.fullmatch("[a-z]{3} a text .* end [a-z]{2}", first.text)
    assert plain.core.num_steps == len(first.text)
    assert jumping.core.num_steps <= 8 and off.core.num_steps <= 8, "what is prescribed is no guess: no policy is asked"


def test_prescribed_tokens_are_counted_apart() -> None:
    """Neither a speculator's acceptance nor what its governor learns contains them."""
    driven = drive()
    driven.core.session.change({"type": "ngram"})
    driven.core.speculation = drafts = Drafts([], 0, 0.0)  # type: ignore[assignment]
    answer = driven.one(prompt(), asked(LONG, 3))
    assert driven.core.metrics.prescribed_tokens == len(answer.text) - driven.core.num_steps
    assert drafts.accepts == [(0, 0)] * driven.core.num_steps
    session = drive()
    session.core.session.change({"enabled": False})
    session.one(prompt(), asked(LONG, 3))
    counts = session.core.session.counts
    assert counts.steps["prescribed"] >= 1 and counts.steps["verify"] == 0 and not counts.accepted
    assert sum(counts.steps.values()) == session.core.num_steps - 1, "but for the prompt's"
    right = drive()
    right.core.speculation = drafts = Drafts(answer.token_ids, 8, 0.0)  # type: ignore[assignment]
    assert same(right.one(prompt(), asked(LONG, 3)), answer)
    assert 0 < right.core.metrics.prescribed_tokens < len(answer.text)
    assert sum(drafts.certain) == right.core.metrics.prescribed_tokens


@pytest.mark.parametrize("wishes", [PLAIN, RequestSpeculation(draft_tokens=0)])
def test_a_request_can_ask_for_plain_steps(wishes: RequestSpeculation) -> None:
    driven = drive()
    answer = driven.one(prompt(), asked(LONG), wishes=wishes)
    assert driven.core.num_steps == len(answer.text) and driven.core.metrics.prescribed_tokens == 0


def test_many_at_once_are_what_they_are_alone() -> None:
    constraints = [SCHEMA, LONG, None, Constraint.choice(["yes", "no"], "p"), SCHEMA, Constraint.json_object("p")]
    settings = [
        params(60, seed, 1.0) if constraint is None else asked(constraint, seed, max_tokens=60, num_logprobs=1)
        for seed, constraint in enumerate(constraints)
    ]
    alone = [drive().one(prompt(seed), each) for seed, each in enumerate(settings)]
    together = drive(max_running=4)
    answers = [together.add(prompt(seed), each) for seed, each in enumerate(settings)]
    together.run()
    assert all(same(one, other) for one, other in zip(answers, alone, strict=True))


def test_the_limit_cuts_an_answer() -> None:
    answer = drive().one(prompt(), asked(LONG, max_tokens=10))
    assert answer.done.reason is FinishReason.LENGTH and len(answer.token_ids) == 10


def test_complete_at_the_limit_is_a_stop() -> None:
    answer = drive().one(prompt(), asked(Constraint.regex("[ab]{10}", "p"), max_tokens=10))
    assert answer.done.reason is FinishReason.STOP and len(answer.token_ids) == 10


def test_a_complete_answer_counts_before_min_tokens() -> None:
    """No longer answer matches. Where one does, the end waits for min_tokens."""
    short = drive().one(prompt(), asked(Constraint.regex("[ab]{3}", "p"), min_tokens=5))
    assert len(short.token_ids) == 3 and short.done.reason is FinishReason.STOP
    long = drive().one(prompt(), asked(Constraint.regex("[ab]*", "p"), min_tokens=30, max_tokens=60))
    assert len(long.text) >= 30 and re.fullmatch("[ab]*", long.text)


def test_ignore_eos_goes_on_while_the_grammar_can() -> None:
    answer = drive().one(prompt(), asked(Constraint.regex("[ab]{2,20}", "p"), ignore_eos=True))
    assert re.fullmatch("[ab]{20}", answer.text) and END not in answer.token_ids


def test_a_stop_string_ends_a_constrained_answer() -> None:
    answer = drive().one(prompt(), asked(LONG, stop=("prescribed",)))
    assert answer.done.stop_reason == "prescribed" and answer.text.endswith("that is ")


@pytest.mark.parametrize("window", [0, 4])
def test_a_grammar_that_fails_ends_its_request_only(window: int) -> None:
    rules = "\n".join(f"r{n}: r{n + 1} r{n + 1}" for n in range(30))
    bad = Constraint.lark(f'start: /[xy]{{40}}/ r0\n{rules}\nr30: "a"', "structured_outputs")
    driven = drive()
    failing = driven.add(prompt(1), asked(bad))
    fine = [driven.add(prompt(2), asked(SCHEMA, 2)), driven.add(prompt(3), params(60, 3))]
    driven.run()
    assert failing.done.reason is FinishReason.ERROR and failing.done.error is not None
    assert (failing.done.error.status, failing.done.error.code) == (400, "grammar_too_complex")
    assert same(fine[0], drive().one(prompt(2), asked(SCHEMA, 2)))
    assert same(fine[1], drive().one(prompt(3), params(60, 3)))
    if window:
        alone = drive()
        alone.core.speculation = Drafts(failing.token_ids, window, 0.0)  # type: ignore[assignment]
        again = alone.one(prompt(1), asked(bad))
        assert (again.token_ids, again.done.error and again.done.error.code) == (
            failing.token_ids,
            "grammar_too_complex",
        )


def test_nothing_allowed_ends_its_request_only() -> None:
    """The letter that must come is a stop token that min_tokens forbids."""
    driven = drive()
    stuck = driven.add(prompt(), asked(Constraint.regex("ab[cd]+", "p"), stop_token_ids=(ord("a") - 32,), min_tokens=9))
    fine = driven.add(prompt(2), asked(SCHEMA, 2))
    driven.run()
    assert stuck.done.error is not None and "no token" in stuck.done.error.message
    assert json.loads(fine.text)


def test_cancelled_and_preempted_requests_keep_their_grammar() -> None:
    settings = asked(Constraint.regex("[a-f]{150}", "p"))
    alone = [drive().one(prompt(seed), settings) for seed in range(3)]
    crowded = drive(kv_memory=None, max_running=3, context_length=256)
    answers = [crowded.add(prompt(seed), settings) for seed in range(3)]
    gone = crowded.add(prompt(9), settings, name="gone")
    for _ in range(20):
        crowded.step()
    crowded.core.scheduler.preempt(crowded.core.scheduler.running[-1])
    crowded.cancel("gone")
    crowded.run()
    assert gone.done.reason is FinishReason.CANCELLED
    assert all(same(one, other) for one, other in zip(answers, alone, strict=True))


# --- real tokenizers, real kernels -----------------------------------------------------------------------------------


@cache
def loaded(name: str) -> LoadedModel:
    return load_model(ORACLE / name / "model.gguf")


@cache
def real_grammars(name: str) -> Grammars:
    return Grammars(loaded(name).tokenizer, loaded(name).program.vocab_size)


@pytest.mark.skipif(not has_native_module(), reason="the native module is not built")
@pytest.mark.parametrize("name", ["llama", "gemma3", "qwen35"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_native_sampling_under_masks(name: str, temperature: float) -> None:
    grammar = real_grammars(name).compile(SCHEMA).result(30)
    engine = Drive(loaded(name), create_backend("cpu", 2), kv_memory=24 << 20, context_length=640)
    plain = Drive(loaded(name), create_backend("cpu", 2), kv_memory=24 << 20, context_length=640)
    valid = 0
    for seed in range(5):
        settings = params(300, seed, temperature, grammar=grammar, num_logprobs=1)
        answer = engine.one([5, 6, 7 + seed], settings)
        assert same(answer, plain.one([5, 6, 7 + seed], settings, wishes=PLAIN))
        if answer.done.reason is FinishReason.STOP:
            assert list(json.loads(answer.text)) == ["name", "age", "tags"]
            valid += 1
    assert valid >= 3


@pytest.mark.parametrize(
    "held", [{}, {"ignore_eos": True}, {"min_tokens": 3}, {"ignore_eos": True, "min_tokens": 3}], ids=str
)
@pytest.mark.parametrize("constraint", [Constraint.choice([""], "p"), Constraint.gbnf('root ::= ""', "p")])
def test_an_answer_that_may_only_be_empty_ends_before_a_token(constraint: Constraint, held: dict[str, Any]) -> None:
    """Also where no end may be drawn: there is nothing else to draw."""
    engine = drive()
    answer = engine.one(prompt(), asked(constraint, num_logprobs=1, prompt_logprobs=0, **held))
    assert (answer.text, answer.token_ids, answer.draws) == ("", [], [])
    assert (answer.done.reason, answer.done.error, answer.done.completion_tokens) == (FinishReason.STOP, None, 0)
    assert answer.prompt_draws is not None and len(answer.prompt_draws) == len(prompt())


@pytest.mark.parametrize("held", [{"ignore_eos": True}, {"min_tokens": 3}, {"min_tokens": 9}], ids=str)
@pytest.mark.parametrize("pattern", ["(ab)?", "a{0,3}", "a|aaaa|", "yes"])
def test_a_complete_answer_ends_whatever_holds_ends_back(pattern: str, held: dict[str, Any]) -> None:
    answer = drive().one(prompt(), asked(Constraint.regex(pattern, "p"), max_tokens=20, **held))
    assert answer.done.reason is FinishReason.STOP, answer.done
    assert answer.text and re.fullmatch(pattern, answer.text)
