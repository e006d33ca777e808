"""Words of users and tools that spell a control token stay words: nobody forges a turn by writing `<|im_end|>`.

A template writes its control tokens as text, and what it is given as text too, so the finished prompt does not tell
them apart. What is given is therefore marked before: a noncharacter of Unicode, which no text has, goes between the
characters of every control token's name in it, and is taken out again once the prompt is split at its control tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

from .specials import SpecialSplitter

_MARK = "\ufdd0"


def shielded(texts: Sequence[str], controls: SpecialSplitter) -> list[str]:
    """The texts with their control tokens marked, also where one begins in one text and ends in the next."""
    whole = "".join(texts)
    if _MARK in whole:
        texts = [text.replace(_MARK, "\ufffd") for text in texts]
    elif next(controls.matches(whole), None) is None:
        return list(texts)
    last = len(texts) - 1
    return [_marked(text, controls) + (_MARK if index < last else "") for index, text in enumerate(texts)]


def _marked(text: str, controls: SpecialSplitter) -> str:
    done, pieces = 0, list[str]()
    for start, end in controls.matches(text):
        pieces += text[done:start], _MARK.join(text[start:end])
        done = end
    return "".join([*pieces, text[done:]])


def unshielded(text: str) -> str:
    """A text without marks."""
    return text.replace(_MARK, "")
