"""The shape of step costs as it was measured at load on the idle machine, then fixed. What changes while serving is
learned beside it (pricing.py), so that a busy neighbour never bends the comparison of a verify with a plain step."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

LEAST_SLOPE = 0.02  # of a plain step per row: beyond what was measured, rows never become free


class FixedShape:
    """Seconds by rows: straight lines between measured points, monotone, extrapolated along the last line."""

    def __init__(self, rows: Sequence[int], seconds: Sequence[float]) -> None:
        if not rows or rows[0] != 1 or len(rows) != len(seconds) or list(rows) != sorted(set(rows)):
            raise ValueError("a shape needs ascending row counts, from 1, and one time for each")
        if min(seconds) <= 0:
            raise ValueError("a step takes time")
        self.rows = tuple(rows)
        costs: list[float] = []
        for value in seconds:
            costs.append(max(value, costs[-1] if costs else value))
        self.costs = tuple(costs)

    def seconds(self, rows: int, sequences: int, context: int) -> float:
        """As a CostCurve. Sequences and context do not enter: where they matter, the price cells learn it."""
        high = bisect_left(self.rows, rows)
        if high < len(self.rows) and self.rows[high] == rows:
            return self.costs[high]
        if high == len(self.rows):
            return self.costs[-1] + self._last_slope() * (rows - self.rows[-1])
        low = high - 1
        share = (rows - self.rows[low]) / (self.rows[high] - self.rows[low])
        return self.costs[low] + share * (self.costs[high] - self.costs[low])

    def _last_slope(self) -> float:
        least = LEAST_SLOPE * self.costs[0]
        if len(self.rows) == 1:
            return self.costs[0]  # nothing is known: a row costs a row
        return max(least, (self.costs[-1] - self.costs[-2]) / (self.rows[-1] - self.rows[-2]))
