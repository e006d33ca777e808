"""OpenTelemetry traces: a span per request that works, and inside it what each choice spent in the queue, on its prompt
and on its answer. Token counts, never text. Imported only when traces are asked for; without, nothing of it runs.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, SpanKind, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .. import __version__
from ..engine.request import Finish, FinishReason
from .visit import current_visit

_UNTRACED = ("GET", "HEAD", "OPTIONS")  # probes, scrapes and lists
_PROPAGATOR = TraceContextTextMapPropagator()
_FLUSH_MS = 3000  # at the end, for a collector that does not answer
_NANO = 1_000_000_000


class Tracing:
    """Where spans go. The OTEL_* variables choose collector, sampler and resource, as everywhere."""

    def __init__(self, provider: TracerProvider) -> None:
        self._provider = provider
        self.tracer = provider.get_tracer("surefoot", __version__)

    def close(self) -> None:
        """Sends what is left. Blocks for some seconds at most."""
        self._provider.force_flush(_FLUSH_MS)
        self._provider.shutdown()


def otlp_tracing() -> Tracing:
    """Spans for the collector at OTEL_EXPORTER_OTLP_ENDPOINT, or this machine's at port 4318."""
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    resource = Resource.create({"service.version": __version__})
    if str(resource.attributes.get("service.name", "unknown_service")).startswith("unknown_service"):
        resource = resource.merge(Resource({"service.name": "surefoot"}))
    provider = TracerProvider(resource=resource)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return Tracing(provider)


class TracedRequests:
    """ASGI middleware, inside the layer that makes visits."""

    def __init__(self, app: ASGIApp, tracing: Tracing) -> None:
        self._app = app
        self._tracing = tracing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        visit = current_visit()
        if scope["type"] != "http" or scope["method"] in _UNTRACED or visit is None:
            await self._app(scope, receive, send)
            return
        carrier = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        span = self._tracing.tracer.start_span(
            scope["method"],
            _PROPAGATOR.extract(carrier),
            SpanKind.SERVER,
            {"http.request.method": scope["method"], "surefoot.request_id": visit.request_id},
        )
        if not span.is_recording():
            await self._app(scope, receive, send)
            return
        visit.trace = RequestTrace(self._tracing, span)
        status = 500

        async def send_seen(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, send_seen)
        finally:
            route = getattr(scope.get("route"), "path", None)
            if route is not None:
                span.update_name(f"{scope['method']} {route}")
                span.set_attribute("http.route", route)
            span.set_attribute("http.response.status_code", status)
            span.set_attribute("surefoot.key", visit.tenant)
            if status >= 500:
                span.set_status(StatusCode.ERROR)
            span.end()


class RequestTrace:
    """Makes the spans of a request's choices when they have ended, from the times that the engine took."""

    def __init__(self, tracing: Tracing, span: Span) -> None:
        self._tracer = tracing.tracer
        self._span = span
        self._context = set_span_in_context(span)
        self._submitted_ns = 0

    def submitted(self) -> None:
        """See visit.Trace."""
        self._submitted_ns = time.time_ns()

    def ended(self, index: int, finish: Finish) -> None:
        """See visit.Trace. A phase that was not reached has no span."""
        start, end = self._submitted_ns, time.time_ns()
        row, token = self._at(finish.queue_s, end), self._at(finish.first_token_s, end)
        self._phase("queue", start, row, index)
        if row < end:
            prompt = {
                "gen_ai.usage.input_tokens": finish.prompt_tokens,
                "surefoot.cached_tokens": finish.cached_tokens,
            }
            self._phase("prefill", row, token, index, prompt)
        if token < end or finish.completion_tokens:
            reason = {"gen_ai.response.finish_reasons": (finish.reason.value,)}
            answer = {"gen_ai.usage.output_tokens": finish.completion_tokens, **reason}
            self._phase("decode", token, end, index, answer, failed=finish.reason is FinishReason.ERROR)

    def _at(self, seconds: float | None, end: int) -> int:
        """A moment of the engine's clock, which must not lie beyond the end on ours."""
        return end if seconds is None else min(self._submitted_ns + int(seconds * _NANO), end)

    def _phase(
        self,
        name: str,
        start: int,
        end: int,
        index: int,
        attributes: Mapping[str, int | tuple[str, ...]] | None = None,
        failed: bool = False,
    ) -> None:
        span = self._tracer.start_span(
            name, self._context, SpanKind.INTERNAL, {"surefoot.choice": index, **(attributes or {})}, start_time=start
        )
        if failed:
            span.set_status(StatusCode.ERROR)
        span.end(end)
