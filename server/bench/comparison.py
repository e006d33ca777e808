"""Two sides measured beside each other on a machine that is not quiet: ratios pair by pair, with a verdict only where
the numbers carry one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .statistics import Spread, median_interval

FEWEST_PAIRS = 6  # below, no interval of a median holds it with 95 %


@dataclass(frozen=True, slots=True)
class Comparison:
    """How many times better the first side is, by the median of its pairs; [low, high] holds that with 95 %."""

    ratio: float
    low: float
    high: float
    pairs: int

    @property
    def verdict(self) -> str:
        """`better`, `worse`, or why neither can be said."""
        if self.pairs < FEWEST_PAIRS:
            return "too few pairs"
        return "better" if self.low > 1 else "worse" if self.high < 1 else "inconclusive"

    def text(self) -> str:
        """For a table."""
        shown = f"{self.ratio:.2f}x ({self.low:.2f}-{self.high:.2f})"
        return shown if self.verdict in ("better", "worse") else f"{shown} {self.verdict}"


def compare(ours: Sequence[float], theirs: Sequence[float], lower_is_better: bool) -> Comparison:
    """Runs at the same index are a pair. Raises ValueError for no pairs, or unequally many runs."""
    ratios = [b / a if lower_is_better else a / b for a, b in zip(ours, theirs, strict=True)]
    low, high = median_interval(ratios)
    return Comparison(Spread.of(ratios).median, low, high, len(ratios))
