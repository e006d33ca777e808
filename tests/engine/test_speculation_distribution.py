"""Through the whole verify path, answers at temperature 1 are distributed as the model says, whatever was drafted.

A bias leaves four tokens, so an answer of four tokens is one of 256 with known probabilities: products of what the
model says after each beginning. The first token comes from the prompt's row, two are drafted, then the correction or
bonus.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Mapping
from functools import cache
from itertools import product

import pytest
from engine_drive import Drive, params
from harness import ORACLE
from speculation_doubles import Scripted

from surefoot.engine.speculation.contract import Capabilities, Draft, DraftContext
from surefoot.engine.speculation.policy import SpeculationPolicy
from surefoot.engine.speculation.registry import Entry, Registry
from surefoot.kernels.registry import create_backend, has_native_module
from surefoot.models.load import load_model

pytestmark = pytest.mark.skipif(not has_native_module(), reason="the native module is not built")

PROMPT = [7, 31, 55]
TOKENS = (40, 41, 42, 43)
BIAS = tuple(zip(TOKENS, (90.0, 91.0, 90.0, 90.5), strict=True))  # everything else: less than e**-80
LENGTH, BATCH, NUM_ANSWERS = 4, 16, 1600

Answer = tuple[int, ...]


def engine(policy: SpeculationPolicy) -> Drive:
    return Drive(
        load_model(ORACLE / "llama" / "model.gguf"),
        create_backend("cpu", 1),
        kv_memory=8 << 20,
        context_length=64,
        max_running=BATCH,
        speculation=policy,
    )


@cache
def expected() -> Mapping[Answer, float]:
    """The probability of every answer, from the log-probabilities after every beginning."""
    drive = engine(SpeculationPolicy(enabled=False))
    vocabulary = load_model(ORACLE / "llama" / "model.gguf").program.vocab_size
    after: dict[Answer, dict[int, float]] = {}
    for length in range(LENGTH):
        for beginning in product(TOKENS, repeat=length):
            draw = drive.one([*PROMPT, *beginning], params(max_tokens=1, num_logprobs=vocabulary)).draws[0]
            raw = dict(draw.top)
            weights = {token: math.exp(raw[token] + bias - 90.0) for token, bias in BIAS}
            after[beginning] = {token: weight / sum(weights.values()) for token, weight in weights.items()}
    return {
        answer: math.prod(after[answer[:i]][token] for i, token in enumerate(answer))
        for answer in product(TOKENS, repeat=LENGTH)
    }


def sampled(script: Callable[[DraftContext], Draft]) -> tuple[Counter[Answer], float]:
    """Answers under drafts by `script`, one per seed, and the share of drafts that were accepted."""
    drive = engine(SpeculationPolicy(governor="off", draft_tokens=LENGTH, max_batch=BATCH))
    arming = drive.core.session.arming
    made = Scripted(script, Capabilities("mine", 8, (0.5,)))
    arming.registry = Registry().extended("mine", Entry(lambda target, resources: made))
    drive.core.session.change({"type": "mine"})
    answers: Counter[Answer] = Counter()
    for seed in range(0, NUM_ANSWERS, BATCH):
        batch = [
            drive.add(PROMPT, params(max_tokens=LENGTH, seed=seed + i, temperature=1.0, logit_bias=BIAS))
            for i in range(BATCH)
        ]
        drive.run()
        answers.update(tuple(answer.token_ids) for answer in batch)
    counts = drive.core.session.counts
    assert counts.drafted["mine"] >= 2 * NUM_ANSWERS, "every answer went through a window of two"
    return answers, counts.accepted["mine"] / counts.drafted["mine"]


def chi_square(answers: Mapping[Answer, int], probabilities: Mapping[Answer, float]) -> tuple[float, float]:
    """The statistic, and what it exceeds in one of ten thousand cases. Rare answers (under 5 expected) count as one."""
    total = sum(answers.values())
    cells: dict[Answer, tuple[float, float]] = {}
    for answer, probability in probabilities.items():
        key = answer if total * probability >= 5 else ()
        seen, wanted = cells.get(key, (0.0, 0.0))
        cells[key] = (seen + answers.get(answer, 0), wanted + total * probability)
    statistic = sum((seen - wanted) ** 2 / wanted for seen, wanted in cells.values())
    freedom = len(cells) - 1
    spread = 2 / (9 * freedom)  # Wilson and Hilferty: the cube root is nearly normal
    return statistic, freedom * (1 - spread + 3.72 * math.sqrt(spread)) ** 3


def constant(context: DraftContext) -> Draft:
    return Draft([41] * min(2, context.max_tokens), [0] * 2)


def arbitrary(context: DraftContext) -> Draft:
    pick = random.Random(f"{context.state} {context.position}")
    return Draft(pick.choices(TOKENS, k=min(2, context.max_tokens)), [0] * 2)


def impossible(context: DraftContext) -> Draft:
    return Draft([3] * min(2, context.max_tokens), [0] * 2)


@pytest.mark.parametrize(
    ("script", "least", "most"), [(constant, 0.2, 0.8), (arbitrary, 0.1, 0.5), (impossible, 0.0, 0.0)]
)
def test_answers_are_distributed_as_the_model_says(
    script: Callable[[DraftContext], Draft], least: float, most: float
) -> None:
    answers, rate = sampled(script)
    assert set(answers) <= set(expected()), "a token that has no chance was drawn"
    assert least <= rate <= most
    statistic, limit = chi_square(answers, expected())
    assert statistic < limit


def test_the_chi_square_sees_a_favoured_draft() -> None:
    """A loop that kept one wrong draft in twenty would be caught."""
    pick = random.Random(1)
    answers = pick.choices(list(expected()), weights=list(expected().values()), k=NUM_ANSWERS)
    fair, limit = chi_square(Counter(answers), expected())
    favoured = Counter((a[0], 41, *a[2:]) if pick.random() < 0.05 else a for a in answers)
    unfair, _ = chi_square(favoured, expected())
    assert fair < limit < unfair, (fair, limit, unfair)
