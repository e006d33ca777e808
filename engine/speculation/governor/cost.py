"""The default governor: each step takes the speculator and the window with the most expected tokens per second.

Tokens are expected by the acceptance of the draft's grades (acceptance.py), seconds by measured prices (pricing.py).
No window is a window of zero, so nothing special parks or resumes a drafter that costs nothing: it drafts where its
match is good enough for this machine, this model and this request. Paid drafters have more to decide (paid.py).
"""

from __future__ import annotations

from collections.abc import Sequence

from ..contract import Capabilities, Score, Scores
from .acceptance import GLOBAL_TRIALS, Acceptance, Posterior
from .contract import CostCurve, Offer, Outcome, Progress, Situation, StepRecord
from .paid import Budget, PaidDrafter, PaidTicket
from .pricing import PriceList, Pricing

MARGIN = 1.03  # speculation must look this much better than plain: prices and acceptance are estimates
DEBT_MARGIN = 0.25  # and this much more per plain step that it has lost on the request so far
RATE_MEMORY = 0.9  # of the mean time per token of verifies, per verify
MAX_DEBT = 16.0
MAX_CREDIT = 2.0  # what it has won protects it only so far
FORGIVENESS = 0.99  # of a debt, per step


class Ticket:
    """One speculator armed for one request."""

    __slots__ = ("balance", "paid", "posterior", "request", "scores_itself")

    def __init__(self, request: str, posterior: Posterior, scores_itself: bool, paid: PaidTicket | None) -> None:
        self.request = request
        self.posterior = posterior
        self.scores_itself = scores_itself
        self.paid = paid
        self.balance = 0.0  # plain steps that speculation has saved (or lost) on the request lately

    @property
    def margin(self) -> float:
        """How much better than plain the next draft must look."""
        return MARGIN - DEBT_MARGIN * self.balance if self.balance < 0.0 else MARGIN

    def settle(self, saved: float) -> None:
        """A step has saved so many plain steps."""
        self.balance = max(-MAX_DEBT, min(MAX_CREDIT, self.balance * FORGIVENESS + saved))


class CostGovernor:
    """See the module. Keeps per algorithm what its grades are worth, and one price book for the target's steps."""

    name = "cost"
    adaptive = True

    def __init__(self, curve: CostCurve) -> None:
        self._pricing = Pricing(curve)
        self._budget = Budget()
        self._acceptance: dict[str, Acceptance] = {}
        self._paid: dict[str, PaidDrafter] = {}
        self._spec_rate: float | None = None  # seconds per token of verifies lately
        self._context = 1

    @property
    def rates(self) -> tuple[float | None, float | None]:
        """A plain step of one request at the machine's present speed, and verifies lately."""
        return self._pricing.unit(self._context), self._spec_rate

    def open(self, capabilities: Capabilities, request: str) -> Ticket:
        """A fresh request's view over the process's."""
        name = capabilities.name
        posterior = Posterior(self._acceptance.setdefault(name, Acceptance(capabilities.grade_priors)))
        paid = None
        if capabilities.paid:
            paid = PaidTicket(self._paid.setdefault(name, PaidDrafter(capabilities)), posterior)
        return Ticket(request, posterior, capabilities.scores_itself, paid)

    def close(self, ticket: Ticket) -> None:
        """Nothing outlives the ticket but what it taught the process."""

    def plan(self, ticket: Ticket, situation: Situation, limit: int, progress: Progress) -> int:
        """A free draft is welcome as far as its rows are affordable; a paid one must be expected to pay."""
        if ticket.paid is None and situation.sequences == 1:
            return limit
        prices = self._pricing.list(situation.sequences, situation.context)
        if ticket.paid is None:
            return min(limit, prices.most)
        return ticket.paid.plan(prices, situation.sequences, limit, progress, self._budget)

    def beats(self, ticket: Ticket, offers: Sequence[Offer], situation: Situation) -> bool:
        """Compares the best rate of the free drafts with what the paid one should reach."""
        if ticket.paid is None:
            return True
        prices = self._pricing.list(situation.sequences, situation.context)
        return ticket.paid.expected_rate > max(self._best_rate(offer, situation, prices) for offer in offers)

    def _best_rate(self, offer: Offer, situation: Situation, prices: PriceList) -> float:
        expected = best = float(situation.sequences)
        for rows, survival in enumerate(self._survivals(offer)[: prices.most], 1):
            expected += survival
            best = max(best, expected / prices.prices[rows])
        return best

    def keep_going(self, ticket: Ticket, position: int, grade: int) -> bool:
        """One more token of a paid draft, if it is worth its step."""
        return ticket.paid is not None and ticket.paid.keep_going(position, grade)

    def choose(self, offers: Sequence[Offer], situation: Situation) -> list[int]:
        """The windows with the most expected tokens per second."""
        if not offers:
            return []
        prices = self._pricing.list(situation.sequences, situation.context)
        if len(offers) == 1:
            return [self._best_window(offers[0], situation, prices)]
        return self._share(offers, situation, prices)

    def _best_window(self, offer: Offer, situation: Situation, prices: PriceList) -> int:
        """One draft alone. Stops where no longer window can be better (PriceList.slopes)."""
        price, slopes = prices.prices, prices.slopes
        sunk = offer.draft.seconds / self._pricing.unit(situation.context) if offer.draft.seconds else 0.0
        mean = offer.ticket.posterior.mean
        grades = offer.draft.grades
        expected = float(situation.sequences)
        best_rate = expected / (price[0] + sunk) * offer.ticket.margin
        if offer.ticket.paid is not None and offer.ticket.paid.trial:
            best_rate = 0.0  # the loss was already granted from the budget
        survival, window = 1.0, 0
        for j in range(min(offer.limit, len(offer.draft.token_ids), prices.most)):
            survival *= mean(grades[j])
            expected += survival
            rate = expected / (price[j + 1] + sunk)
            if rate > best_rate:
                best_rate, window = rate, j + 1
            if survival <= best_rate * slopes[j + 1]:
                break
        return window

    def _share(self, offers: Sequence[Offer], situation: Situation, prices: PriceList) -> list[int]:
        """Several drafts: rows go to the likeliest tokens first, as long as some total looks better than all smaller.

        Of several offers of one request the one expected to yield most is kept; tokens of a draft are in order of
        falling survival, so taking the likeliest first never skips one.
        """
        unit = self._pricing.unit(situation.context)
        sunk = sum(offer.draft.seconds for offer in offers) / unit
        survivals = [self._survivals(offer) for offer in offers]
        kept: dict[str, int] = {}
        for i, offer in enumerate(offers):
            best = kept.get(offer.ticket.request)
            if best is None or sum(survivals[i]) > sum(survivals[best]):
                kept[offer.ticket.request] = i
        ranked = sorted(((s, -j, i) for i in kept.values() for j, s in enumerate(survivals[i])), reverse=True)
        windows, chosen = [0] * len(offers), [0] * len(offers)
        expected = float(situation.sequences)
        best_rate = expected / (prices.prices[0] + sunk) * max(o.ticket.margin for o in offers)
        for rows, (survival, _, i) in enumerate(ranked[: prices.most], 1):
            expected += survival
            windows[i] += 1
            rate = expected / (prices.prices[rows] + sunk)
            if rate > best_rate:
                best_rate, chosen = rate, windows.copy()
            if survival <= best_rate * prices.slopes[rows]:
                break
        return chosen

    @staticmethod
    def _survivals(offer: Offer) -> list[float]:
        survivals: list[float] = []
        survival = 1.0
        for j in range(min(offer.limit, len(offer.draft.token_ids))):
            survival *= offer.ticket.posterior.mean(offer.draft.grades[j])
            survivals.append(survival)
        return survivals

    def observe(self, ticket: Ticket, scores: Scores) -> None:
        """Shadow scores teach the request's posterior; emitted tokens teach the process too."""
        if scores.prompt:
            ticket.posterior.observe_prompt(scores.prompt)
        if scores.output:
            ticket.posterior.observe(scores.output)

    def caught_up(self, ticket: Ticket, tokens: int, seconds: float) -> None:
        """Reading history has a price too, for drafters that pay for it."""
        if ticket.paid is None:
            return
        units = seconds / self._pricing.unit(self._context)
        ticket.paid.drafter.read(tokens, units)
        if ticket.paid.trial:
            self._budget.spend(units)

    def served_elsewhere(self, steps: int) -> None:
        """Nothing to do: prices keep, and drafters lag by themselves."""

    def record(self, step: StepRecord) -> None:
        """Prices learn from the step's time without drafting, paid drafters from their outcomes."""
        self._context = step.context
        for outcome in step.outcomes:
            if outcome.draft is not None and (outcome.draft.token_ids or outcome.draft.seconds):
                self._record_drafted(step)
                return
        self._pricing.record(step, step.seconds)  # nobody drafted: most steps of free text
        if self._paid:
            self._budget.earn(step.seconds / self._pricing.unit(step.context))
        for outcome in step.outcomes:
            outcome.ticket.balance *= FORGIVENESS ** max(1, len(step.times))

    def _record_drafted(self, step: StepRecord) -> None:
        drafting = sum([outcome.draft.seconds for outcome in step.outcomes if outcome.draft is not None])
        if step.verified and step.tokens:
            rate = step.seconds / step.tokens
            self._spec_rate = (
                rate if self._spec_rate is None else RATE_MEMORY * self._spec_rate + (1 - RATE_MEMORY) * rate
            )
        self._pricing.record(step, step.seconds - drafting)
        if self._paid:
            self._budget.earn(step.seconds / self._pricing.unit(step.context))
        self._settle(step)
        for outcome in step.outcomes:
            if outcome.draft is not None and outcome.draft.token_ids:
                self._learn(outcome, step)

    def _settle(self, step: StepRecord) -> None:
        """Each request's account: tokens gained, less its share of the rows' price and what drafting cost."""
        prices = self._pricing.list(step.sequences, step.context).prices
        extra = min(step.rows - step.sequences, len(prices) - 1)
        per_row = (prices[extra] - prices[0]) / extra if extra else 0.0
        for outcome in step.outcomes:
            saved = outcome.accepted - outcome.window * per_row
            if outcome.draft is not None and outcome.draft.seconds:
                saved -= outcome.draft.seconds / self._pricing.unit(step.context)
            outcome.ticket.settle(saved)

    def _learn(self, outcome: Outcome, step: StepRecord) -> None:
        """From a draft that was made: what grades do not score themselves, and what a paid one cost and brought."""
        assert outcome.draft is not None
        ticket: Ticket = outcome.ticket
        paid = ticket.paid
        if paid is None and ticket.scores_itself:
            return
        scores = graded(outcome)
        if not ticket.scores_itself:
            ticket.posterior.observe(scores)
        if paid is None:
            return
        cost = outcome.draft.seconds / self._pricing.unit(step.context)
        paid.drafter.drafted(len(outcome.draft), cost)
        paid.positions.observe([(position, trials, hits) for position, (_, trials, hits) in enumerate(scores)])
        if paid.trial:
            prices = self._pricing.list(step.sequences, step.context).prices
            self._budget.spend(max(0.0, cost + prices[outcome.window] - prices[0] - outcome.accepted))

    def snapshot(self) -> dict[str, object]:
        """Prices, posterior means and seconds per token of both kinds of steps."""
        return {
            "cost": self._pricing.table(1, self._context),
            "acceptance": {name: process.summary() for name, process in self._acceptance.items()},
            "prior_trials": GLOBAL_TRIALS,
            "plain_seconds_per_token": self.rates[0],
            "spec_seconds_per_token": self.rates[1],
            "exploration": self._budget.snapshot(),
        }


def graded(outcome: Outcome) -> list[Score]:
    """Outcomes by grade of a verified draft: accepted tokens, and the first rejected one. What follows is unknown."""
    assert outcome.draft is not None
    judged = min(outcome.accepted + 1, outcome.window)
    return [(outcome.draft.grades[j], 1, int(j < outcome.accepted)) for j in range(judged)]
