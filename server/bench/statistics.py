"""Summaries of repeated, paired measurements on a machine that is not quiet: medians, spreads, ratios pair by pair."""

from __future__ import annotations

import os
import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Spread:
    """Median with minimum and maximum of a set of runs."""

    median: float
    low: float
    high: float
    runs: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Raises ValueError for no values."""
        return cls(statistics.median(values), min(values), max(values), len(values))

    def text(self, digits: int = 1) -> str:
        """`median (low-high)`."""
        return f"{self.median:.{digits}f} ({self.low:.{digits}f}-{self.high:.{digits}f})"


def paired_ratios(ours: Sequence[float], theirs: Sequence[float]) -> Spread:
    """Ratio of each run to the run of the other side that was made beside it."""
    return Spread.of([a / b for a, b in zip(ours, theirs, strict=True)])


def median_interval(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float]:
    """Distribution-free confidence interval of the median, by order statistics (binomial, p = 1/2).

    With too few values for the confidence asked, the interval is the whole range.
    """
    ordered = sorted(values)
    n = len(ordered)
    tail, below, term = 0.0, 0, 0.5**n
    for k in range(n // 2):
        tail += term
        if 2 * tail > 1 - confidence:
            break
        below = k + 1
        term *= (n - k) / (k + 1)
    low = max(below - 1, 0)
    return ordered[low], ordered[n - 1 - low]


@dataclass(frozen=True, slots=True)
class MachineLoad:
    """What else the machine was doing: `busy` is the one-minute load average per core."""

    cores: int
    load: float

    @classmethod
    def now(cls) -> MachineLoad:
        """Read from the operating system."""
        return cls(os.cpu_count() or 1, os.getloadavg()[0])

    def text(self) -> str:
        """One line for the head or foot of a report."""
        noisy = " (NOISY: treat absolute times as meaningless)" if self.load > 1.5 * self.cores else ""
        return f"{self.cores} cores, load {self.load:.2f}{noisy}"
