"""The engine's metrics. Tallies are plain numbers, written by the engine thread only and read when somebody scrapes.

prometheus_client's own counters take a lock and a microsecond each; a step with 16 streams would pay for 40 of them.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from ..kernels.backend import NativeTime

LATENCY = (
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
    60.0,
    120.0,
    300.0,
    600.0,
)
STEP = (0.0005, 0.001, 0.002, 0.004, 0.008, 0.015, 0.03, 0.06, 0.12, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)
KINDS = ("decode", "mixed", "prefill")  # of steps, see Plan.kind
PREFIX = "surefoot_"


class Tally:
    """A histogram: counts per bucket and a sum."""

    __slots__ = ("_bucket", "_value", "bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = array("d", bounds)  # arrays: a step comes with cold caches and should touch few lines
        self.counts = array("q", bytes(8 * (len(bounds) + 1)))
        self.total = 0.0
        self._value = -1.0  # the last one, and where it belongs: streams that share steps have the same gaps
        self._bucket = 0

    def observe(self, value: float, times: int = 1) -> None:
        """Adds `times` observations of the same value."""
        if value != self._value:
            self._value = value
            self._bucket = bisect_left(self.bounds, value)
        self.counts[self._bucket] += times
        self.total += value * times

    @property
    def count(self) -> int:
        """Observations so far."""
        return sum(self.counts)

    def buckets(self) -> list[tuple[str, float]]:
        """Cumulative counts by upper bound, as the exposition format wants them."""
        cumulative, result = 0, list[tuple[str, float]]()
        for bound, count in zip((*self.bounds, float("inf")), self.counts, strict=True):
            cumulative += count
            result.append(("+Inf" if bound == float("inf") else str(float(bound)), cumulative))
        return result


class TurnTimes:
    """What turns of the engine thread took, from the inbox to the last output handed out, by who had the time."""

    __slots__ = ("native", "python", "waiting")

    def __init__(self) -> None:
        self.native = 0.0
        self.waiting = 0.0  # for the GIL, when native code had ended
        self.python = 0.0  # the rest

    def add(self, seconds: float, before: NativeTime, after: NativeTime) -> None:
        """A turn, and the backend's clock before and after it."""
        native, waiting = after.running - before.running, after.waiting - before.waiting
        self.native += native
        self.waiting += waiting
        self.python += seconds - native - waiting


class Levels(NamedTuple):
    """What others count, read when somebody scrapes."""

    running: int = 0
    waiting: int = 0
    preemptions: int = 0
    queried_tokens: int = 0
    hit_tokens: int = 0
    blocks: Sequence[tuple[str, str, int]] = ()  # (group, state, count)


class Metrics(Collector):
    """Everything the engine counts, and the registry that shows it."""

    def __init__(self, registry: CollectorRegistry, read_levels: Callable[[], Levels] = Levels) -> None:
        self.requests: dict[str, int] = {}  # by finish reason
        self.prompt_tokens = 0
        self.generation_tokens = 0
        self.prescribed_tokens = 0
        self.embedding_tokens = 0
        self.step_faults = 0
        self.cache_resets = 0
        self.reset_blocks = 0
        self.first_token = Tally(LATENCY)
        self.inter_token = Tally(LATENCY)
        self.whole_request = Tally(LATENCY)
        self.queue = Tally(LATENCY)
        self.step_rows = Tally(ROWS)
        self.step_seconds: dict[str, Tally] = {kind: Tally(STEP) for kind in KINDS}
        self.turn_seconds: dict[str, TurnTimes] = {kind: TurnTimes() for kind in KINDS}
        self._read_levels = read_levels
        registry.register(self)

    def finished(self, reason: str) -> None:
        """A request ended."""
        self.requests[reason] = self.requests.get(reason, 0) + 1

    def collect(self) -> Iterator[Metric]:
        """The families of one scrape."""
        requests = CounterMetricFamily(f"{PREFIX}requests", "Requests ended, by reason.", labels=["finish_reason"])
        for reason, count in list(self.requests.items()):
            requests.add_metric([reason], count)
        yield requests
        levels = self._read_levels()
        yield from self._counters(levels)
        yield GaugeMetricFamily(f"{PREFIX}requests_running", "Requests being computed.", levels.running)
        yield GaugeMetricFamily(f"{PREFIX}requests_waiting", "Requests in the queue.", levels.waiting)
        blocks = GaugeMetricFamily(
            f"{PREFIX}kv_blocks", "KV blocks of 32 positions, by group and state.", labels=["group", "state"]
        )
        for group, state, count in levels.blocks:
            blocks.add_metric([group, state], count)
        yield blocks
        yield from self._histograms()

    def _counters(self, levels: Levels) -> Iterator[Metric]:
        for name, text, value in (
            ("prompt_tokens", "Prompt tokens of started requests, cached ones included.", self.prompt_tokens),
            ("generation_tokens", "Tokens generated.", self.generation_tokens),
            (
                "grammar_prescribed_tokens",
                "Generated tokens that a grammar prescribed and that came from a shared step.",
                self.prescribed_tokens,
            ),
            ("embedding_tokens", "Tokens of texts whose embedding was given.", self.embedding_tokens),
            ("prefix_cache_query_tokens", "Prompt tokens looked up in the prefix cache.", levels.queried_tokens),
            ("prefix_cache_hit_tokens", "Prompt tokens found in the prefix cache.", levels.hit_tokens),
            ("prefix_cache_resets", "Times that the prefix cache was reset.", self.cache_resets),
            ("prefix_cache_reset_blocks", "KV blocks that resets freed.", self.reset_blocks),
            ("preemptions", "Requests preempted because blocks ran out; they are recomputed.", levels.preemptions),
            ("step_faults", "Steps that failed and were run again request by request.", self.step_faults),
        ):
            yield CounterMetricFamily(PREFIX + name, text, value)
        yield self._turns()

    def _turns(self) -> Metric:
        turns = CounterMetricFamily(
            f"{PREFIX}engine_turn_seconds",
            "Time of the engine thread per step, in native code, waiting for the GIL after it, and in Python.",
            labels=["kind", "part"],
        )
        for kind, times in self.turn_seconds.items():
            turns.add_metric([kind, "native"], times.native)
            turns.add_metric([kind, "gil_wait"], times.waiting)
            turns.add_metric([kind, "python"], times.python)
        return turns

    def _histograms(self) -> Iterator[Metric]:
        for name, text, tally in (
            ("time_to_first_token_seconds", "From submission to the first token.", self.first_token),
            (
                "inter_token_latency_seconds",
                "Time per token after the first, one observation per token.",
                self.inter_token,
            ),
            ("e2e_request_latency_seconds", "From submission to the end.", self.whole_request),
            ("queue_seconds", "From submission to the first scheduled row.", self.queue),
            ("step_rows", "Rows per step.", self.step_rows),
        ):
            yield HistogramMetricFamily(PREFIX + name, text, buckets=tally.buckets(), sum_value=tally.total)
        steps = HistogramMetricFamily(f"{PREFIX}step_seconds", "Duration of a step, by kind.", labels=["kind"])
        for kind, tally in self.step_seconds.items():
            steps.add_metric([kind], buckets=tally.buckets(), sum_value=tally.total)
        yield steps
