"""OpenTelemetry traces: what a request's spans say, whose trace they join, and nothing at all when they are off."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from surefoot.engine.config import EngineConfig
from surefoot.engine.opening import open_engine
from surefoot.server.launch import assemble
from surefoot.server.settings import EngineSettings, HttpSettings, Settings

pytest.importorskip("opentelemetry.sdk", reason="needs the extra surefoot[otel]")

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from surefoot.server.tracing import Tracing

TINY = Path(__file__).parents[1] / "data" / "oracle" / "qwen3" / "model.gguf"
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
CHAT = {"messages": [{"role": "user", "content": "a secret prompt"}], "max_tokens": 12, "ignore_eos": True}


class Traced:
    """A server on the real engine whose spans stay here."""

    def __init__(self, live: Any, exporter: InMemorySpanExporter) -> None:
        self.live = live
        self._exporter = exporter

    def spans(self) -> list[ReadableSpan]:
        return list(self._exporter.get_finished_spans())

    def clear(self) -> None:
        self._exporter.clear()


@pytest.fixture(scope="module")
def serving_traced(serve: Any) -> Iterator[Any]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    http = HttpSettings(api_keys=("alpha",), admin_key="root")
    engine = EngineConfig(kv_memory=8 << 20, prefill_chunk=64, measure_cost=False)
    settings = Settings(engine=EngineSettings(), http=http)
    with serve(assemble(open_engine(TINY, engine, kv_type="f32"), settings, TINY, Tracing(provider))) as live:
        yield Traced(live, exporter)


@pytest.fixture
def traced(serving_traced: Traced) -> Traced:
    serving_traced.clear()
    return serving_traced


def post(traced: Traced, path: str, body: Any, **headers: str) -> httpx.Response:
    with traced.live.http() as http:
        return http.post(path, json=body, headers={"Authorization": "Bearer alpha", **headers})


def request_span(spans: list[ReadableSpan]) -> ReadableSpan:
    [found] = [span for span in spans if span.kind is SpanKind.SERVER]
    return found


def test_the_phases_of_a_request(traced: Traced, eventually: Any) -> None:
    answer = post(traced, "/v1/chat/completions", CHAT, **{"X-Request-Id": "mine"})
    assert answer.status_code == 200
    assert eventually(lambda: len(traced.spans()) == 4)
    spans = traced.spans()
    request = request_span(spans)
    assert request.name == "POST /v1/chat/completions"
    assert request.attributes is not None
    assert request.attributes["http.route"] == "/v1/chat/completions"
    assert request.attributes["http.response.status_code"] == 200
    assert request.attributes["surefoot.request_id"] == "mine"
    phases = {span.name: span for span in spans if span is not request}
    assert list(phases) == ["queue", "prefill", "decode"]
    usage = answer.json()["usage"]
    assert phases["prefill"].attributes["gen_ai.usage.input_tokens"] == usage["prompt_tokens"]  # type: ignore[index]
    assert phases["decode"].attributes["gen_ai.usage.output_tokens"] == usage["completion_tokens"]  # type: ignore[index]
    assert phases["decode"].attributes["gen_ai.response.finish_reasons"] == ("length",)  # type: ignore[index]
    moments = list[int]()
    for span in phases.values():
        assert span.parent is not None
        assert span.parent.span_id == request.context.span_id  # type: ignore[union-attr]
        assert span.start_time is not None
        assert span.end_time is not None
        moments += [span.start_time, span.end_time]
    assert moments == sorted(moments)
    assert moments[1] == moments[2]  # no gaps
    assert moments[3] == moments[4]
    assert request.start_time <= moments[0]  # type: ignore[operator]
    for span in spans:
        assert "secret" not in span.to_json()
        assert "alpha" not in span.to_json()


def test_choices_and_streams_and_every_generating_route(traced: Traced, eventually: Any) -> None:
    for path, body, choices in (
        ("/v1/chat/completions", {**CHAT, "n": 2, "stream": True}, 2),
        ("/v1/completions", {"prompt": ["x", "y", "z"], "max_tokens": 2, "ignore_eos": True}, 3),
        ("/v1/responses", {"input": "x", "max_output_tokens": 2, "ignore_eos": True}, 1),
    ):
        traced.clear()
        assert post(traced, path, body).status_code == 200
        assert eventually(lambda choices=choices: len(traced.spans()) == 1 + 3 * choices), path
        indices = [span.attributes["surefoot.choice"] for span in traced.spans() if span.name == "decode"]  # type: ignore[index]
        assert sorted(indices) == list(range(choices))  # type: ignore[type-var]


def test_a_trace_that_the_client_began_goes_on(traced: Traced, eventually: Any) -> None:
    post(traced, "/v1/chat/completions", CHAT, traceparent=f"00-{TRACE}-{PARENT}-01")
    assert eventually(lambda: len(traced.spans()) == 4)
    request = request_span(traced.spans())
    assert request.parent is not None
    assert (f"{request.parent.trace_id:032x}", f"{request.parent.span_id:016x}") == (TRACE, PARENT)
    assert {f"{span.context.trace_id:032x}" for span in traced.spans()} == {TRACE}  # type: ignore[union-attr]
    traced.clear()
    post(traced, "/v1/chat/completions", CHAT, traceparent=f"00-{TRACE}-{PARENT}-00")  # not sampled there
    for wrong in ("00-xyz", "", "ff" * 500):
        post(traced, "/v1/chat/completions", CHAT, traceparent=wrong)
    assert eventually(lambda: len(traced.spans()) == 12)
    assert all(request.parent is None for request in traced.spans() if request.kind is SpanKind.SERVER)


def test_refused_and_abandoned_requests(traced: Traced, eventually: Any) -> None:
    assert post(traced, "/v1/chat/completions", {**CHAT, "temperature": "x"}).status_code == 400
    [refused] = traced.spans()
    assert refused.attributes["http.response.status_code"] == 400  # type: ignore[index]
    assert refused.status.status_code is StatusCode.UNSET
    traced.clear()
    with traced.live.http() as http:
        body = {**CHAT, "stream": True, "max_tokens": 200}
        with http.stream(
            "POST", "/v1/chat/completions", json=body, headers={"Authorization": "Bearer alpha"}
        ) as response:
            next(response.iter_lines())
    assert eventually(lambda: len(traced.spans()) >= 2)
    assert eventually(lambda: traced.live.service.bridge.num_running == 0)
    names = [span.name for span in traced.spans()]
    assert names.count("POST /v1/chat/completions") == 1
    assert names.count("queue") == 1


def test_probes_are_not_traced(traced: Traced) -> None:
    with traced.live.http() as http:
        for path in ("/health", "/metrics", "/v1/models", "/"):
            http.get(path, headers={"Authorization": "Bearer alpha"})
    assert traced.spans() == []


def test_off_by_default_and_then_not_even_imported() -> None:
    code = (
        "import sys, surefoot.server.app, surefoot.server.run, surefoot.server.launch;"
        "print('opentelemetry.sdk' in sys.modules or 'surefoot.server.tracing' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "False"


def test_asked_for_and_not_installed_is_one_line() -> None:
    code = (
        "import sys; sys.modules['opentelemetry.sdk'] = None;"
        "from surefoot.server.cli import main;"
        f"main(['serve', {str(TINY)!r}, '--port', '0', '--otel'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    [line] = done.stderr.strip().splitlines()
    assert done.returncode == 2
    assert line.startswith("surefoot: --otel needs opentelemetry")
    assert "surefoot[otel]" in line


def test_spans_reach_a_collector(served: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process, from its flag to the wire: a collector that keeps what it is sent."""
    from http.server import BaseHTTPRequestHandler, HTTPServer
    from threading import Thread

    received = list[tuple[str, bytes]]()

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.append((self.path, self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            pass

    with HTTPServer(("127.0.0.1", 0), Collector) as collector:
        Thread(target=collector.serve_forever, daemon=True).start()
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{collector.server_port}")
        server = served(TINY, 8 << 20, "--otel")
        body = {"prompt": "a secret prompt", "max_tokens": 4}
        assert httpx.post(f"{server.url}/v1/completions", json=body, timeout=30).status_code == 200
        server.popen.terminate()
        assert server.popen.wait(timeout=30) == 0  # what is left is sent at the end
        collector.shutdown()
    assert received
    assert {path for path, _ in received} == {"/v1/traces"}
    data = b"".join(data for _, data in received)
    for word in (b"surefoot", b"queue", b"prefill", b"decode", b"POST /v1/completions"):
        assert word in data
    assert b"secret" not in data
