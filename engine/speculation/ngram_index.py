"""The n-gram index in plain Python: the oracle of `kernels/cpu/ngram.cpp`, and the index where there is no native code.

Same chains, same bounds, same choices, so both give the same drafts and the same scores for the same calls. Every
position p (the number of tokens before it) is filed, for each order 2..8, under the hash of the tokens that end there;
`heads` holds the latest position of a bucket, `links` the one before it. Hits are verified token by token.

A long copy that breaks off, because a word was changed, inserted or left out, usually goes on a few tokens from where
it was. So there a single token that agrees is enough, and beats a short match elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

MIN_ORDER = 2
MAX_ORDER = 8
DEPTH = 16  # links followed per order
MAX_MATCH = 64  # a longer match counts as this long
MAX_DRAFT = 64
LENGTH_LIMITS = (2, 3, 4, 5, 7, 10, 15, 23, 39)  # the longest match of each grade of length but the last
NUM_LENGTHS = len(LENGTH_LIMITS) + 1
MAX_CAPACITY = 1 << 24
MIN_COPY = 4  # a copy of so many tokens that breaks off is expected to go on nearby,
SHIFT = 4  # at most so many tokens further on, or back,
PATIENCE = 16  # and at most so many tokens later

# What the occurrence before the matched one says of the next token: there is none, the same, or something else. Or why
# nobody was asked: a copy that had broken off goes on here.
ALONE, AGREES, DISAGREES, RESUMES = range(4)
# First tokens by vote and length of the match, later ones by length alone, tokens of a resumed copy by length.
NUM_GRADES = 4 * NUM_LENGTHS + MAX_ORDER

_ORDERS = range(MIN_ORDER, MAX_ORDER + 1)
_MASK64 = (1 << 64) - 1


def length_grade(length: int) -> int:
    """0 for a match of two tokens, 9 for forty and more."""
    for grade, limit in enumerate(LENGTH_LIMITS):
        if length <= limit:
            return grade
    return NUM_LENGTHS - 1


def first_grade(length: int, vote: int) -> int:
    """Grade of the first token of a draft from a match of `length` tokens."""
    return vote * NUM_LENGTHS + length_grade(length)


def later_grade(length: int) -> int:
    """Grade of a later token: `length` counts the drafted tokens before it as matched."""
    return 3 * NUM_LENGTHS + length_grade(length)


def resumed_grade(length: int) -> int:
    """Grade of a token of a resumed copy, `length` (0 to 7) tokens after the place where it resumed."""
    return 4 * NUM_LENGTHS + length


def draft_grades(length: int, vote: int) -> tuple[int, ...]:
    """Grades of all tokens of a draft from a match."""
    lengths = [min(MAX_MATCH, length + j) for j in range(MAX_DRAFT)]
    if vote == RESUMES:
        return tuple(resumed_grade(n) if n < MAX_ORDER else later_grade(n) for n in lengths)
    return (first_grade(length, vote), *(later_grade(n) for n in lengths[1:]))


class _Match(NamedTuple):
    distance: int  # the match ends this many tokens before the end; 0: none
    length: int  # none where a copy should resume
    vote: int


_NO_MATCH = _Match(0, 0, ALONE)


class NgramIndex:
    """Where a request's own tokens occurred before, and what followed. `capacity` bounds the tokens it can hold."""

    def __init__(self, capacity: int) -> None:
        if not 1 <= capacity <= MAX_CAPACITY:
            raise ValueError("capacity must be 1 to 16777216 tokens")
        self.room = capacity
        self.restart(capacity)

    def restart(self, capacity: int) -> None:
        """Empty, as if made for `capacity` tokens: at most as many as it was made for."""
        if not 1 <= capacity <= self.room:
            raise ValueError("the index has no room for so many tokens")
        self.capacity = capacity
        buckets = 256
        while buckets < capacity:
            buckets *= 2
        self._mask = buckets - 1
        self._ids: list[int] = []
        self._heads: list[dict[int, int]] = [{} for _ in _ORDERS]  # bucket -> latest position; absent means none
        self._links: list[list[int]] = [[0] * len(_ORDERS)]  # [position][order - MIN_ORDER], 0 means none
        self._scores: dict[int, list[int]] = {}
        self._last = _NO_MATCH
        self._last_end = -1
        self._broken = 0  # distance of the copy that broke off last; 0: none, or it goes on
        self._broken_at = 0  # position of the first token that differed
        self._gap, self._shift = 1, 0  # how the last one went on: after so many tokens, at so much more distance

    def __len__(self) -> int:
        return len(self._ids)

    @property
    def num_bytes(self) -> int:
        """What the native index of this room may grow to; Python's lists take about ten times as much."""
        buckets = max(256, 1 << (self.room - 1).bit_length())
        return 4 * (self.room + (buckets + self.room + 1) * len(_ORDERS))

    def extend(self, ids: Sequence[int], start: int, stop: int) -> None:
        """Appends ids[start:stop] without scoring."""
        for position in _checked(ids, start, stop):
            self._append(ids[position])

    def advance(self, ids: Sequence[int], start: int, stop: int) -> bool:
        """Appends ids[start:stop]; each token first judges the draft that would have been made before it was known.
        Returns whether there is anything to draft now."""
        for position in _checked(ids, start, stop):
            self._advance(ids[position])
        return self._match().distance > 0

    def follow(self, ids: Sequence[int], size: int) -> bool:
        """`advance` by ids[size], which comes right after what the index holds."""
        if len(self) != size:
            raise ValueError("the token does not follow those of the index")
        return self.advance(ids, size, size + 1)

    def truncate(self, size: int) -> None:
        """Takes back all tokens from `size` on."""
        if not 0 <= size <= len(self._ids):
            raise ValueError("cannot truncate to a length the index does not have")
        if size == len(self._ids):
            return
        while len(self._ids) > size:
            links = self._links.pop()
            for order, bucket in enumerate(self._buckets()):
                self._heads[order][bucket] = links[order]
            self._ids.pop()
        self._last, self._last_end = _NO_MATCH, -1
        self._broken, self._gap, self._shift = 0, 1, 0

    def draft(self, limit: int) -> tuple[list[int], int, int]:
        """(token ids, length of the match, vote): what followed the best match, at most `limit` and 64 tokens. The
        match has two tokens at least; where a copy resumes, or should, one or none.

        Past its own end it goes on copying what it copied, so periodic text drafts without limit.
        """
        match = self._match()
        if not match.distance:
            return [], 0, ALONE
        size = max(0, min(limit, MAX_DRAFT))
        ids = self._ids[len(self._ids) - match.distance :][:size]
        while len(ids) < size:
            ids.append(ids[len(ids) - match.distance])
        return ids, match.length, match.vote

    def take_scores(self) -> list[tuple[int, int, int]]:
        """(grade, trials, hits) since the last call, in ascending order of grades."""
        scores = [(grade, trials, hits) for grade, (trials, hits) in sorted(self._scores.items())]
        self._scores.clear()
        return scores

    def _buckets(self) -> list[int]:
        """Buckets of the n-grams that end at the end, shortest first."""
        buckets: list[int] = []
        value = 0
        for n in range(1, min(MAX_ORDER, len(self._ids)) + 1):
            value = ((value ^ (self._ids[-n] & 0xFFFFFFFF)) * 0x9E3779B97F4A7C15) & _MASK64
            value ^= value >> 32
            if n >= MIN_ORDER:
                buckets.append((value >> 20) & self._mask)
        return buckets

    def _append(self, token_id: int) -> None:
        if len(self._ids) == self.capacity:
            raise ValueError("n-gram index is full")
        self._ids.append(token_id)
        links = [0] * len(_ORDERS)
        for order, bucket in enumerate(self._buckets()):
            links[order] = self._heads[order].get(bucket, 0)
            self._heads[order][bucket] = len(self._ids)
        self._links.append(links)

    def _matched(self, end: int, limit: int) -> int:
        """How many tokens before `end` equal those before the end."""
        ids, size, n = self._ids, len(self._ids), 0
        while n < min(limit, end) and ids[end - 1 - n] == ids[size - 1 - n]:
            n += 1
        return n

    def _match(self) -> _Match:
        return self._last if self._last_end == len(self._ids) else self._find()

    def _chain(self, order: int) -> list[int]:
        """Ends of earlier n-grams in the end's bucket, latest first."""
        ends: list[int] = []
        position = self._links[-1][order - MIN_ORDER]
        while position and len(ends) < DEPTH:
            ends.append(position)
            position = self._links[position][order - MIN_ORDER]
        return ends

    def _find(self) -> _Match:
        """A short match is better sought where a long copy has broken off than anywhere else."""
        anywhere = self._find_anywhere()
        if not self._broken or anywhere.length >= MAX_ORDER:
            return anywhere
        resumed = self._find_resumed()
        if resumed.length:
            return anywhere if anywhere.length > resumed.length + 1 else resumed
        return anywhere if anywhere.length else resumed

    def _find_resumed(self) -> _Match:
        """The longest match around the place where the broken copy would have gone on; the least shifted of equals. A
        match of MAX_ORDER tokens is one like any other. Where nothing agrees, the copy may be about to go on as the
        last one did.

        source  a b c d e f g h i j            changed:   a b c d X f g h     distance as before
                        ^ broken               inserted:  a b c d X e f g     one more
        text    a b c d X                      left out:  a b c d f g h i     one less
        """
        size, best = len(self._ids), _NO_MATCH
        for step in range(2 * SHIFT + 1):
            distance = self._broken + (-(step + 1) // 2 if step % 2 else step // 2)
            if 1 <= distance < size:
                length = self._matched(size - distance, MAX_ORDER - 1)
                if length > best.length:
                    best = _Match(distance, length, RESUMES)
        since = size - self._broken_at
        if best.length:
            return _NO_MATCH if since - best.length > PATIENCE else best
        distance = self._broken + self._shift
        return _Match(distance, 0, RESUMES) if since == self._gap and 1 <= distance < size else _NO_MATCH

    def _find_anywhere(self) -> _Match:
        """The longest match among the candidates of the longest order that has one; the most recent of equals."""
        size = len(self._ids)
        best_length = best_distance = 0
        if 0 < self._last.distance < size:
            length = self._matched(size - self._last.distance, MAX_MATCH)
            if length >= MAX_ORDER:
                best_length, best_distance = length, self._last.distance
        for order in range(min(MAX_ORDER, size), MIN_ORDER - 1, -1):
            for end in self._chain(order):
                length = self._matched(end, MAX_MATCH if order == MAX_ORDER else order)
                if length < order:
                    continue  # another n-gram of the same bucket
                if length > best_length or (length == best_length and size - end < best_distance):
                    best_length, best_distance = length, size - end
                if order < MAX_ORDER or length == MAX_MATCH:
                    break
            if best_length:
                return _Match(best_distance, best_length, self._vote(order, best_distance))
        return _NO_MATCH

    def _vote(self, order: int, distance: int) -> int:
        """Asks the most recent other occurrence of the same n-gram what came next."""
        size = len(self._ids)
        for end in self._chain(order):
            if size - end != distance and self._matched(end, order) == order:
                return AGREES if self._ids[end] == self._ids[size - distance] else DISAGREES
        return ALONE

    def _advance(self, token_id: int) -> None:
        """A copied token that comes true makes the match one longer. So token j of a draft from a match of length L is
        the same event as the first token of a draft from a match of length L + j - 1, and one comparison per text token
        scores them all. A resumed copy has grades of its own for both, until it is long enough to be a match like any
        other. Nothing after `token_id` is read."""
        match = self._match()
        if match.distance:
            hit = self._ids[len(self._ids) - match.distance] == token_id
            if match.vote == RESUMES:
                self._score(resumed_grade(match.length), hit)
            else:
                self._score(first_grade(match.length, match.vote), hit)
                self._score(later_grade(match.length), hit)
            if not hit and match.length >= MIN_COPY:
                self._broken, self._broken_at = match.distance, len(self._ids)
        self._append(token_id)
        self._last, self._last_end = self._find(), len(self._ids)
        if self._broken:
            self._follow_up()

    def _follow_up(self) -> None:
        """Has the broken copy gone on? Remembers how, and forgets it once it has, or when it has taken too long."""
        length, since = self._last.length, len(self._ids) - self._broken_at
        shift = self._last.distance - self._broken
        if length >= MIN_ORDER and 1 <= since - length <= PATIENCE and abs(shift) <= SHIFT:
            self._gap, self._shift = since - length, shift
        if length >= MAX_ORDER or since >= PATIENCE + MAX_ORDER:
            self._broken = 0

    def _score(self, grade: int, hit: bool) -> None:
        score = self._scores.setdefault(grade, [0, 0])
        score[0] += 1
        score[1] += hit


def _checked(ids: Sequence[int], start: int, stop: int) -> range:
    if not 0 <= start <= stop <= len(ids):
        raise IndexError("no such range of token ids")
    return range(start, stop)
