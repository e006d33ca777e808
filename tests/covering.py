"""Pairwise covering sets: few cases in which every two values of different axes meet."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

Pair = tuple[tuple[str, object], tuple[str, object]]


def pairs_of(case: Mapping[str, object]) -> set[Pair]:
    """The pairs of values that one case covers."""
    return set(combinations(sorted(case.items(), key=lambda item: item[0]), 2))


def all_pairs(axes: Mapping[str, Sequence[object]]) -> set[Pair]:
    """Every two values of two axes."""
    return {
        ((one, first), (other, second))
        for one, other in combinations(sorted(axes), 2)
        for first in axes[one]
        for second in axes[other]
    }


def covering(axes: Mapping[str, Sequence[object]], seed: int = 0, tries: int = 30) -> list[dict[str, Any]]:
    """Greedy: each case is the best of some that were each grown, from a pair still missing, value by value."""
    rng = random.Random(seed)
    missing = all_pairs(axes)
    cases: list[dict[str, Any]] = []
    while missing:
        starts = rng.sample(sorted(missing, key=repr), min(tries, len(missing)))
        grown = [_grown(axes, dict(start), missing, rng) for start in starts]
        best = max(grown, key=lambda case: len(pairs_of(case) & missing))
        missing -= pairs_of(best)
        cases.append(best)
    return cases


def _grown(
    axes: Mapping[str, Sequence[object]], case: dict[str, object], missing: set[Pair], rng: random.Random
) -> dict[str, object]:
    for axis in rng.sample(sorted(axes), len(axes)):
        if axis not in case:
            values = rng.sample(list(axes[axis]), len(axes[axis]))
            case[axis] = max(values, key=lambda value: len(pairs_of({**case, axis: value}) & missing))
    return case
