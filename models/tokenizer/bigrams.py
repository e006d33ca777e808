"""SentencePiece-style encoding: merge the best-scored neighbours until nothing merges.

The priority is the score of the token that a merge makes, ties go to the left. That order depends on places, so it
cannot be written as a list of pairwise merges, and it is done here instead of in the `tokenizers` library.
"""

from __future__ import annotations

import re
from array import array
from heapq import heappop, heappush

import numpy as np
from numpy.typing import NDArray

from .vocabulary import SPACE

_CACHED_WORD = 32  # characters; longer words rarely come again
_CACHE_SIZE = 1 << 15


class BigramEncoder:
    """Encodes plain text into token ids. Safe to call from several threads."""

    def __init__(
        self, ids: dict[str, int], scores: NDArray[np.float32], byte_ids: list[int] | None, unknown_id: int | None
    ) -> None:
        """`ids`: the tokens that merging may make; `scores` is indexed by token id; `byte_ids` has 256 entries."""
        self._ids = ids
        order = np.unique(-scores, return_inverse=True)[1].astype(np.int32)
        self._ranks = array("i", order.tobytes())  # lower merges first; equal scores share a rank
        self._byte_ids = byte_ids
        self._unknown = [] if unknown_id is None else [unknown_id]
        self._words = re.compile(_word_border(ids))
        self._cache: dict[str, list[int]] = {}

    def encode(self, pieces: list[str]) -> list[list[int]]:
        """Token ids of every piece."""
        return [self._encode_piece(piece.replace(" ", SPACE)) for piece in pieces]

    def _encode_piece(self, piece: str) -> list[int]:
        output: list[int] = []
        for word in self._words.split(piece):
            found = self._cache.get(word)
            if found is None:
                found = self._merge(word)
                if len(word) <= _CACHED_WORD:
                    if len(self._cache) >= _CACHE_SIZE:
                        self._cache.clear()
                    self._cache[word] = found
            output += found
        return output

    def _merge(self, word: str) -> list[int]:
        """Merges one word. Symbols are word[start[i] : end[i]]; `end[i] == start[i]` marks one that was swallowed."""
        size = len(word)
        ends = list(range(1, size + 1))
        following = list(range(1, size + 1))  # index of the next symbol that is left; size: none
        before = list(range(-1, size - 1))
        heap: list[tuple[int, int, int, int]] = []  # rank, left symbol, right symbol, end of the merged text
        ids, ranks = self._ids, self._ranks
        for left in range(size - 1):
            token = ids.get(word[left : left + 2])
            if token is not None:
                heappush(heap, (ranks[token], left, left + 1, left + 2))
        while heap:
            _, left, right, end = heappop(heap)
            if ends[left] != right or ends[right] != end:
                continue  # one of the two has changed since
            ends[left], ends[right] = end, right
            after = following[left] = following[right]
            if after < size:
                before[after] = left
                token = ids.get(word[left : ends[after]])
                if token is not None:
                    heappush(heap, (ranks[token], left, after, ends[after]))
            previous = before[left]
            if previous >= 0:
                token = ids.get(word[previous:end])
                if token is not None:
                    heappush(heap, (ranks[token], previous, left, end))
        output: list[int] = []
        at = 0
        while at < size:
            symbol = word[at : ends[at]]
            token = ids.get(symbol)
            output += self._fall_back(symbol) if token is None else (token,)
            at = following[at]
        return output

    def _fall_back(self, character: str) -> list[int]:
        if self._byte_ids is None:
            return self._unknown
        return [self._byte_ids[byte] for byte in character.encode()]


def _word_border(ids: dict[str, int]) -> str:
    """Matches the places that no token reaches across: before a `▁`, except after characters that some token has there.

    Cutting there changes no result, and words come again and again, so they are worth remembering.
    """
    inner = {match[0] for text in ids if SPACE in text[1:] for match in re.finditer(f"[^{SPACE}](?={SPACE})", text)}
    kept = "".join(re.escape(character) for character in sorted(inner | {SPACE}))
    return f"(?<=[^{kept}])(?={SPACE})"
