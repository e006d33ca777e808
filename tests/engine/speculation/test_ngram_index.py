"""The n-gram index: the native one against its twin, drafts against the text itself, and what it costs."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from surefoot.engine.speculation import ngram_index
from surefoot.engine.speculation.ngram_index import (
    AGREES,
    ALONE,
    DISAGREES,
    MAX_ORDER,
    RESUMES,
    NgramIndex,
    first_grade,
    later_grade,
    resumed_grade,
)

native = pytest.importorskip("surefoot.kernels.cpu._ops", reason="the native kernels are not built")
INDEXES: list[Callable[[int], Any]] = [NgramIndex, native.NgramIndex]
either = pytest.mark.parametrize("index_type", INDEXES, ids=["python", "native"])


def filled(index_type: Callable[[int], Any], ids: list[int], capacity: int | None = None) -> Any:
    index = index_type(capacity or len(ids) + 100)
    index.advance(ids, 0, len(ids))
    return index


Operation = tuple[str, int]
OPERATIONS = st.lists(
    st.tuples(st.sampled_from(["extend", "advance", "follow", "truncate", "draft", "restart"]), st.integers(0, 70))
)


@settings(max_examples=150, deadline=None)
@given(st.integers(1, 6), st.integers(1, 400), OPERATIONS, st.randoms(use_true_random=False))
def test_native_index_is_its_twin(vocabulary: int, capacity: int, operations: list[Operation], random: Any) -> None:
    python, fast = NgramIndex(capacity), native.NgramIndex(capacity)
    ids: list[int] = []
    for operation, number in operations:
        if operation == "truncate":
            ids = ids[: max(0, len(ids) - number)]
            python.truncate(len(ids))
            fast.truncate(len(ids))
        elif operation == "restart":
            ids = []
            capacity = 1 + number * fast.room // 71
            python.restart(capacity)
            fast.restart(capacity)
        elif operation == "draft":
            assert fast.draft(number) == python.draft(number)
            assert fast.take_scores() == python.take_scores()
        elif operation == "follow":
            ids += [random.randrange(vocabulary)][: capacity - len(ids)]
            if len(ids) > len(fast):
                assert fast.follow(ids, len(fast)) == python.follow(ids, len(python))
        else:
            new = [random.randrange(vocabulary) for _ in range(min(number, capacity - len(ids)))]
            ids += new
            for index in (python, fast):
                getattr(index, operation)(ids, len(ids) - len(new), len(ids))
        assert len(python) == len(fast) == len(ids)
    assert fast.num_bytes == python.num_bytes


@either
@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 3), max_size=120), st.integers(0, 64))
def test_a_draft_continues_a_verified_match(index_type: Callable[[int], Any], ids: list[int], limit: int) -> None:
    draft, length, vote = filled(index_type, ids).draft(limit)
    if not length:
        assert vote == RESUMES or (draft == [] and vote == ALONE)
        assert not any(ids[i : i + 2] == ids[-2:] for i in range(len(ids) - 2)), "a match of two was missed"
        return
    tail = ids[-length:]
    ends = [end for end in range(length, len(ids)) if ids[end - length : end] == tail]
    text = [(ids + draft)[end : end + len(draft)] for end in ends]
    assert draft in text, "the draft does not follow any occurrence of the match"
    assert len(draft) == limit


@either
def test_the_longest_match_wins_and_the_latest_of_equals(index_type: Callable[[int], Any]) -> None:
    #      long match of 4, then two of 2
    ids = [1, 2, 3, 4, 50, 9, 3, 4, 60, 9, 9, 3, 4, 70, 1, 2, 3, 4]
    assert filled(index_type, ids).draft(1) == ([50], 4, ALONE)
    ids = [8, 3, 4, 60, 9, 3, 4, 70, 2, 3, 4]
    assert filled(index_type, ids).draft(1)[0] == [70]


@either
@pytest.mark.parametrize("period", [[7], [1, 2], [5, 5, 6], list(range(40))])
def test_periodic_text_drafts_past_its_own_end(index_type: Callable[[int], Any], period: list[int]) -> None:
    ids = (period * 80)[: 3 * len(period) + 8]
    draft, length, _ = filled(index_type, ids).draft(64)
    assert draft == [period[(len(ids) + j) % len(period)] for j in range(64)]
    assert length >= 8


@either
def test_the_occurrence_before_votes(index_type: Callable[[int], Any]) -> None:
    assert filled(index_type, [1, 2, 7, 1, 2]).draft(1)[2] == ALONE
    assert filled(index_type, [1, 2, 7, 0, 1, 2, 7, 9, 1, 2]).draft(1)[2] == AGREES
    assert filled(index_type, [1, 2, 6, 0, 1, 2, 7, 9, 1, 2]).draft(1)[2] == DISAGREES


@either
def test_each_token_scores_the_draft_before_it_and_nothing_later(index_type: Callable[[int], Any]) -> None:
    index = index_type(100)
    ids = [1, 2, 3, 9, 1, 2, 3, 5]
    index.advance(ids, 0, 6)
    assert index.take_scores() == []
    index.advance(ids, 6, 7)  # after "1 2" came 3, and it comes again
    assert index.take_scores() == [(first_grade(2, ALONE), 1, 1), (later_grade(2), 1, 1)]
    index.advance(ids, 7, 8)  # after "1 2 3" came 9, but now 5
    assert index.take_scores() == [(first_grade(3, ALONE), 1, 0), (later_grade(3), 1, 0)]


@either
def test_truncation_is_as_if_it_had_never_been(index_type: Callable[[int], Any]) -> None:
    ids = [1, 2, 3, 1, 2, 4, 1, 2, 3, 3, 3, 1, 2]
    index = filled(index_type, ids)
    index.truncate(5)
    assert index.draft(3) == filled(index_type, ids[:5]).draft(3) == ([3, 1, 2], 2, ALONE)
    index.truncate(0)
    assert len(index) == 0 and index.draft(5) == ([], 0, ALONE)


@either
def test_it_starts_again_as_if_new_any_number_of_times(index_type: Callable[[int], Any]) -> None:
    index = index_type(600)
    for number in range(300):  # more often than a mark has values
        ids = [(i * number) % 7 for i in range(20)]
        index.restart(100 + number)
        assert len(index) == 0 and index.capacity == 100 + number and index.room == 600
        index.advance(ids, 0, len(ids))
        fresh = filled(index_type, ids, 100 + number)
        assert index.draft(9) == fresh.draft(9) and index.take_scores() == fresh.take_scores()
    with pytest.raises(ValueError, match="no room"):
        index.restart(601)


@either
def test_limits_are_errors(index_type: Callable[[int], Any]) -> None:
    index = index_type(2)
    index.extend([1, 2], 0, 2)
    with pytest.raises(ValueError, match="does not follow"):
        index.follow([1, 2, 3, 4], 3)
    with pytest.raises(ValueError, match="full"):
        index.extend([3], 0, 1)
    with pytest.raises(ValueError, match="truncate"):
        index.truncate(3)
    with pytest.raises(IndexError):
        index.extend([1], 0, 2)
    for capacity in (0, -1, (1 << 24) + 1):
        with pytest.raises(ValueError, match="capacity"):
            index_type(capacity)
    assert index.draft(-3) == ([], 0, ALONE)


def test_grades_cover_all_lengths() -> None:
    assert [ngram_index.length_grade(n) for n in (2, 3, 5, 6, 7, 8, 39, 40, 64)] == [0, 1, 3, 4, 4, 5, 8, 9, 9]
    grades = {first_grade(n, v) for n in range(2, 65) for v in range(3)} | {later_grade(n) for n in range(2, 65)}
    grades |= {resumed_grade(n) for n in range(MAX_ORDER)}
    assert grades == set(range(ngram_index.NUM_GRADES))


@either
@pytest.mark.parametrize(
    ("copied", "distance"),
    [([50], 0), ([50, 51], 0), ([50, 14], 1), ([50, 51, 14], 2), ([15], -1)],
    ids=["changed", "two changed", "inserted", "two inserted", "left out"],
)
def test_a_broken_copy_resumes_where_it_left_its_source(
    index_type: Callable[[int], Any], copied: list[int], distance: int
) -> None:
    """10 ... 30 is copied up to 13; where 14 should follow, something else does."""
    source = list(range(10, 31))
    index = filled(index_type, [*source, 7, *source[:4], *copied])
    changed = len(copied) - max(0, distance)
    following = [*source, 7][4 + (changed if distance <= 0 else 1) - min(0, distance) :][:5]
    if distance <= 0 and copied[-1] >= 50:  # nothing agrees yet: one changed token is expected, two are not
        assert index.draft(5) == ((following, 0, RESUMES) if len(copied) == 1 else ([], 0, ALONE))
        index.advance([following[0]], 0, 1)
        following = following[1:]
    draft, length, vote = index.draft(5)
    assert draft[: len(following)] == following and length == 1 and vote == RESUMES


@either
def test_a_copy_is_expected_to_resume_as_the_last_one_did(index_type: Callable[[int], Any]) -> None:
    source = list(range(10, 40))
    text = [*source, 7, *source[:5], 99, *source[5:10]]  # a token was inserted
    index = filled(index_type, [*text, 99])
    assert index.draft(3) == ([20, 21, 22], 0, RESUMES)
    index.take_scores()
    index.advance([20], 0, 1)
    assert index.take_scores() == [(resumed_grade(0), 1, 1)]
    assert index.draft(3) == ([21, 22, 23], 1, RESUMES)


@either
def test_a_long_match_elsewhere_beats_a_resumed_copy(index_type: Callable[[int], Any]) -> None:
    source = list(range(10, 40))
    text = [*source, 7, 50, 51, 15, 88, 89, *source[:4], 50, 51, 15]
    assert filled(index_type, text).draft(2) == ([88, 89], 3, ALONE)


@either
def test_after_a_while_a_copy_does_not_resume(index_type: Callable[[int], Any]) -> None:
    source = list(range(10, 60))
    other = list(range(100, 100 + ngram_index.PATIENCE + 1))
    index = filled(index_type, [*source, 7, *source[:5], *other, source[10]])
    assert index.draft(3) == ([], 0, ALONE)


def test_a_hundred_thousand_tokens_are_seeded_in_20_ms_and_24_mib() -> None:
    ids = [(i * i * 2654435761 >> 7) % 30_000 for i in range(100_000)]
    index = native.NgramIndex(131_072)
    best = float("inf")
    for _ in range(5):  # the best of five: the machine is shared
        index = native.NgramIndex(131_072)
        started = time.thread_time()
        index.extend(ids, 0, len(ids))
        best = min(best, time.thread_time() - started)
    assert best < 0.020
    assert index.num_bytes < 24 << 20


def test_a_step_costs_the_same_at_any_context() -> None:
    def microseconds(length: int) -> float:
        ids = [(i * i * 2654435761 >> 9) % 500 for i in range(length + 2000)]
        best = float("inf")
        for _ in range(5):
            index = native.NgramIndex(len(ids))
            index.extend(ids, 0, length)
            started = time.thread_time()
            for position in range(length, length + 2000):
                index.advance(ids, position, position + 1)
                index.draft(8)
            best = min(best, time.thread_time() - started)
        return best * 1e6 / 2000

    short, long = microseconds(1000), microseconds(200_000)
    assert long < 6 * short + 2, f"{short:.2f} us at 1,000 tokens, {long:.2f} us at 200,000"
