"""Drafters that take device time: whether to run one at all, how far, and how much may be spent on finding out.

Costs are in units of one plain step, so that the machine's present speed drops out. What a drafter that is not running
would achieve is not visible, so it is tried again now and then, out of a budget of one percent of the decode time.
"""

from __future__ import annotations

from collections.abc import Callable

from ..contract import MAX_WINDOW, Capabilities
from .acceptance import Acceptance, Posterior
from .contract import Progress
from .pricing import PriceList

EXPLORATION = 0.01  # of decode time, process-wide
BUDGET_CAP = 64.0  # units that can be saved up
BUDGET_START = 8.0
TRIAL_TOKENS = 4
EXPECTED_MORE = 64  # tokens that an answer goes on for, beyond as many as it has already: nobody knows its end
GAIN_MARGIN = 1.02  # running a drafter must look this much better than plain
COST_MEMORY = 0.8  # of the mean cost of a draft step, per draft


class Budget:
    """Units of decode time that trials may lose."""

    __slots__ = ("_earned", "_left", "_spent")

    def __init__(self) -> None:
        self._left = BUDGET_START
        self._earned = 0.0
        self._spent = 0.0

    @property
    def left(self) -> float:
        """What a trial may lose now."""
        return self._left

    def earn(self, units: float) -> None:
        """Decode time has passed."""
        self._earned += EXPLORATION * units
        self._left = min(BUDGET_CAP, self._left + EXPLORATION * units)

    def spend(self, units: float) -> None:
        """A trial lost this much."""
        self._spent += units
        self._left -= units

    def snapshot(self) -> dict[str, float]:
        """For people."""
        return {"earned_units": self._earned, "spent_units": self._spent, "left_units": self._left}


class PaidDrafter:
    """The process's view of a paid algorithm: cost per drafted token and per token read, acceptance by position."""

    __slots__ = ("draft_cost", "hope", "positions", "read_cost")

    def __init__(self, capabilities: Capabilities) -> None:
        self.draft_cost = capabilities.draft_cost
        self.read_cost = capabilities.read_cost
        self.hope = max(capabilities.grade_priors)
        self.positions = Acceptance([capabilities.expected_acceptance] * MAX_WINDOW)

    def drafted(self, tokens: int, units: float) -> None:
        """A draft of `tokens` tokens cost `units`."""
        if tokens:
            self.draft_cost = COST_MEMORY * self.draft_cost + (1 - COST_MEMORY) * units / tokens

    def read(self, tokens: int, units: float) -> None:
        """Reading `tokens` tokens of history cost `units`."""
        if tokens:
            self.read_cost = COST_MEMORY * self.read_cost + (1 - COST_MEMORY) * units / tokens


class PaidTicket:
    """A paid drafter armed for one request: acceptance by position, and the draft being made."""

    __slots__ = (
        "_best",
        "_expected",
        "_prices",
        "_sequences",
        "_survival",
        "_window",
        "drafter",
        "expected_rate",
        "grades",
        "positions",
        "trial",
    )

    def __init__(self, drafter: PaidDrafter, grades: Posterior) -> None:
        self.drafter = drafter
        self.grades = grades
        self.positions = Posterior(drafter.positions)
        self.trial = False  # the draft being made, or the reading before it, is paid from the budget
        self._prices: list[float] = []
        self._sequences = 1
        self._window = 0
        self.expected_rate = 0.0  # tokens per unit, by the last plan

    def plan(self, prices: PriceList, sequences: int, limit: int, progress: Progress, budget: Budget) -> int:
        """Tokens that may be drafted: `limit` if drafting is expected to pay, fewer as a trial, else 0."""
        self._prices, self._sequences = prices.prices, sequences
        limit = min(limit, prices.most_paid(self.drafter.draft_cost))
        reading = progress.lag * self.drafter.read_cost
        self.trial = False
        window = limit if self._gain(self.positions.mean, limit, progress) > reading else 0
        if not window and limit:
            window = min(limit, TRIAL_TOKENS)
            loss = reading + window * self.drafter.draft_cost + prices.prices[window] - prices.prices[0]
            expected_rate = self.expected_rate
            self.trial = loss <= budget.left and self._gain(self._hope, limit, progress) > loss
            self.expected_rate = expected_rate
            if not self.trial:
                window = 0
        self._window = window
        self._survival, self._expected, self._best = 1.0, float(sequences), 0.0
        return window

    def _hope(self, position: int) -> float:
        """What a trial hopes for: text changes, and what was seen last may be long ago."""
        return self.drafter.hope

    def _gain(self, mean: Callable[[int], float], limit: int, progress: Progress) -> float:
        """Units that drafting saves over what is expected to remain, if tokens are accepted as `mean` says; 0: none."""
        plain = self._prices[0] / self._sequences
        best = plain / GAIN_MARGIN
        expected, survival = float(self._sequences), 1.0
        for k in range(1, limit + 1):
            survival *= mean(k - 1)
            expected += survival
            best = min(best, (self._prices[k] + k * self.drafter.draft_cost) / expected)
        self.expected_rate = 1 / best  # tokens per unit
        more = min(progress.remaining, EXPECTED_MORE + progress.emitted)
        return (plain / GAIN_MARGIN - best) * more

    def keep_going(self, position: int, grade: int) -> bool:
        """The token at `position` has been drafted: does a longer draft promise more per unit than the best so far?"""
        drafted = position + 1
        if self.trial or drafted >= self._window:
            return drafted < self._window
        self._survival *= self.grades.mean(grade)
        self._expected += self._survival
        sunk = drafted * self.drafter.draft_cost
        self._best = max(self._best, self._expected / (self._prices[drafted] + sunk))
        expected, survival = self._expected, self._survival
        for k in range(drafted + 1, self._window + 1):
            survival *= self.positions.mean(k - 1)
            expected += survival
            if expected / (self._prices[k] + k * self.drafter.draft_cost) > self._best:
                return True
        return False
