"""What a step of so many rows costs on this machine: measured once at load, then corrected by every step served.

A table of (rows, seconds) at powers of two, straight lines between them, and a factor per doubling of the context for
what attention adds. Knows no sequences; the scheduler asks it how many prefill rows fit, the governor what a row costs.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable

GAIN = 0.1  # how far one step moves what has been measured
FIRST_GAIN = 0.5  # and what has only been extrapolated
SHORT_CONTEXT = 512  # up to here attention is part of the table itself
MAX_SURPRISE = 4.0  # one step says at most that the machine is so much slower or faster than thought


class CostCurve:
    """Seconds of a step by rows. Starts with a guess of `seconds_per_row` until `measure` or `observe` corrects it."""

    def __init__(self, max_rows: int, seconds_per_row: float = 0.005) -> None:
        self.rows = [1]
        while self.rows[-1] < max_rows:
            self.rows.append(min(2 * self.rows[-1], max_rows))
        self.costs = [seconds_per_row * rows for rows in self.rows]
        self._measured = [False] * len(self.rows)
        self._factors: dict[int, float] = {}  # by context bucket

    def measure(self, run: Callable[[int], float], budget: float, largest: int) -> int:
        """Times `run(rows)` for growing counts up to `largest`, while the next should fit. Returns how many it timed.

        Points beyond are extrapolated along the last measured line.
        """
        run(1)  # faults pages in and wakes threads; says nothing about steps to come
        spent = 0.0
        timed = 0
        for position, rows in enumerate(self.rows):
            expected = 2 * self.costs[position - 1] if position else 0.0
            if rows > largest or (position > 1 and spent + expected > budget):
                break
            seconds = run(rows)
            spent += seconds
            self.costs[position] = max(seconds, self.costs[position - 1] if position else 0.0)
            self._measured[position] = True
            timed += 1
        self._extrapolate(timed)
        return timed

    def _extrapolate(self, known: int) -> None:
        """Continues the line through the last two known points; a step never costs less than a smaller one."""
        if known == len(self.rows):
            return
        low, high = max(0, known - 2), known - 1
        span = self.rows[high] - self.rows[low]
        slope = (self.costs[high] - self.costs[low]) / span if span else self.costs[high]
        slope = max(slope, 0.05 * self.costs[high] / self.rows[high])
        for position in range(known, len(self.rows)):
            self.costs[position] = self.costs[high] + slope * (self.rows[position] - self.rows[high])

    def seconds(self, rows: int, context: int = 0) -> float:
        """Expected seconds of a step of so many rows whose rows stand at about position `context`."""
        high = bisect_left(self.rows, rows)
        if high == len(self.rows):
            return self.costs[-1] * rows / self.rows[-1] * self._factor(context)
        if self.rows[high] == rows:
            return self.costs[high] * self._factor(context)
        low = high - 1
        share = (rows - self.rows[low]) / (self.rows[high] - self.rows[low])
        return (self.costs[low] + share * (self.costs[high] - self.costs[low])) * self._factor(context)

    def rows_within(self, seconds: float, rows: int, context: int) -> int:
        """How many rows at position `context` fit into a step of `seconds` beside `rows` others. May be negative."""
        budget = seconds / self._factor(context)
        high = bisect_right(self.costs, budget)
        if high == len(self.costs):
            return self.rows[-1] - rows
        if high == 0:
            return -rows
        low = high - 1
        share = (budget - self.costs[low]) / (self.costs[high] - self.costs[low])
        return int(self.rows[low] + share * (self.rows[high] - self.rows[low])) - rows

    def observe(self, rows: int, context: int, seconds: float) -> None:
        """Corrects the curve by a step that was served."""
        ratio = seconds / self.seconds(rows, context)
        ratio = min(max(ratio, 1 / MAX_SURPRISE), MAX_SURPRISE)
        if context >= SHORT_CONTEXT:
            bucket = context.bit_length()
            self._factors[bucket] = max(1.0, self._factor(context) * (1 + GAIN * (ratio - 1)))
            return
        high = min(bisect_left(self.rows, rows), len(self.rows) - 1)
        low = high if self.rows[high] <= rows or high == 0 else high - 1
        for position in {low, high}:
            gain = GAIN if self._measured[position] else FIRST_GAIN
            self.costs[position] *= 1 + gain * (ratio - 1)
            self._measured[position] = True
        for position in range(1, len(self.costs)):
            self.costs[position] = max(self.costs[position], self.costs[position - 1])

    def _factor(self, context: int) -> float:
        """How much dearer a row at this position is; what is unknown is taken from the nearest shorter context."""
        if context < SHORT_CONTEXT or not self._factors:
            return 1.0
        bucket = context.bit_length()
        known = [key for key in self._factors if key <= bucket]
        return self._factors[max(known)] if known else 1.0

    def table(self) -> list[tuple[int, float]]:
        """(rows, seconds) of every point, for people."""
        return list(zip(self.rows, self.costs, strict=True))
