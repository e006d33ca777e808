"""What a step of so many rows costs on this machine: measured once at load, then corrected by every step served.

Two tables of (rows, seconds), straight lines between their points: steps whose rows all want logits (decodes, verifies)
and steps of which one row does (prefills); and a factor per doubling of the context for what attention adds. Knows no
sequences; the scheduler asks it how many prefill rows fit, the governor what a row costs.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence

GAIN = 0.1  # how far one slow step moves what has been measured
FAST_GAIN = 0.3  # and a fast one: other programs make steps slower, nothing makes them faster than they are
FIRST_GAIN = 0.5  # and what has only been inferred
SHORT_CONTEXT = 512  # up to here attention is part of the tables themselves
MAX_SURPRISE = 4.0  # one step says at most that the machine is so much slower or faster than thought
USUAL_SLOPE = 0.15  # of one row's cost for each further row, where only one count was measured
LEAST_SLOPE = 0.05  # a row costs at least this share of the average row

DECODE_ROWS = (1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 48, 64, 96)
PREFILL_ROWS = (1, 8, 16, 32, 64, 128, 256, 512, 1024)


class CostTable:
    """Seconds by rows; never less for more rows, and never more than for the same rows in several steps."""

    def __init__(self, rows: Sequence[int], seconds_per_row: float) -> None:
        self.rows = list(rows)
        self.costs = [seconds_per_row * count for count in rows]
        self._measured = [False] * len(self.rows)

    def fill(self, measured: Mapping[int, float]) -> None:
        """Takes measurements; points between and beyond them follow the lines through them."""
        known = sorted(measured)
        for position, rows in enumerate(self.rows):
            self.costs[position] = _along(known, measured, rows)
            self._measured[position] = rows in measured
        for position in range(len(self.rows) - 2, -1, -1):
            self.costs[position] = min(self.costs[position], self.costs[position + 1])
        for position in range(1, len(self.rows)):
            most = self.costs[position - 1] * self.rows[position] / self.rows[position - 1]
            self.costs[position] = min(self.costs[position], most)

    def at(self, rows: float) -> float:
        """Seconds of a step of so many rows."""
        high = bisect_left(self.rows, rows)
        if high == len(self.rows):
            return self.costs[-1] * rows / self.rows[-1]
        if self.rows[high] == rows or high == 0:
            return self.costs[high]
        low = high - 1
        share = (rows - self.rows[low]) / (self.rows[high] - self.rows[low])
        return self.costs[low] + share * (self.costs[high] - self.costs[low])

    def rows_within(self, seconds: float) -> int:
        """The most rows of a step that takes no longer."""
        high = bisect_right(self.costs, seconds)
        if high == 0:
            return 0
        low = high - 1
        if high == len(self.costs):
            return self.rows[low]
        share = (seconds - self.costs[low]) / (self.costs[high] - self.costs[low])
        return int(self.rows[low] + share * (self.rows[high] - self.rows[low]))

    def correct(self, rows: int, ratio: float) -> None:
        """A step of so many rows took `ratio` times what was expected: moves the points around it."""
        high = min(bisect_left(self.rows, rows), len(self.rows) - 1)
        low = high if self.rows[high] <= rows or high == 0 else high - 1
        for position in {low, high}:
            gain = FIRST_GAIN if not self._measured[position] else FAST_GAIN if ratio < 1 else GAIN
            self.costs[position] *= 1 + gain * (ratio - 1)
            self._measured[position] = True
            self._keep_order(position)

    def _keep_order(self, position: int) -> None:
        """The point that moved is right. Others bend, so that a step costs no less for more rows, and no more than
        several steps of fewer rows."""
        cost, rows = self.costs[position], self.rows[position]
        for other in range(len(self.rows)):
            share = cost * self.rows[other] / rows
            low, high = (share, cost) if other < position else (cost, share)
            self.costs[other] = min(max(self.costs[other], low), high)


def _along(known: Sequence[int], measured: Mapping[int, float], rows: int) -> float:
    """Seconds of `rows` on the lines through the measured points."""
    high = bisect_left(known, rows)
    if high < len(known) and known[high] == rows:
        return measured[rows]
    if high == 0:
        return measured[known[0]]  # fewer rows than were measured: no more is known
    if high < len(known):
        low = high - 1
        share = (rows - known[low]) / (known[high] - known[low])
        return measured[known[low]] + share * (measured[known[high]] - measured[known[low]])
    last = known[-1]
    if len(known) == 1:
        return measured[last] * (1 + USUAL_SLOPE * (rows - last) / last)
    slope = (measured[last] - measured[known[-2]]) / (last - known[-2])
    return measured[last] + (rows - last) * max(slope, LEAST_SLOPE * measured[last] / last)


class CostCurve:
    """Seconds per step. Starts with a guess of `seconds_per_row` until `fill` or `observe` corrects it."""

    def __init__(self, max_rows: int, seconds_per_row: float = 0.005) -> None:
        self.decode = CostTable([rows for rows in DECODE_ROWS if rows <= max(max_rows, 1)], seconds_per_row)
        self.prefill = CostTable([rows for rows in PREFILL_ROWS if rows < max_rows] + [max_rows], seconds_per_row)
        self._factors: dict[int, float] = {}  # by context bucket

    def fill(self, decode: Mapping[int, float], prefill: Mapping[int, float]) -> None:
        """Takes what was measured at load, rows to seconds. A prefill costs at most what as many decodes do, and beyond
        the decodes that were measured says what they cost at least: rows that come cheap one by one, while memory is
        what a step waits for, do not stay so."""
        widest = max(decode)
        self.decode.fill({**{rows: cost for rows, cost in prefill.items() if rows > widest}, **decode})
        self.prefill.fill({**decode, **{rows: min(cost, decode.get(rows, cost)) for rows, cost in prefill.items()}})

    def seconds(self, rows: int, sequences: int = 1, context: int = 0) -> float:
        """A step of `rows` rows, all wanting logits, whose sequences stand at about position `context`.

        How the rows are spread over `sequences` makes no difference that is worth a table.
        """
        return self.decode.at(rows) * self._factor(context)

    def mixed_seconds(self, rows: int, num_logits: int, context: int = 0) -> float:
        """A step of `rows` rows of which `num_logits` want logits."""
        if num_logits >= rows:
            return self.seconds(rows, 1, context)
        return (self.prefill.at(rows) + self._heads(num_logits)) * self._factor(context)

    def _heads(self, num_logits: int) -> float:
        """What logits of more than one row add to a prefill."""
        return max(0.0, self.decode.at(num_logits) - self.prefill.at(num_logits)) if num_logits > 1 else 0.0

    def rows_within(self, seconds: float, rows: int, context: int) -> int:
        """How many prefill rows at position `context` fit into a step of `seconds` beside `rows` decodes.

        May be negative.
        """
        budget = seconds / self._factor(context) - self._heads(rows)
        return self.prefill.rows_within(budget) - rows

    def observe(self, rows: int, num_logits: int, context: int, seconds: float) -> None:
        """Corrects the curve by a step that was served."""
        ratio = seconds / self.mixed_seconds(rows, num_logits, context)
        ratio = min(max(ratio, 1 / MAX_SURPRISE), MAX_SURPRISE)
        if context >= SHORT_CONTEXT:
            bucket = context.bit_length()
            self._factors[bucket] = max(1.0, self._factor(context) * (1 + GAIN * (ratio - 1)))
        else:
            (self.decode if num_logits >= rows else self.prefill).correct(rows, ratio)

    def _factor(self, context: int) -> float:
        """How much dearer a row at this position is; what is unknown is taken from the nearest shorter context."""
        if context < SHORT_CONTEXT or not self._factors:
            return 1.0
        bucket = context.bit_length()
        if bucket in self._factors:
            return self._factors[bucket]
        known = [key for key in self._factors if key < bucket]
        return self._factors[max(known)] if known else 1.0

    def table(self) -> dict[str, dict[int, float]]:
        """Both tables, for people."""
        return {
            "decode": dict(zip(self.decode.rows, self.decode.costs, strict=True)),
            "prefill": dict(zip(self.prefill.rows, self.prefill.costs, strict=True)),
        }
