"""The n-gram speculator: seeding, drafting, its confidence gate, commits, gaps."""

from __future__ import annotations

import logging

import pytest
from speculation_doubles import FakeSequence, FakeTarget

from surefoot.engine.speculation.contract import Committed, DraftContext
from surefoot.engine.speculation.ngram import (
    PYTHON_TOKENS_PER_SECOND,
    NgramSpeculator,
    State,
    create,
    required_match,
)
from surefoot.engine.speculation.ngram_index import ALONE, NgramIndex, first_grade, later_grade
from surefoot.engine.speculation.registry import Resources

TEXT = [1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3]


def speculator() -> NgramSpeculator:
    return NgramSpeculator(NgramIndex, PYTHON_TOKENS_PER_SECOND)


def context(state: State, max_tokens: int = 8, min_confidence: float = 0.0) -> DraftContext:
    tokens = state.request.tokens
    return DraftContext(state, tokens[-1], len(tokens) - 1, max_tokens, min_confidence, lambda position, grade: True)


def armed(tokens: list[int], **rest: int) -> tuple[NgramSpeculator, FakeSequence, State]:
    ngram, sequence = speculator(), FakeSequence(tokens, **rest)
    state = ngram.open(sequence)
    while ngram.lag(state):
        assert ngram.catch_up(state, 1.0) > 0
    return ngram, sequence, state


def commit(ngram: NgramSpeculator, sequence: FakeSequence, state: State, ids: list[int], start: int) -> None:
    kept = sequence.tokens[start : len(sequence.tokens) - 1]
    ngram.commit([Committed(state, start, kept, ids[-1])])


def test_it_drafts_what_followed() -> None:
    ngram, _, state = armed(TEXT)
    (draft,) = ngram.propose([context(state, 4)])
    assert draft.token_ids == [4, 5, 6, 7]
    assert list(draft.grades[:4]) == [first_grade(3, ALONE), later_grade(4), later_grade(5), later_grade(6)]


def test_many_requests_at_once_never_see_each_other() -> None:
    ngram = speculator()
    texts = [[1, 2, 3, 1, 2], [1, 2, 7, 1, 2], [1, 2]]
    states = [ngram.open(FakeSequence(text)) for text in texts]
    for state in states:
        ngram.catch_up(state, 1.0)
    drafts = ngram.propose([context(state, 1) for state in states])
    assert [draft.token_ids for draft in drafts] == [[3], [7], []]
    assert drafts[2].reason == "no match"


@pytest.mark.parametrize(
    ("confidence", "match"), [(0.0, 0), (0.01, 2), (0.25, 2), (0.26, 3), (0.5, 4), (0.75, 6), (1.0, 8)]
)
def test_confidence_is_a_match_length(confidence: float, match: int) -> None:
    assert required_match(confidence) == match
    for length in (max(1, match - 1), max(1, match)):
        prefix = list(range(10, 10 + length))
        ngram, _, state = armed([*prefix, 99, 0, *prefix])
        (draft,) = ngram.propose([context(state, 1, confidence)])
        assert draft.token_ids == ([99] if length >= max(2, match) else [])
        if not draft.token_ids and length >= 2:
            assert draft.reason == "match too short"


def test_seeding_goes_in_pieces_and_scores_only_the_end_of_the_prompt() -> None:
    ngram = NgramSpeculator(NgramIndex, 1000)
    tokens = [i % 50 for i in range(900)]
    state = ngram.open(FakeSequence(tokens))
    pieces: list[int] = []
    while ngram.lag(state):
        (draft,) = ngram.propose([context(state)])
        assert draft.reason == "history not read yet"
        pieces.append(ngram.catch_up(state, 0.1))
    assert pieces == [100] * 9
    scores = ngram.take_scores(state)
    assert sum(trials for _, trials, _ in scores.prompt) == 2 * 256  # by first and by later grade
    assert sum(trials for _, trials, _ in scores.output) == 2 * 1  # the first emitted token
    assert ngram.take_scores(state) == ([], [])


def test_commits_extend_the_history() -> None:
    ngram, sequence, state = armed(TEXT)
    start = sequence.emit([4, 5, 6])
    commit(ngram, sequence, state, [4, 5, 6], start)
    assert ngram.lag(state) == 0
    (draft,) = ngram.propose([context(state, 2)])
    assert draft.token_ids == [7, 8]
    assert sum(hits for _, _, hits in ngram.take_scores(state).output) >= 2 * 3


def test_steps_served_without_it_are_read_later() -> None:
    ngram, sequence, state = armed(TEXT)
    sequence.emit([4])
    sequence.emit([5])
    assert ngram.lag(state) == 2
    assert ngram.propose([context(state)])[0].token_ids == []
    assert ngram.catch_up(state, 1.0) == 2
    assert ngram.propose([context(state, 1)])[0].token_ids == [6]
    assert ngram.num_gap_errors == 0


@pytest.mark.parametrize("offset", [-1, 1])
def test_a_commit_elsewhere_is_counted_and_answered_by_reading_anew(
    offset: int, caplog: pytest.LogCaptureFixture
) -> None:
    ngram, sequence, state = armed(TEXT)
    start = sequence.emit([4]) + offset
    with caplog.at_level(logging.WARNING):
        commit(ngram, sequence, state, [4], start)
    assert ngram.num_gap_errors == 1
    assert "reading it anew" in caplog.text and "request" in caplog.text
    assert ngram.lag(state) == len(sequence.tokens)
    ngram.catch_up(state, 1.0)
    assert ngram.propose([context(state, 1)])[0].token_ids == [5]


def test_where_nothing_matches_it_follows_instead_of_being_asked() -> None:
    ngram, sequence, state = armed(TEXT)
    start = sequence.emit([20])
    assert ngram.foresees(state) is None
    commit(ngram, sequence, state, [20], start)
    foregone = ngram.foresees(state)
    assert foregone is not None and foregone.draft.reason == "no match" and foregone.follow is not None
    size = len(sequence.tokens)
    sequence.emit([1])
    assert foregone.follow(sequence.tokens, size) is False and ngram.lag(state) == 0
    with pytest.raises(ValueError, match="does not follow"):
        foregone.follow(sequence.tokens, size)
    sequence.emit([2])
    assert foregone.follow(sequence.tokens, size + 1) is True
    assert ngram.propose([context(state, 1)])[0].token_ids == [3]


def test_who_has_read_a_prompt_without_repetitions_knows_that_it_has_no_draft() -> None:
    ngram, _, state = armed([1, 2, 3, 4, 5, 6])
    assert ngram.foresees(state) is not None
    ngram, _, state = armed(TEXT)
    assert ngram.foresees(state) is None


def test_the_next_request_has_the_memory_of_one_that_has_ended_and_nothing_else_of_it() -> None:
    ngram, _, state = armed(TEXT, max_tokens=500)
    first = state.index
    ngram.close(state)
    state = ngram.open(FakeSequence([1, 2], max_tokens=400))
    assert state.index is first and ngram.lag(state) == 2
    ngram.catch_up(state, 1.0)
    assert ngram.propose([context(state)])[0].reason == "no match" and ngram.take_scores(state) == ([], [])
    bigger = ngram.open(FakeSequence(TEXT, max_tokens=5000))
    assert bigger.index is not first
    ngram.close(bigger)
    ngram.close(state)
    assert ngram.open(FakeSequence(TEXT)).index is bigger.index, "the larger one is kept"


def test_it_serves_every_target_on_the_native_index_where_there_is_one() -> None:
    made = create(FakeTarget(), Resources())
    assert made.capabilities.scores_itself and not made.capabilities.paid and made.capabilities.can_arm_after_gap
    native = pytest.importorskip("surefoot.kernels.cpu._ops")
    state = made.open(FakeSequence(TEXT))
    assert isinstance(state.index, native.NgramIndex)
