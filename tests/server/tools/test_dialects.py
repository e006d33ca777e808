"""Every dialect: what its texts mean, in one piece, by character and cut anywhere."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tool_texts import (
    FULL,
    FULL_ARGUMENTS,
    NOW_CALL,
    PARIS,
    SAVE_CALL,
    UNMARKED,
    WRITERS,
    Message,
    parsed,
)

from surefoot.server.tools.registry import NAMES

ALL = sorted(WRITERS)
MARKED = [name for name in ALL if name not in UNMARKED]


def same_in_any_pieces(dialect: str, text: str, **options: Any) -> Message:
    """The message of a text, after checking that pieces of other sizes give the same."""
    whole = parsed(dialect, [text], **options)
    assert parsed(dialect, list(text), **options) == whole
    dice = random.Random(len(text))
    for size in (2, 3, 7, 40):
        cuts = sorted(dice.randrange(len(text) + 1) for _ in range(len(text) // size + 1))
        pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
        assert parsed(dialect, pieces, **options) == whole
    return whole


def test_every_dialect_has_texts() -> None:
    assert sorted(NAMES) == ALL


@pytest.mark.parametrize("dialect", ALL)
@pytest.mark.parametrize("calls", [[PARIS], [FULL], [NOW_CALL], [SAVE_CALL], [PARIS, NOW_CALL, FULL], [PARIS, PARIS]])
def test_calls_alone(dialect: str, calls: list[tuple[str, dict[str, Any]]]) -> None:
    message = same_in_any_pieces(dialect, WRITERS[dialect](*calls))
    assert message.meaning() == calls
    assert message.content == ""
    assert [call[0] for call in message.calls] == [f"id{index}" for index in range(len(calls))]


@pytest.mark.parametrize("dialect", MARKED)
def test_text_around_calls(dialect: str) -> None:
    text = "Let me look.\n\n" + WRITERS[dialect](PARIS) + "\n"
    message = same_in_any_pieces(dialect, text)
    assert (message.content, message.meaning()) == ("Let me look.", [PARIS])
    message = same_in_any_pieces(dialect, text + "Done. \n")
    assert (message.content, message.meaning()) == ("Let me look.\nDone. \n", [PARIS])


@pytest.mark.parametrize("dialect", ALL)
@pytest.mark.parametrize(
    "text", ["", "Hello.", " \n", "\n a < b {x} [y] \n", "[1, 2]", '{"a": 1}', "```json\n{}\n```", "<", "<tool"]
)
def test_text_without_calls_is_content(dialect: str, text: str) -> None:
    message = same_in_any_pieces(dialect, text)
    assert (message.content, message.calls) == (text, [])


@pytest.mark.parametrize("dialect", ALL)
def test_calls_cut_short_come_back_as_text(dialect: str) -> None:
    """Cut anywhere, a short call is either a call or its own text; nothing is lost or doubled."""
    text = WRITERS[dialect](PARIS)
    for length in range(len(text)):
        message = parsed(dialect, list(text[:length]))
        assert parsed(dialect, [text[:length]]) == message
        if message.calls:
            assert message.meaning() == [PARIS]
            assert text[:length].endswith(message.content)
        else:
            assert message.content == text[:length]


@pytest.mark.parametrize("dialect", MARKED)
def test_marker_and_then_prose(dialect: str) -> None:
    for start in range(1, 30):
        text = WRITERS[dialect](PARIS)[:start] + " is how a call begins, they say.\nOr so."
        message = same_in_any_pieces(dialect, text)
        assert (message.content, message.calls) == (text, [])


@pytest.mark.parametrize("dialect", MARKED)
def test_a_call_after_a_broken_one_is_found(dialect: str) -> None:
    writer = WRITERS[dialect]
    broken = writer(PARIS)[:14] + "... no:\n"
    message = same_in_any_pieces(dialect, broken + writer(NOW_CALL))
    assert message.meaning() == [NOW_CALL]
    assert message.content == broken.rstrip()


@pytest.mark.parametrize("dialect", ALL)
def test_long_arguments_stream(dialect: str) -> None:
    call = ("save", {"path": "p", "text": "line\n" * 500})
    text = WRITERS[dialect](call)
    assert same_in_any_pieces(dialect, text).meaning() == [call]
    message = parsed(dialect, [text[: len(text) // 2]])
    assert message.content == ""
    assert message.calls[0][1] == "save"
    assert not message.calls[0][3]
    assert json.loads(message.calls[0][2] + '"}')["text"].startswith("line\n" * 100)


@pytest.mark.parametrize("dialect", ALL)
def test_one_call_where_parallel_ones_are_not_wanted(dialect: str) -> None:
    text = WRITERS[dialect](PARIS, NOW_CALL) + "\nrest"
    message = same_in_any_pieces(dialect, text, parallel=False)
    assert (message.meaning(), message.content) == ([PARIS], "")


@pytest.mark.parametrize("dialect", UNMARKED)
def test_unmarked_calls_name_known_tools_and_begin_the_answer(dialect: str) -> None:
    unknown = WRITERS[dialect](("nope", {"a": 1}))
    assert same_in_any_pieces(dialect, unknown).content == unknown
    later = "See: " + WRITERS[dialect](PARIS)
    assert same_in_any_pieces(dialect, later).content == later
    assert same_in_any_pieces(dialect, "\n " + WRITERS[dialect](PARIS)).meaning() == [PARIS]


@pytest.mark.parametrize("dialect", MARKED)
def test_marked_calls_may_name_tools_that_nobody_has(dialect: str) -> None:
    call = ("nope", {"a": 1, "b": "two", "c": [True, None], "d": {"e": 0.25}})
    assert same_in_any_pieces(dialect, WRITERS[dialect](call)).meaning() == [call]


VALUES = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(10**12), 10**12),
        st.floats(-1e6, 1e6, allow_nan=False).map(lambda number: round(number, 3) + 0.0),
        st.text(st.characters(exclude_categories=["Cs", "Cc"], exclude_characters='"|`<>', include_characters="\n\t")),
    ),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.from_regex("[a-z_]{1,8}", fullmatch=True), inner, max_size=3)
    ),
    max_leaves=8,
)
ARGUMENTS = st.fixed_dictionaries(
    {
        "city": st.text(st.characters(exclude_categories=["Cs", "Cc"], include_characters="\n\t")),
        "where": st.dictionaries(st.sampled_from(["lat", "lon", "x"]), VALUES, max_size=3),
        "tags": st.lists(VALUES, max_size=3),
    },
    optional={
        "days": st.integers(-(10**9), 10**9),
        "exact": st.booleans(),
        "factor": st.floats(-1e6, 1e6, allow_nan=False),
        "unit": st.sampled_from(["c", "f"]),
    },
)  # fmt: skip
FORBIDDEN = ("<|", "|>", "<escape>", "</arg_value>", "</parameter>", "｜")  # noqa: RUF001


@given(dialect=st.sampled_from(ALL), arguments=ARGUMENTS, cuts=st.lists(st.integers(0, 2000), max_size=12))
def test_any_arguments_in_any_pieces(dialect: str, arguments: dict[str, Any], cuts: list[int]) -> None:
    arguments = {key: value for key, value in arguments.items() if not any(bad in repr(value) for bad in FORBIDDEN)}
    call = ("get_weather", arguments)
    text = WRITERS[dialect](call, NOW_CALL)
    places = sorted(min(cut, len(text)) for cut in cuts)
    pieces = [text[start:end] for start, end in zip([0, *places], [*places, len(text)], strict=True)]
    message = parsed(dialect, pieces)
    assert message.meaning() == [call, NOW_CALL]
    assert message.content == ""


SCRAPS = [
    "<tool_call>", "</tool_call>", "\n", "{", "}", "[", "]", '"', "\\", ",", ":", '"name"', '"now"', '"arguments"',
    "now", "(", ")", "=", "'", "<function=", ">", "<parameter=", "</parameter>", "</function>", "<arg_key>",
    "</arg_key>",
    "<arg_value>", "</arg_value>", "[TOOL_CALLS]", "[ARGS]", "<|tool_call>", "call:", "<tool_call|>", '<|"|>', "text",
    "<TOOLCALL>", "</TOOLCALL>", "<|python_tag|>", "```json", "```", " ", "1", ";",
    "<\uff5ctool▁calls▁begin\uff5c>", "<\uff5ctool▁call▁begin\uff5c>", "<\uff5ctool▁sep\uff5c>",
    "<\uff5cDSML\uff5cfunction_calls>", '<\uff5cDSML\uff5cinvoke name="', '<\uff5cDSML\uff5cparameter name="',
    '" string="true">', "</\uff5cDSML\uff5cinvoke>",
]  # fmt: skip


@settings(max_examples=200)
@given(dialect=st.sampled_from(ALL), scraps=st.lists(st.sampled_from(SCRAPS), max_size=25), filler=st.integers(0, 400))
def test_garbage_means_the_same_in_any_pieces(dialect: str, scraps: list[str], filler: int) -> None:
    """Also past the length from which a call passes through before it is complete."""
    text = "".join(scrap if scrap != "text" else "x" * filler for scrap in scraps)
    whole = parsed(dialect, [text])
    assert parsed(dialect, list(text)) == whole
    assert parsed(dialect, scraps if filler == 4 else [text[: len(text) // 2], text[len(text) // 2 :]]) == whole
    if not whole.calls:
        assert whole.content == text


def test_full_arguments_are_a_fair_sample() -> None:
    assert {type(value) for value in FULL_ARGUMENTS.values()} == {str, int, bool, float, list, dict}
