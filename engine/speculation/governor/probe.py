"""Probe and park: measure speculative steps, then plain ones, and draft only while speculation does not lose.

One verdict for all requests and all windows, reached in rounds: 8 speculative steps (3 while a loss is outstanding),
then 3 plain ones, the first of each thrown away. Speculation wins while its time per token is at most 1.15 of plain's.
A win holds for 64 steps but is watched over its last 8 speculative ones; a loss parks, longer each time. Kept for
comparison with `cost`, and because it is easy to understand.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from ..contract import Capabilities, Scores
from .contract import Offer, Progress, Situation, StepRecord
from .off import first_of_each

FULL_PROBE = 8  # measured speculative steps of a round when no loss is outstanding
RE_PROBE = 3  # and when one is
CALIBRATION = 3  # measured plain steps of a round, after the probe
ZERO_ACCEPT_CUT = 4  # a full probe whose first steps accepted nothing is a loss at once
FIRST_PARK = 32  # steps
MAX_PARK = 256
WIN_HOLD = 64  # steps of any kind until the next round
HOLD_WINDOW = 8  # last speculative steps of a hold that must not lose
WIN_MARGIN = 1.15


class _Sample(NamedTuple):
    """A measured step."""

    seconds: float
    tokens: int
    gained: bool  # more tokens than sequences


class _Round:
    """Samples of the round in progress."""

    __slots__ = ("plain", "plain_skipped", "spec", "spec_skipped")

    def __init__(self) -> None:
        self.spec: list[_Sample] = []
        self.plain: list[_Sample] = []
        self.spec_skipped = False
        self.plain_skipped = False

    def add(self, speculative: bool, sample: _Sample) -> None:
        """The first sample of each kind pays for warming up and is not measured."""
        if speculative and not self.spec_skipped:
            self.spec_skipped = True
        elif not speculative and not self.plain_skipped:
            self.plain_skipped = True
        else:
            (self.spec if speculative else self.plain).append(sample)

    def spec_seconds_per_token(self) -> float:
        """Ratio of sums, without the worst sample if that lowers it: one hiccup must not park a good drafter."""
        everything = _per_token(self.spec)
        if len(self.spec) < 2:
            return everything
        worst = max(range(len(self.spec)), key=lambda i: self.spec[i].seconds / self.spec[i].tokens)
        return min(everything, _per_token(self.spec[:worst] + self.spec[worst + 1 :]))


class ProbeGovernor:
    """See the module. Counts steps, not tokens; a step speculates if any of its requests was asked to draft."""

    name = "probe"
    adaptive = False

    def __init__(self) -> None:
        self._park = 0
        self._park_is_new = False
        self._hold = 0
        self._losses = 0
        self._winning = True
        self._round = _Round()
        self._recent: deque[_Sample] = deque(maxlen=HOLD_WINDOW)
        self._parked_plain: tuple[float, int] = (0.0, 0)
        self._new_request = True
        self._plain: float | None = None  # seconds per token of the last calibration or park
        self._spec: float | None = None
        self._counts = {"wins": 0, "losses": 0, "parked_steps": 0}

    @property
    def rates(self) -> tuple[float | None, float | None]:
        """Of the last calibration or park, and of the last probe or hold."""
        return self._plain, self._spec

    def open(self, capabilities: Capabilities, request: str) -> str:
        """A new request shortens what is left of a park and forgets the back-off, so its text gets a trial of its own:
        another loss parks for the first interval again. One loss is remembered, so that trial is the short one."""
        self._park = min(self._park, FIRST_PARK)
        self._losses = min(self._losses, 1)
        self._new_request = True
        self._round = _Round()
        return request

    def close(self, ticket: str) -> None:
        """Verdicts outlive requests."""

    @property
    def _quota(self) -> int:
        return RE_PROBE if self._losses else FULL_PROBE

    def _may_draft(self) -> bool:
        if self._park:
            return False
        if self._hold:
            return self._winning
        if len(self._round.spec) < self._quota:
            return True
        return False if len(self._round.plain) < CALIBRATION else self._winning

    def plan(self, ticket: str, situation: Situation, limit: int, progress: Progress) -> int:
        """The whole window, or nothing."""
        return limit if self._may_draft() else 0

    def beats(self, ticket: str, offers: Sequence[Offer], situation: Situation) -> bool:
        """No: a draft in hand is enough."""
        return False

    def keep_going(self, ticket: str, position: int, grade: int) -> bool:
        """Always; the window ends a draft."""
        return True

    def choose(self, offers: Sequence[Offer], situation: Situation) -> list[int]:
        """The whole of each draft."""
        return first_of_each(offers)

    def observe(self, ticket: str, scores: Scores) -> None:
        """Not needed: this rule learns from time alone."""

    def caught_up(self, ticket: str, tokens: int, seconds: float) -> None:
        """Not part of the rule."""

    def served_elsewhere(self, steps: int) -> None:
        """Steps of a batch pass the time of a park, then of a hold."""
        parked = min(self._park, steps)
        self._park -= parked
        self._hold -= min(self._hold, steps - parked)

    def record(self, step: StepRecord) -> None:
        """A drafter that was asked and had nothing to propose made a speculative step of one token: its step ran the
        speculative path, and charging it to the plain side would inflate the baseline of every verdict."""
        if step.prefill_rows or not step.outcomes:
            return
        speculative = any(outcome.asked for outcome in step.outcomes)
        if not step.times:
            self._record(speculative, _Sample(step.seconds, step.tokens, step.tokens > step.sequences))
        for seconds in step.times:
            self._record(speculative, _Sample(seconds, step.sequences, gained=False))

    def _record(self, speculative: bool, sample: _Sample) -> None:
        if self._park:
            self._record_parked(sample)
        elif self._hold:
            self._record_held(speculative, sample)
        else:
            self._round.add(speculative, sample)
            self._judge()

    def _record_parked(self, sample: _Sample) -> None:
        """Parked steps renew the plain baseline, all but the first of a park."""
        self._park -= 1
        self._counts["parked_steps"] += 1
        if self._park_is_new:
            self._park_is_new = False
            self._parked_plain = (0.0, 0)
            return
        seconds, tokens = self._parked_plain
        self._parked_plain = (seconds + sample.seconds, tokens + sample.tokens)
        self._plain = self._parked_plain[0] / self._parked_plain[1]

    def _record_held(self, speculative: bool, sample: _Sample) -> None:
        self._hold -= 1
        if not speculative or self._plain is None:
            return
        self._recent.append(sample)
        if len(self._recent) < HOLD_WINDOW:
            return
        self._spec = _per_token(list(self._recent))
        if self._spec > self._plain * WIN_MARGIN:
            self._lose()

    def _judge(self) -> None:
        spec = self._round.spec
        if self._quota == FULL_PROBE and len(spec) == ZERO_ACCEPT_CUT and not any(s.gained for s in spec):
            self._spec = self._round.spec_seconds_per_token()
            self._lose()
        elif len(spec) >= self._quota and len(self._round.plain) >= CALIBRATION:
            self._spec = self._round.spec_seconds_per_token()
            self._plain = _per_token(self._round.plain)
            if self._spec <= self._plain * WIN_MARGIN:
                self._win()
            else:
                self._lose()

    def _win(self) -> None:
        self._counts["wins"] += 1
        self._losses = 0
        self._winning = True
        self._hold = WIN_HOLD
        self._new_request = False
        self._start_round()

    def _lose(self) -> None:
        """Parks 32, 64, 128, 256 steps; a loss right after a new request parks 32 whatever was remembered."""
        self._counts["losses"] += 1
        self._losses = 1 if self._new_request else self._losses + 1
        self._new_request = False
        self._winning = False
        self._hold = 0
        self._park = min(MAX_PARK, FIRST_PARK << min(self._losses - 1, 5))
        self._park_is_new = True
        self._start_round()

    def _start_round(self) -> None:
        self._round = _Round()
        self._recent.clear()

    def snapshot(self) -> dict[str, object]:
        """State and counters."""
        return {
            **self._counts,
            "state": "parked" if self._park else "holding" if self._hold else "probing",
            "park_left": self._park,
            "hold_left": self._hold,
            "plain_seconds_per_token": self._plain,
            "spec_seconds_per_token": self._spec,
        }


def _per_token(samples: Sequence[_Sample]) -> float:
    return sum(s.seconds for s in samples) / sum(s.tokens for s in samples)
