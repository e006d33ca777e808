"""The engine's metrics. Tallies are plain numbers, written by the engine thread only and read when somebody scrapes.

prometheus_client's own counters take a lock and a microsecond each; a step with 16 streams would pay for 40 of them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

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
PREFIX = "surefoot_"


class Tally:
    """A histogram: counts per bucket and a sum."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Adds `times` observations of the same value."""
        self.counts[bisect_left(self.bounds, value)] += times
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


class Metrics(Collector):
    """Everything the engine counts, and the registry that shows it. `gauges` are read at scrape time."""

    def __init__(self, registry: CollectorRegistry, block_states: Callable[[], Iterable[tuple[str, str, int]]]) -> None:
        self.requests: dict[str, int] = {}  # by finish reason
        self.prompt_tokens = 0
        self.generation_tokens = 0
        self.running = 0
        self.waiting = 0
        self.queried_tokens = 0
        self.hit_tokens = 0
        self.preemptions = 0
        self.step_faults = 0
        self.first_token = Tally(LATENCY)
        self.inter_token = Tally(LATENCY)
        self.whole_request = Tally(LATENCY)
        self.queue = Tally(LATENCY)
        self.step_rows = Tally(ROWS)
        self.step_seconds: dict[str, Tally] = {kind: Tally(STEP) for kind in ("decode", "mixed", "prefill")}
        self._block_states = block_states
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
        yield from self._counters()
        yield GaugeMetricFamily(f"{PREFIX}requests_running", "Requests being computed.", self.running)
        yield GaugeMetricFamily(f"{PREFIX}requests_waiting", "Requests in the queue.", self.waiting)
        blocks = GaugeMetricFamily(
            f"{PREFIX}kv_blocks", "KV blocks of 32 positions, by group and state.", labels=["group", "state"]
        )
        for group, state, count in self._block_states():
            blocks.add_metric([group, state], count)
        yield blocks
        yield from self._histograms()

    def _counters(self) -> Iterator[Metric]:
        for name, text, value in (
            ("prompt_tokens", "Prompt tokens of started requests, cached ones included.", self.prompt_tokens),
            ("generation_tokens", "Tokens generated.", self.generation_tokens),
            ("prefix_cache_query_tokens", "Prompt tokens looked up in the prefix cache.", self.queried_tokens),
            ("prefix_cache_hit_tokens", "Prompt tokens found in the prefix cache.", self.hit_tokens),
            ("preemptions", "Requests preempted because blocks ran out; they are recomputed.", self.preemptions),
            ("step_faults", "Steps that failed and were run again request by request.", self.step_faults),
        ):
            yield CounterMetricFamily(PREFIX + name, text, value)

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
