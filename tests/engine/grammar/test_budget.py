"""A budget of reasoning tokens: counted along drafts, alone and around another grammar."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from engine_drive import Drive, params
from fake_backend import VOCAB, FakeBackend, FakeModel
from grammar_cases import END, PieceTokenizer
from hypothesis import given
from hypothesis import strategies as st

from surefoot.engine.grammar.budget import ReasoningBudget
from surefoot.engine.grammar.compiler import Grammars
from surefoot.engine.grammar.constraint import Constraint
from surefoot.engine.grammar.matcher import Grammar, Matcher

OPEN, CLOSE, LINE, WORD = 10, 11, 12, 13
WORDS = 10  # of a mask


def budget(tokens: int, opener: int | None = None, inner: Grammar | None = None) -> ReasoningBudget:
    return ReasoningBudget(tokens, opener, CLOSE, (LINE, CLOSE), WORDS, inner)


def allowed(row: np.ndarray) -> list[int]:
    return [token for token in range(32 * len(row)) if row[token // 32] >> (token % 32) & 1]


def only(matcher: Matcher, drafts: Sequence[int] = ()) -> list[int | None]:
    """Per row the only token that is allowed, or None for free choice."""
    rows = [allowed(row) for row in matcher.masks_for(drafts)]
    return [row[0] if len(row) == 1 else None for row in rows]


def test_an_opened_reasoning_ends_when_its_tokens_are_spent() -> None:
    matcher = budget(2).start()
    assert only(matcher) == [None]
    assert only(matcher, [WORD, WORD, LINE, CLOSE, WORD]) == [None, None, LINE, CLOSE, None, None]
    assert only(matcher, [WORD, WORD, WORD, WORD]) == [None, None, LINE]  # a forbidden draft ends the window
    matcher.commit([WORD, WORD])
    assert (matcher.forced_drafts(5), matcher.forced_drafts(1)) == ([LINE, CLOSE], [LINE])
    matcher.commit([LINE])
    assert matcher.forced_drafts(5) == [CLOSE]
    matcher.commit([CLOSE, WORD])
    assert matcher.forced_drafts(5) == []
    assert only(matcher, [WORD] * 9) == [None] * 10
    assert not matcher.complete


def test_a_reasoning_that_ends_by_itself_is_left_alone() -> None:
    matcher = budget(2).start()
    matcher.commit([WORD, CLOSE])
    assert only(matcher, [WORD] * 5) == [None] * 6


def test_no_tokens_at_all() -> None:
    assert only(budget(0).start()) == [LINE]
    matcher = budget(0, OPEN).start()
    assert only(matcher, [OPEN, LINE]) == [None, LINE, CLOSE]


def test_a_reasoning_that_never_begins_is_not_counted() -> None:
    matcher = budget(1, OPEN).start()
    assert only(matcher, [WORD, OPEN, WORD, LINE]) == [None, None, None, LINE, CLOSE]
    assert only(matcher, [WORD, WORD, OPEN, WORD, WORD]) == [None] * 6


@given(st.lists(st.sampled_from([OPEN, CLOSE, LINE, WORD]), max_size=12), st.integers(0, 4), st.booleans())
def test_rows_are_what_single_steps_give(tokens: list[int], limit: int, opened: bool) -> None:
    made = budget(limit, None if opened else OPEN)
    whole = made.start().masks_for(tokens)
    matcher = made.start()
    for count in range(len(tokens) + 1):
        behind = matcher.mask_after(tokens[:count])
        assert (behind == whole[count]).all() if count < len(whole) else behind is None
    for row, token in zip(whole, tokens, strict=False):
        (single,) = matcher.masks_for()
        assert (single == row).all()
        matcher.commit([token])


def model() -> FakeModel:
    return FakeModel((None, 40), ends=frozenset({VOCAB - 1}))


@pytest.mark.parametrize("opened", [True, False])
def test_in_the_engine(opened: bool) -> None:
    """A model that never closes its reasoning is stopped; until then it writes what it would have written."""
    engine, prompt = Drive(model(), FakeBackend()), list(range(20))
    never = {"max_tokens": 24, "temperature": 1.0, "ignore_eos": True, "logit_bias": ((CLOSE, -1e9),)}
    free = engine.one(prompt, params(**never)).token_ids
    made = ReasoningBudget(6, None if opened else free[0], CLOSE, (LINE, CLOSE), -(-VOCAB // 32))
    limited = engine.one(prompt, params(grammar=made, **{**never, "logit_bias": ()})).token_ids
    length = 6 if opened else 7
    assert CLOSE not in free
    assert limited[:length] == free[:length]
    assert limited[length : length + 2] == [LINE, CLOSE]
    assert len(limited) == 24


@pytest.fixture(scope="module")
def grammars() -> Iterator[Grammars]:
    tokenizer = PieceTokenizer()
    made = Grammars(tokenizer, tokenizer.vocab_size)
    yield made
    made.close()


def test_around_another_grammar(grammars: Grammars) -> None:
    tokenizer = PieceTokenizer()
    (close,) = (token for token in range(tokenizer.vocab_size) if tokenizer.token_bytes(token) == b"</think>")
    (line,) = (token for token in range(tokenizer.vocab_size) if tokenizer.token_bytes(token) == b"\n")
    text = 'start: thought "yes"\nthought[suffix="</think>"]: /(?s:.*)/'
    inner = grammars.compile(Constraint.lark(text, "x")).result(20)
    made = ReasoningBudget(2, None, close, (line, close), -(-tokenizer.vocab_size // 32), inner)
    assert made.constraint is inner.constraint
    matcher = made.start()
    word = next(token for token in range(tokenizer.vocab_size) if tokenizer.token_bytes(token) == b"hello")
    assert [len(allowed(row)) > 1 for row in matcher.masks_for([word, word])] == [True, True, False]
    matcher.commit([word, word])
    assert matcher.forced_drafts(8) == [line, close]
    after = matcher.mask_after([line])
    assert after is not None and allowed(after) == [close]
    matcher.commit([line, close])
    yes = tokenizer.encode_inside("yes")
    assert matcher.forced_drafts(8)[: len(yes)] == yes
    matcher.commit(yes)
    assert matcher.complete or allowed(matcher.masks_for()[0]) == [END]
