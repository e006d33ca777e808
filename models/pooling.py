"""How a file says that one vector for a whole text is taken from the vectors of its tokens."""

from __future__ import annotations

from enum import Enum

from .gguf import Metadata


class Pooling(Enum):
    """Which of a text's hidden rows become its embedding."""

    NONE = "none"  # there is no embedding of a whole text
    MEAN = "mean"  # of all rows
    CLS = "cls"  # the first row
    LAST = "last"  # the last row


# `{architecture}.pooling_type`. Rank (4) scores pairs of texts with a head of its own: no embedding comes of it.
_STORED = (Pooling.NONE, Pooling.MEAN, Pooling.CLS, Pooling.LAST, Pooling.NONE)


def read_pooling(settings: Metadata) -> Pooling | None:
    """What the architecture's section of a file says; None if it says nothing. Raises ModelFileError."""
    if "pooling_type" not in settings:
        return None
    return _STORED[settings.int("pooling_type", low=0, high=len(_STORED) - 1)]
