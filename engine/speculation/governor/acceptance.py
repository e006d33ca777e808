"""How likely a drafted token is to be accepted, by grade: what a request showed, over what all requests showed, over
what the algorithm's author expected. Each level counts as a fixed number of trials of the next.

A request sees few trials of most grades, so it also has a tilt, the one number that all its grades share: how much
better or worse than expected its text drafts, in odds. A quote that comes after prose shows in the tilt at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, log

from ..contract import Score

# Values are those that make recorded answers most likely, token by token, each judged by what was known before it.
PRIOR_TRIALS = 20.0  # what the author's expectation weighs against the process's trials
GLOBAL_TRIALS = 10.0  # what the process's mean weighs against the request's trials
GLOBAL_DECAY = 0.999  # per trial: the process remembers about a thousand trials of a grade
REQUEST_DECAY = 0.97  # per trial: a request remembers about thirty
FULL_WEIGHT_TRIALS = (
    8.0  # of a grade in a request; later ones teach the process less, lest one long loop speaks for all
)
TILT_GAIN = 0.07  # of the tilt's logarithm, per trial and unit of surprise
TILT_DECAY = 0.99  # per trial
MAX_TILT = 2.0
PROMPT_WEIGHT = 0.25  # of a trial judged by a prompt token, which somebody else wrote


class Acceptance:
    """The process's view of one algorithm's grades."""

    __slots__ = ("_hits", "_priors", "_trials", "means")

    def __init__(self, priors: Sequence[float]) -> None:
        self._priors = tuple(priors)
        self._trials = [0.0] * len(priors)
        self._hits = [0.0] * len(priors)
        self.means = list(priors)

    def observe(self, grade: int, trials: float, hits: float) -> None:
        """Adds trials of one grade."""
        decay = GLOBAL_DECAY**trials
        trials += self._trials[grade] * decay
        hits += self._hits[grade] * decay
        self._trials[grade] = trials
        self._hits[grade] = hits
        self.means[grade] = (hits + PRIOR_TRIALS * self._priors[grade]) / (trials + PRIOR_TRIALS)

    def summary(self) -> list[dict[str, float]]:
        """Per grade with trials: remembered trials and mean acceptance."""
        return [
            {"grade": grade, "trials": round(trials, 1), "acceptance": round(self.means[grade], 4)}
            for grade, trials in enumerate(self._trials)
            if trials
        ]


class Posterior:
    """A request's view, over the process's."""

    __slots__ = ("_hits", "_log_tilt", "_process", "_seen", "_tilt", "_trials")

    def __init__(self, process: Acceptance) -> None:
        self._process = process
        self._log_tilt = 0.0
        self._tilt = 1.0
        self._seen = [0] * len(process.means)  # trials, none forgotten
        self._trials = [0.0] * len(process.means)
        self._hits = [0.0] * len(process.means)

    def mean(self, grade: int) -> float:
        """Expected acceptance of a token of `grade`, the tokens before it having been accepted."""
        mean = (self._hits[grade] + GLOBAL_TRIALS * self._process.means[grade]) / (self._trials[grade] + GLOBAL_TRIALS)
        tilted = mean * self._tilt
        return tilted / (tilted + 1.0 - mean)

    def observe(self, scores: Sequence[Score]) -> None:
        """Outcomes judged by emitted tokens: they teach the request and the process."""
        for grade, trials, hits in scores:
            decay = REQUEST_DECAY**trials
            self._lean(trials, hits - trials * self.mean(grade))
            self._trials[grade] = self._trials[grade] * decay + trials
            self._hits[grade] = self._hits[grade] * decay + hits
            seen = FULL_WEIGHT_TRIALS + self._seen[grade]
            self._seen[grade] += trials
            counted = FULL_WEIGHT_TRIALS * log((seen + trials) / seen)
            self._process.observe(grade, counted, counted * hits / trials)

    def _lean(self, trials: int, surprise: float) -> None:
        leaning = self._log_tilt * TILT_DECAY**trials + TILT_GAIN * surprise
        self._log_tilt = max(-MAX_TILT, min(MAX_TILT, leaning))
        self._tilt = exp(self._log_tilt)

    def observe_prompt(self, scores: Sequence[Score]) -> None:
        """Outcomes judged by the prompt's tokens: they teach the request, at part of their weight, and nobody else."""
        for grade, trials, hits in scores:
            decay = REQUEST_DECAY**trials
            self._trials[grade] = self._trials[grade] * decay + PROMPT_WEIGHT * trials
            self._hits[grade] = self._hits[grade] * decay + PROMPT_WEIGHT * hits
