"""Reasoning apart from the answer: formats, quotes of markers, and any split into pieces."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tool_texts import Message

from surefoot.server.reasoning.formats import Begin, ReasoningFormat, begin_of, begin_within, detect
from surefoot.server.reasoning.parser import ReasoningParser


def known(template: str) -> ReasoningFormat:
    found = detect(template)
    assert found is not None
    return found


THINK = known("{{ '<think>' }}{{ '</think>' }}")
GEMMA = known("{{- '<|channel>thought\\n<channel|>' -}}")
MISTRAL = known("[THINK]...[/THINK]")


def parsed(pieces: list[str], begin: Begin = Begin.ANEW, made: ReasoningFormat = THINK) -> tuple[str, str]:
    reader, message = ReasoningParser(made, begin), Message()
    for piece in pieces:
        message.add(reader.feed(piece))
    message.add(reader.end())
    return message.reasoning, message.content


def both(text: str, begin: Begin = Begin.ANEW, made: ReasoningFormat = THINK) -> tuple[str, str]:
    whole = parsed([text], begin, made)
    assert parsed(list(text), begin, made) == whole
    return whole


@pytest.mark.parametrize(
    ("text", "reasoning", "content"),
    [
        ("<think>\nWell.\n</think>\n\nFour.", "Well.", "Four."),
        ("<think>Well.</think>Four. ", "Well.", "Four. "),
        ("\n<think>\n\n</think>\n\nFour.", "", "Four."),
        ("<think></think>", "", ""),
        ("<think>\nNever ends \n", "Never ends", ""),
        ("<think>a < b </thin", "a < b </thin", ""),
        ("Four.", "", "Four."),
        (" \n Four.", "", " \n Four."),
        ("So <think> is a tag</think>.", "", "So <think> is a tag</think>."),
        ("<thin", "", "<thin"),
        ("", "", ""),
        ("<think>x</think>y<think>z</think>", "x", "y<think>z</think>"),
    ],
)
def test_think(text: str, reasoning: str, content: str) -> None:
    assert both(text) == (reasoning, content)


def test_an_opened_block_needs_no_opener() -> None:
    assert both("Well.\n</think>\n\nFour.", Begin.INSIDE) == ("Well.", "Four.")
    assert both("<think>\nWell.\n</think>\n\nFour.", Begin.INSIDE) == ("Well.", "Four.")
    assert both("cut off", Begin.INSIDE) == ("cut off", "")


def test_a_closed_block_leaves_only_the_answer() -> None:
    assert both("\n\nFour.", Begin.CLOSED) == ("", "Four.")
    assert both(" more <think>", Begin.AFTER) == ("", " more <think>")


@pytest.mark.parametrize(
    "quote",
    [
        'The marker "</think>" ends it.',
        "The marker '</think>' ends it.",
        "I write `</think>` at the end.",
        "Use **</think>** here.",
        "\u201c</think>\u201d it is.",
        "The </think> tag ends the reasoning.",
        "It ends with </think>.",
        "First </think>, then the answer.",
        'Twice: "</think>" and `</think>`',
    ],
)
def test_a_quoted_end_marker_ends_nothing(quote: str) -> None:
    assert both(f"<think>\n{quote} So.\n</think>\n\nYes, {quote}") == (f"{quote} So.", f"Yes, {quote}")


@pytest.mark.parametrize(
    "end", ["so.</think>The", "so.\n</think>\nthe", "so. </think> the", "so</think> the", 'so "x"</think>"y"']
)
def test_an_end_marker_that_is_not_quoted_ends_it(end: str) -> None:
    head, _, tail = end.partition("</think>")
    assert both(f"<think>{end}") == (head.strip(), tail.lstrip())


def test_other_formats() -> None:
    assert both("<|channel>thought\nWell.\n<channel|>Four.", made=GEMMA) == ("Well.", "Four.")
    assert both("[THINK]Well.[/THINK]Four.", made=MISTRAL) == ("Well.", "Four.")


def test_detection() -> None:
    assert detect("{{ message.content }}") is None
    assert detect("content.split('</think>')") is None
    assert detect("content.split('</think>') + '<think>'") is THINK


def test_where_an_answer_begins() -> None:
    assert begin_of("<|im_start|>assistant\n<think>\n", THINK) is Begin.INSIDE
    assert begin_of("user: what does <think> do?\nassistant:", THINK) is Begin.ANEW
    assert begin_of("assistant\n<think>\n\n</think>\n\n", THINK) is Begin.CLOSED
    assert begin_of("<|turn>model\n<|channel>thought\n<channel|>", GEMMA) is Begin.CLOSED
    assert begin_within("<think>so far", THINK) is Begin.INSIDE
    assert begin_within("<think>a</think>so far", THINK) is Begin.AFTER
    assert begin_within("so far", THINK) is Begin.AFTER


SCRAPS = ["<think>", "</think>", "\n", " ", "a", "A", ".", ",", '"', "`", "word", "<", "</", "think>", "é"]


@given(st.lists(st.sampled_from(SCRAPS), max_size=20), st.sampled_from(Begin), st.lists(st.integers(0, 60), max_size=5))
def test_any_pieces(scraps: list[str], begin: Begin, cuts: list[int]) -> None:
    text = "".join(scraps)
    whole = both(text, begin)
    places = sorted(min(cut, len(text)) for cut in cuts)
    pieces = [text[start:end] for start, end in zip([0, *places], [*places, len(text)], strict=True)]
    assert parsed(pieces, begin) == whole
    squeezed = "".join("".join(whole).split())
    assert squeezed in ("".join(text.split()), *(_without(text, begin)))


def _without(text: str, begin: Begin) -> list[str]:
    """The text with the markers taken away that may be markers: the opener at its start, one end marker."""
    body = "".join(text.split())
    opened = body.removeprefix("<think>") if begin in (Begin.ANEW, Begin.INSIDE) else body
    parts = opened.split("</think>")
    return [opened, *("</think>".join(parts[:at]) + "</think>".join(parts[at:]) for at in range(1, len(parts)))]
