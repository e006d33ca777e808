"""Replays recorded answers under any policy and governor, and says what each would have cost.

What a request emits does not depend on speculation, so a recorded plain run is an exact counterfactual for algorithms
that draft from the text alone: the real session, speculator and governor run over it, and only the target is simulated.
A step costs what the given prices say; its draws are the recorded tokens.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...kernels.sampling import SamplingSpec
from .armed import Tracked
from .contract import MAX_WINDOW, DraftHead, Verdict
from .governor.contract import CostCurve
from .ngram import COLD_START
from .policy import NO_WISHES, SpeculationPolicy
from .registry import Registry, Resources
from .session import SpeculationSession


@dataclass(frozen=True, slots=True)
class Trace:
    """A recorded request."""

    kind: str  # class of text
    prompt: Sequence[int]
    output: Sequence[int]


@dataclass(frozen=True, slots=True)
class Prices:
    """Seconds of steps: `rows(n)` plain units for n rows of one sequence, times `unit` seconds, times noise that is the
    same for every policy only in distribution. A curve whose shape is off by `bias` can be shown to the governor."""

    rows: Callable[[int], float]
    unit: float = 0.01
    noise: float = 0.0  # standard deviation of the logarithm

    def seconds(self, rows: int, sequences: int, context: int) -> float:
        """As a CostCurve."""
        return self.unit * self.rows(rows)


class SimulatedTarget:
    """A target without a model."""

    def __init__(self, vocab_size: int) -> None:
        self.name = "replay"
        self.vocab_size = vocab_size
        self.hidden_size = 0
        self.verdict = Verdict()
        self.taps: tuple[str, ...] = ()
        self.hidden_tap: str | None = None
        self.draft_head: DraftHead | None = None


class SimulatedSequence:
    """A recorded request being emitted again."""

    def __init__(self, name: str, trace: Trace) -> None:
        self.request_id = name
        self.tokens = [*trace.prompt, trace.output[0]]  # the prefill has drawn the first token
        self.num_prompt = len(trace.prompt)
        self.max_length = self.num_prompt + len(trace.output)
        self.num_computed = self.num_prompt
        self.draft_window = 0
        self.speculation: Tracked | None = None
        self.wishes = NO_WISHES
        self.cache_salt = b""
        self.sampling = SamplingSpec(seed=0, temperature=0.0)
        self.sampler: Any = None
        self.matcher = None


@dataclass(frozen=True, slots=True)
class PlannedEntry:
    """What the scheduler would plan with unlimited blocks."""

    sequence: SimulatedSequence
    window: int


@dataclass(slots=True)
class Run:
    """What one request cost under a policy. `windows[i]` was verified at output position `positions[i]`."""

    seconds: float = 0.0
    steps: int = 0
    positions: list[int] = field(default_factory=list[int])
    windows: list[int] = field(default_factory=list[int])
    accepted: list[int] = field(default_factory=list[int])


class Replayer:
    """One session, one simulated machine, any number of requests one after the other."""

    def __init__(
        self,
        prices: Prices,
        policy: SpeculationPolicy,
        *,
        curve: CostCurve | None = None,
        registry: Registry | None = None,
        resources: Resources | None = None,
        vocab_size: int = 1 << 30,
        seed: int = 0,
    ) -> None:
        self._now = 0.0
        self._prices = prices
        self._random = random.Random(seed)
        self._served = 0
        self.session = SpeculationSession(
            SimulatedTarget(vocab_size), curve or prices, lambda: self._now, policy, registry, resources
        )

    def run(self, trace: Trace, crowded: range = range(0)) -> Run:
        """Emits the trace's output and returns what that took. At output positions in `crowded` others run too."""
        sequence = SimulatedSequence(f"replay-{self._served}", trace)
        self._served += 1
        run = Run()
        end = sequence.max_length
        while len(sequence.tokens) < end:
            others = len(sequence.tokens) - sequence.num_prompt in crowded
            self._step(sequence, trace.output, run, others)
        self.session.release(sequence)
        return run

    def _step(self, sequence: SimulatedSequence, output: Sequence[int], run: Run, crowded: bool) -> None:
        session = self.session
        session.prepare((sequence,), crowded)
        drafts = session.draft((PlannedEntry(sequence, sequence.draft_window),))
        draft = drafts[0] if drafts else ()
        emitted = len(sequence.tokens) - sequence.num_prompt
        hits = 0
        while hits < len(draft) and draft[hits] == output[emitted + hits]:
            hits += 1
        rows = 1 + len(draft)
        seconds = self._prices.seconds(rows, 1, len(sequence.tokens)) * self._noise()
        self._now += seconds
        start = sequence.num_computed
        sequence.tokens += output[emitted : emitted + hits + 1]
        sequence.num_computed = start + 1 + hits
        session.accepted(sequence, start, hits)
        session.finish(1, rows, 0)
        run.seconds += seconds
        run.steps += 1
        run.positions.append(emitted)
        run.windows.append(len(draft))
        run.accepted.append(hits)

    def _noise(self) -> float:
        return self._random.lognormvariate(0.0, self._prices.noise) if self._prices.noise else 1.0


# --- what cannot be beaten, and what hindsight would have chosen -----------------------------------------------------


@dataclass(frozen=True, slots=True)
class Opportunity:
    """At an output position: the best match's length (None: no draft) and how many of its tokens would be right."""

    match: int | None
    accepted: int


def opportunities(trace: Trace, index: Callable[[int], Any]) -> list[Opportunity]:
    """What the n-gram drafter would have had at every output position but the first, however it was governed."""
    ids = [*trace.prompt, *trace.output]
    start = len(trace.prompt) + 1
    table = index(len(ids))
    unscored = max(0, start - 1 - COLD_START)
    table.extend(ids, 0, unscored)
    table.advance(ids, unscored, start - 1)
    found: list[Opportunity] = []
    for position in range(start, len(ids)):
        table.advance(ids, position - 1, position)
        draft, match, _ = table.draft(MAX_WINDOW)
        hits = 0
        while hits < len(draft) and position + hits < len(ids) and draft[hits] == ids[position + hits]:
            hits += 1
        found.append(Opportunity(match if draft else None, hits))
    return found


def plain_units(chances: Sequence[Opportunity], prices: Prices) -> float:
    """One step per token."""
    return len(chances) * prices.rows(1)


def fixed_units(chances: Sequence[Opportunity], prices: Prices, window: int, match: int) -> float:
    """Always the same window, where the match has at least `match` tokens."""
    position, units = 0, 0.0
    while position < len(chances):
        chance = chances[position]
        size = min(window, len(chances) - position - 1) if chance.match is not None and chance.match >= match else 0
        units += prices.rows(1 + size)
        position += 1 + min(size, chance.accepted)
    return units


def clairvoyant_units(chances: Sequence[Opportunity], prices: Prices) -> float:
    """The least that any choice of windows could have cost, knowing the future: an exact lower bound."""
    best = [0.0] * (len(chances) + 1)
    for position in range(len(chances) - 1, -1, -1):
        most = min(chances[position].accepted, len(chances) - position - 1, MAX_WINDOW)
        best[position] = min(prices.rows(1 + k) + best[position + 1 + k] for k in range(most + 1))
    return best[0]


WINDOWS = (1, 2, 3, 4, 5, 7, 11, 15, 23, 31, 63)
MATCHES = (0, 2, 3, 4, 5, 6, 8, 12)


def best_fixed(
    group: Sequence[Sequence[Opportunity]], prices: Prices, matches: Sequence[int] = (0,)
) -> tuple[float, int, int]:
    """(units, window, match) of the best fixed setting over a group of requests, in hindsight; window 0 is plain."""
    plain = (sum(plain_units(chances, prices) for chances in group), 0, 0)
    settings = [(window, match) for window in WINDOWS for match in matches]
    return min(
        plain, *((sum(fixed_units(c, prices, w, m) for c in group), w, m) for w, m in settings), key=lambda x: x[0]
    )
