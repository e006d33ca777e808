"""What steps cost, here and now: level x shape.

Shape is the curve measured at load (seconds by rows, sequences and context), corrected by a slowly learned factor per
cell. Level is one factor for the machine's present speed, moved by every clean step of any kind, so that plain and
verify steps are always compared at the same speed: a busy neighbour slows both and changes no decision.

Both are logarithms, estimated by one scalar Kalman filter each: what a step's time tells is shared out by how uncertain
level and cell are. Right after plain steps the level is sure and a verify teaches its cell; during a long spell of
verifies the level is not, and takes drift upon itself. A plain step of one sequence is the unit: it has no cell.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from itertools import accumulate

from .contract import CostCurve, StepRecord

MAX_ROWS = 65  # added to the sequences' own
NOISE = 0.15**2  # variance of the logarithm of one step's time
LEVEL_DRIFT = 0.01**2  # variance that the level gains with every clean step
LEVEL_START = 1.0  # variance of the level before the first step: the curve was measured in another moment
CELL_SPREAD = 0.15**2  # variance of a cell that was never measured, or long ago: how far the curve may be off
CELL_FLOOR = 0.01**2
CELL_MEMORY = 512  # clean steps without use after which a cell has gone half of its way back to the curve
CLIP = 2.0  # standard deviations: a step further off counts as this far
STARVED = 8  # steps skipped because the kind keeps changing; the next one counts all the same
ALIKE = 8  # plain steps of a kind in a row are learned from together, once the level is roughly known
REFRESH = 32  # clean steps between refreshes of a price list,
NOTEWORTHY = 0.05  # or less, if a price has moved so far
COMPANY = 1.05  # times a plain step: in a batch no verify takes longer, because neighbours wait for it between tokens


class _Cell:
    """Correction of the curve for some row counts, as a logarithm, with its variance and when it was last moved."""

    __slots__ = ("moved", "value", "variance")

    def __init__(self) -> None:
        self.value = 0.0
        self.variance = CELL_SPREAD
        self.moved = 0

    def fade(self, now: int) -> None:
        """Goes back toward the curve for the steps that passed without use."""
        kept = 0.5 ** ((now - self.moved) / CELL_MEMORY)
        self.value *= kept
        self.variance = CELL_SPREAD + (self.variance - CELL_SPREAD) * kept
        self.moved = now


class PriceList:
    """Cost of a step by extra rows, in units of one plain step of one sequence, never falling.

    slopes[k] is the least cost per row of any way on from k: a draft whose next token is less likely than slopes[k]
    times the present rate cannot improve by going on. `most`: rows that drafts may add; where others wait for the step
    (`company`), as many as they hardly notice.
    """

    __slots__ = ("company", "made", "most", "prices", "slopes")

    def __init__(self, prices: list[float], made: int, company: bool = False) -> None:
        self.prices = prices
        self.made = made
        self.company = company
        self.most = (bisect_right(prices, COMPANY * prices[0]) if company else len(prices)) - 1
        last = len(prices) - 1
        slopes = [math.inf] * len(prices)
        hull = [last]  # lower convex hull of the points to the right, nearest last
        for k in range(last - 1, -1, -1):
            while len(hull) > 1 and _slope(prices, k, hull[-2]) <= _slope(prices, k, hull[-1]):
                hull.pop()
            slopes[k] = _slope(prices, k, hull[-1])
            hull.append(k)
        self.slopes = slopes

    def most_paid(self, draft_cost: float) -> int:
        """As `most`, for drafts whose every token adds `draft_cost` to the step, before it."""
        if not self.company:
            return self.most
        bound, k = COMPANY * self.prices[0], 0
        while k < self.most and self.prices[k + 1] + (k + 1) * draft_cost <= bound:
            k += 1
        return k


def _slope(prices: list[float], a: int, b: int) -> float:
    return (prices[b] - prices[a]) / (b - a)


class Pricing:
    """Prices for one program. Fed with finished steps, asked before each."""

    __slots__ = (
        "_alike",
        "_cells",
        "_curve",
        "_kind",
        "_level",
        "_level_variance",
        "_lists",
        "_seconds",
        "_skipped",
        "_steps",
        "_verified",
    )

    def __init__(self, curve: CostCurve) -> None:
        self._curve = curve
        self._level = 0.0
        self._level_variance = LEVEL_START
        self._cells: dict[tuple[int, int, int], _Cell] = {}
        self._lists: dict[tuple[int, int], PriceList] = {}
        self._steps = 0  # clean ones
        self._alike, self._seconds = 0, 0.0  # plain steps not learned from yet, and what they took together;
        self._kind = 0, 0, 0  # rows, sequences and context of the last of them
        self._skipped = 0
        self._verified = False  # the last step's kind

    def unit(self, context: int) -> float:
        """Seconds of one plain step of one sequence, at the machine's present speed."""
        return self._curve.seconds(1, 1, context) * math.exp(self._level)

    def list(self, sequences: int, context: int) -> PriceList:
        """Prices of steps of `sequences` sequences by extra rows, refreshed every few dozen steps."""
        key = (sequences, _bucket(context))
        found = self._lists.get(key)
        if found is None or self._steps - found.made >= REFRESH:
            found = self._lists[key] = PriceList(self._prices(sequences, context), self._steps, sequences > 1)
        return found

    def _prices(self, sequences: int, context: int) -> list[float]:
        """From the most rows down: what was measured lately is the most that fewer rows can cost by the curve alone."""
        unit = self._curve.seconds(1, 1, context)
        prices = [0.0] * MAX_ROWS
        ceiling = math.inf
        for extra in range(MAX_ROWS - 1, -1, -1):
            rows = sequences + extra
            cell = self._cells.get(_key(rows, sequences, context))
            price = self._curve.seconds(rows, sequences, context) / unit
            if cell is not None:
                cell.fade(self._steps)
                price *= math.exp(cell.value)
            if cell is not None and cell.variance < CELL_SPREAD / 2:
                ceiling = min(ceiling, price)
            else:
                price = min(price, ceiling)
            prices[extra] = price
        return list(accumulate(prices, max))

    def record(self, step: StepRecord, seconds: float) -> bool:
        """Learns from a step that took `seconds` without its drafting, or from several without any. False: nothing of
        it was clean, and it taught nothing."""
        if step.prefill_rows or step.after_idle or seconds <= 0.0:
            self._verified = step.verified
            return False
        times = step.times or (seconds,)
        if step.verified != self._verified and self._skipped < STARVED:
            self._verified = step.verified
            self._skipped += 1
            times = times[1:]
            if not times:
                return False
        self._verified = step.verified
        self._skipped = 0
        self._steps += len(times)
        if step.verified:
            self._learn_alike()
            self._learn(step.rows, step.sequences, step.context, seconds, 1)
            return True
        if self._alike and step.sequences != self._kind[1]:
            self._learn_alike()
        self._kind = step.rows, step.sequences, step.context
        for each in times:
            self._alike += 1
            self._seconds += each
            if self._alike >= ALIKE or self._level_variance > NOISE:
                self._learn_alike()
        return True

    def _learn_alike(self) -> None:
        """What a plain step tells is little, and most steps are plain: their mean is looked at, and tells as much."""
        steps, seconds = self._alike, self._seconds
        if steps:
            self._alike, self._seconds = 0, 0.0
            self._learn(*self._kind, seconds / steps, steps)

    def _learn(self, rows: int, sequences: int, context: int, seconds: float, steps: int) -> None:
        seen = math.log(seconds / self._curve.seconds(rows, sequences, context))
        level_variance = self._level_variance + steps * LEVEL_DRIFT
        cell = self._cell(rows, sequences, context)
        noise = NOISE / steps
        if cell is None:
            total = level_variance + noise
            surprise = _clip(seen - self._level, total)
        else:
            total = level_variance + cell.variance + noise
            surprise = _clip(seen - self._level - cell.value, total)
            gain = cell.variance / total
            cell.value += gain * surprise
            if abs(gain * surprise) > NOTEWORTHY:
                self._lists.clear()
            cell.variance = max(CELL_FLOOR, cell.variance * (1 - gain))
        gain = level_variance / total
        self._level += gain * surprise
        self._level_variance = level_variance * (1 - gain)

    def _cell(self, rows: int, sequences: int, context: int) -> _Cell | None:
        if rows == 1:
            return None
        key = _key(rows, sequences, context)
        cell = self._cells.get(key)
        if cell is None:
            cell = self._cells[key] = _Cell()
            cell.moved = self._steps
        else:
            cell.fade(self._steps)
        return cell

    def table(self, sequences: int, context: int) -> dict[str, object]:
        """The prices in use, for people: extra rows -> units of a plain step."""
        prices = self.list(sequences, context).prices
        return {
            "unit_seconds": self.unit(context),
            "level": math.exp(self._level),
            "prices": {k: round(prices[k], 4) for k in (0, 1, 2, 3, 4, 5, 6, 7, 8, 11, 15, 23, 31, 47, 63)},
        }


def _key(rows: int, sequences: int, context: int) -> tuple[int, int, int]:
    """Cells pool row counts that a power of two separates, 1, 2, 3-4, 5-8, ..., and contexts of one binary size."""
    return (rows - 1).bit_length(), sequences, _bucket(context)


def _bucket(context: int) -> int:
    """Contexts of one binary size, in thousands: below, attention is a small part of any step."""
    return (context >> 10).bit_length()


def _clip(surprise: float, variance: float) -> float:
    bound = CLIP * math.sqrt(variance)
    return max(-bound, min(bound, surprise))
