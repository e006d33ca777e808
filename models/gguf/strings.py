"""Arrays of length-prefixed strings, found and decoded without a Python step per string.

    head            text            head            text
    05 00 .. 00     h e l l o       02 00 .. 00     h i
    ^ heads[0]                      ^ heads[1]              ^ heads[2]: the end

A string's place follows only from the one before it, so the chain has to be walked. Nearly every head is one non-zero
byte and seven zeros, which text hardly ever contains: such places are found for a whole window at once, and a run of
them that chain up is taken at once. Whatever does not chain up is walked one by one, so the result is always exact.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

HEAD = 8  # bytes of a length prefix
_WINDOW = 1 << 20


class OutOfBoundsError(Exception):
    """String `index` of an array reaches beyond the data."""

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self.index = index


def find_strings(data: NDArray[np.uint8], start: int, count: int) -> NDArray[np.int64]:
    """Places of the heads of `count` strings from `start` on, and the place after the last: [count + 1] int64.

    Raises OutOfBoundsError when the data end early. The caller bounds `count` by the data's size.
    """
    heads = np.empty(count + 1, np.int64)
    filled, at = 0, start
    while filled < count:
        base = at
        window = data[base : base + _WINDOW]
        plain, run_ends = _plain_heads(window)
        while filled < count and at - base < window.size:
            heads[filled] = at
            first = int(np.searchsorted(plain, at - base))
            if first < plain.size and plain[first] == at - base:
                last = int(run_ends[np.searchsorted(run_ends, first)])
                taken = min(last - first + 1, count - filled)
                heads[filled : filled + taken] = plain[first : first + taken] + base
                filled += taken
            else:
                filled += 1
            at = _next_head(data, int(heads[filled - 1]), filled - 1)
        if window.size == 0:
            raise OutOfBoundsError(filled)
    heads[count] = at
    return heads


def _plain_heads(window: NDArray[np.uint8]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Places that look like the head of a string of 1 to 255 bytes, and the indices at which a chain of them ends."""
    zero = window == 0
    two = zero[:-1] & zero[1:]
    four = two[:-2] & two[2:]
    seven = four[:-3] & four[3:]  # [p]: zero from p to p + 6
    plain = np.flatnonzero(seven[1:] & ~zero[: max(seven.size - 1, 0)]).astype(np.int64)
    chains = plain[:-1] + HEAD + window[plain[:-1]] == plain[1:]
    run_ends = np.append(np.flatnonzero(~chains), plain.size - 1).astype(np.int64)
    return plain, run_ends


def _next_head(data: NDArray[np.uint8], head: int, index: int) -> int:
    prefix = data[head : head + HEAD].tobytes()
    after = head + HEAD + int.from_bytes(prefix, "little")
    if len(prefix) < HEAD or after > data.size:
        raise OutOfBoundsError(index)
    return after


class StringArray:
    """Strings of a mapped file, decoded only when asked for."""

    def __init__(self, data: NDArray[np.uint8], heads: NDArray[np.int64]) -> None:
        self._data = data
        self._heads = heads  # [count + 1] int64

    def __len__(self) -> int:
        return self._heads.size - 1

    def decode(self) -> list[str]:
        """All strings. Raises UnicodeDecodeError, with the index of the string as its `start`, for invalid UTF-8."""
        if len(self) == 0:
            return []
        origin = self._heads[0]
        text = self._data[origin : self._heads[-1]].copy()  # heads are blanked to eight NULs: separators
        heads = self._heads[:-1] - origin
        lengths = np.diff(self._heads) - HEAD
        if int(lengths.max()) < 256:
            text[heads] = 0
        else:
            text[(heads[:, None] + np.arange(HEAD)).ravel()] = 0
        if np.count_nonzero(text) != int(lengths.sum()):
            return [self._decode_one(i) for i in range(len(self))]  # a string holds a NUL of its own
        try:
            return text.tobytes().decode("utf-8").split("\0" * HEAD)[1:]
        except UnicodeDecodeError as error:
            index = int(np.searchsorted(heads, error.start, side="right")) - 1
            raise UnicodeDecodeError("utf-8", b"\0", index, index + 1, error.reason) from None

    def _decode_one(self, index: int) -> str:
        raw = self._data[self._heads[index] + HEAD : self._heads[index + 1]].tobytes()
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise UnicodeDecodeError("utf-8", b"\0", index, index + 1, error.reason) from None
