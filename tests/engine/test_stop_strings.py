"""Stop strings against a direct search of the whole text, for every way of cutting it."""

from __future__ import annotations

import time

from hypothesis import given
from hypothesis import strategies as st

from surefoot.engine.stop_strings import StopMatch, StopStrings

letters = st.text("abc", max_size=30)
stop_lists = st.lists(st.text("abc", min_size=1, max_size=5), max_size=4)


def first_complete(text: str, stops: list[str]) -> StopMatch | None:
    ends = [(text.find(stop) + len(stop), -len(stop), stop) for stop in stops if stop in text]
    if not ends:
        return None
    end, _, stop = min(ends)
    return StopMatch(end - len(stop), stop)


@given(st.lists(letters, max_size=8), stop_lists)
def test_any_cut_gives_the_text_before_the_first_complete_stop(pieces: list[str], stops: list[str]) -> None:
    text = "".join(pieces)
    watch = StopStrings(stops)
    given_out = "".join(map(watch.feed, pieces)) + watch.flush()
    assert watch.match == first_complete(text, stops)
    assert given_out == (text if watch.match is None else text[: watch.match.begin])


@given(letters, stop_lists)
def test_holds_back_exactly_what_could_become_a_stop(text: str, stops: list[str]) -> None:
    watch = StopStrings(stops)
    watch.feed(text)
    if watch.match is None:
        beginnings = {stop[:n] for stop in stops for n in range(1, len(stop))}
        assert watch.num_held == max((n for n in range(1, len(text) + 1) if text[-n:] in beginnings), default=0)


def test_stop_across_pieces() -> None:
    watch = StopStrings(["DEFGHIJ"])
    assert [watch.feed(piece) for piece in ("ABC", "DE", "FGH", "IJKL")] == ["ABC", "", "", ""]
    assert watch.match == StopMatch(3, "DEFGHIJ")
    assert watch.feed("more") == watch.flush() == ""


def test_of_stops_complete_at_the_same_character_the_longest_counts() -> None:
    watch = StopStrings(["c", "bc", "abc"])
    assert watch.feed("xabc") == "x"
    assert watch.match == StopMatch(1, "abc")


def test_the_first_complete_stop_wins_over_one_that_begins_earlier() -> None:
    for pieces in (["xabc"], ["x", "a", "b", "c"]):
        watch = StopStrings(["abc", "b"])
        assert "".join(map(watch.feed, pieces)) == "xa"
        assert watch.match == StopMatch(2, "b")


def test_a_false_start_is_given_out_at_once() -> None:
    watch = StopStrings(["aab"])
    assert watch.feed("aa") == ""
    assert watch.feed("a") == "a"
    assert watch.feed("c") == "aac"


def test_work_is_linear_in_the_text() -> None:
    watch = StopStrings(["a" * 500 + "b", "a" * 400 + "c"])
    start = time.process_time()
    for _ in range(200_000):
        watch.feed("a")
    assert time.process_time() - start < 3.0
    assert watch.num_held == 500
