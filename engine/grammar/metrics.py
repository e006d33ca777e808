"""What grammars cost and how often they are asked for, as counters and in /metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from ..metrics import LATENCY, PREFIX, Tally

KNOWN, JOINED, NEW, BUSY = "known", "joined", "new", "busy"


@dataclass(slots=True)
class GrammarCounts:
    """Since the process started. Those of compiling are written under the compiler's lock, the last three by the engine
    thread; a scrape reads them as they are."""

    asked: Counter[str] = field(default_factory=Counter[str])  # by how it was met: KNOWN, ...
    compiled: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])  # by kind and outcome
    compile_seconds: Tally = field(default_factory=lambda: Tally(LATENCY))
    faults: int = 0  # answers that ended because their grammar gave up
    mask_rows: int = 0
    mask_seconds: float = 0.0


class GrammarMetrics(Collector):
    """Shows the counts, and the grammars that are kept: `read_kept` gives their number and estimated bytes."""

    def __init__(
        self, registry: CollectorRegistry, counts: GrammarCounts, read_kept: Callable[[], tuple[int, int]]
    ) -> None:
        self._counts = counts
        self._read_kept = read_kept
        registry.register(self)

    def collect(self) -> Iterator[Metric]:
        """The families of one scrape."""
        counts = self._counts
        asked = CounterMetricFamily(
            f"{PREFIX}grammar_requests",
            "Constraints asked for: known already, in work for another request, new, or refused because too many are.",
            labels=["result"],
        )
        for result in (KNOWN, JOINED, NEW, BUSY):
            asked.add_metric([result], counts.asked[result])
        yield asked
        compiled = CounterMetricFamily(
            f"{PREFIX}grammar_compilations", "Constraints compiled, by kind and outcome.", labels=["kind", "outcome"]
        )
        for labels, count in list(counts.compiled.items()):
            compiled.add_metric(labels, count)
        yield compiled
        tally = counts.compile_seconds
        yield HistogramMetricFamily(
            f"{PREFIX}grammar_compile_seconds",
            "Time to compile and try out a constraint.",
            buckets=tally.buckets(),
            sum_value=tally.total,
        )
        for name, text, value in (
            ("grammar_faults", "Answers that ended because their grammar became too complex.", counts.faults),
            ("grammar_mask_rows", "Rows of logits that were masked.", counts.mask_rows),
            ("grammar_mask_seconds", "Time of the engine thread to find their masks.", counts.mask_seconds),
        ):
            yield CounterMetricFamily(PREFIX + name, text, value)
        number, size = self._read_kept()
        yield GaugeMetricFamily(f"{PREFIX}grammar_cached", "Compiled constraints and refusals that are kept.", number)
        yield GaugeMetricFamily(f"{PREFIX}grammar_cached_bytes", "Their estimated size.", size)
