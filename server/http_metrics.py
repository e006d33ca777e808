"""Metrics that belong to HTTP. The engine's live in the same registry, so /metrics shows one list."""

from __future__ import annotations

import re

from prometheus_client import CollectorRegistry, Counter, Gauge

_MAX_NAMES = 64  # distinct label values a stranger can create
_SANE = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}")


class HttpMetrics:
    """Counters of one server."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._ignored = Counter(
            "surefoot_ignored_fields",
            "Request fields that were accepted and ignored, by name (the first 64; then 'other')",
            ["name"],
            registry=registry,
        )
        self._responses = Counter(
            "surefoot_http_responses", "HTTP responses by route and status", ["route", "status"], registry=registry
        )
        self.open_requests = Gauge("surefoot_http_requests_open", "HTTP requests being answered", registry=registry)
        self._names: set[str] = set()

    def count_ignored(self, name: str) -> None:
        """Counts a field that nothing reads, under a bounded set of names."""
        if name not in self._names:
            if len(self._names) >= _MAX_NAMES or not _SANE.fullmatch(name):
                name = "other"
            else:
                self._names.add(name)
        self._ignored.labels(name).inc()

    def count_response(self, route: str, status: int) -> None:
        """Counts a response; `route` is a pattern of the app, never a client's path."""
        self._responses.labels(route, str(status)).inc()
