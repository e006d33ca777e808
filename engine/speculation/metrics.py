"""Speculation's families in /metrics. Read while the engine runs: each number is exact, two may be a step apart."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from .session import SpeculationSession

PREFIX = "surefoot_"


class SpeculationMetrics(Collector):
    """Shows a session's counters, its policy and what its governor holds steps to cost."""

    def __init__(self, registry: CollectorRegistry, session: SpeculationSession) -> None:
        self._session = session
        registry.register(self)

    def collect(self) -> Iterator[Metric]:
        """The families of one scrape."""
        counts = self._session.counts
        for name, text, label, values in (
            ("spec_steps", "Decode-only steps, by kind.", "kind", counts.steps),
            ("spec_step_seconds", "Seconds of decode-only steps, by kind.", "kind", counts.seconds),
            ("spec_draft_tokens", "Drafted tokens that were verified.", "speculator", counts.drafted),
            ("spec_accepted_tokens", "Drafted tokens that were accepted.", "speculator", counts.accepted),
            ("spec_no_draft", "Times an algorithm was asked and drafted nothing.", "reason", counts.no_draft),
            ("spec_declined", "Requests that were not armed.", "reason", counts.declined),
            ("spec_disarmed", "Requests disarmed for an algorithm's fault.", "reason", counts.disarmed),
            (
                "governor_shadow_tokens",
                "Drafts scored against emitted tokens, drafting or not.",
                "result",
                {"hit": counts.shadow_hits, "miss": counts.shadow_misses},
            ),
        ):
            yield _counter(name, text, label, values)
        yield _counter(
            "spec_accepted_per_position",
            "Accepted tokens by their position in the draft, from 0.",
            "position",
            {str(i): count for i, count in enumerate(counts.accepted_by_position) if count},
        )
        yield CounterMetricFamily(f"{PREFIX}governor_parks", "Times that drafting stopped.", counts.parks)
        yield from self._gauges()

    def _gauges(self) -> Iterator[Metric]:
        arming, counts = self._session.arming, self._session.counts
        plain, spec = arming.governor.rates
        for name, text, value in (
            ("spec_armed", "Requests armed with an algorithm.", counts.armed),
            ("governor_window", "Tokens verified by the last step.", counts.window),
            ("governor_plain_seconds_per_token", "What plain decoding costs now.", plain),
            ("governor_spec_seconds_per_token", "What speculative steps cost lately.", spec),
        ):
            if value is not None:
                yield GaugeMetricFamily(PREFIX + name, text, value)
        policy = {key: str(value) for key, value in arming.policy.as_dict().items()}
        info = GaugeMetricFamily(f"{PREFIX}spec_policy_info", "The policy in force.", labels=list(policy))
        info.add_metric(list(policy.values()), 1)
        yield info


def _counter(name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
    family = CounterMetricFamily(PREFIX + name, text, labels=[label])
    for key, value in list(values.items()):
        family.add_metric([key], value)
    return family
