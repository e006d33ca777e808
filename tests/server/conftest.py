"""A scripted engine with a byte vocabulary, and live servers on loopback ports."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest
import uvicorn
from prometheus_client import CollectorRegistry
from real_models import CODER, real_model
from server_process import served  # noqa: F401  (a fixture of all files)

from surefoot.engine.config import EngineConfig
from surefoot.engine.grammar.compiler import Grammars
from surefoot.engine.grammar.constraint import Constraint
from surefoot.engine.grammar.matcher import Grammar
from surefoot.engine.opening import open_engine
from surefoot.engine.pooling import Pooling
from surefoot.engine.request import Draw, Finish, FinishReason, Output, Submission
from surefoot.kernels.errors import RequestError
from surefoot.models.tokenizer import StreamDecoder
from surefoot.server.app import create_app
from surefoot.server.connection import BoundedConnection
from surefoot.server.embedding import EmbeddingModel
from surefoot.server.launch import assemble
from surefoot.server.service import ServedModel, Service
from surefoot.server.settings import EngineSettings, HttpSettings, Settings

BOS, EOS, VOCAB = 256, 257, 260
TINY = Path(__file__).parents[1] / "data" / "oracle" / "qwen3" / "model.gguf"


class ByteTokenizer:
    """Token i is byte i; 256 begins a text, 257 ends one."""

    vocab_size = VOCAB
    special_ids = frozenset({BOS, EOS})
    end_of_generation_ids = frozenset({EOS})

    def encode_inside(self, text: str) -> list[int]:
        return list(text.encode())

    def encode_gap(self, before: str | Sequence[int], after: str) -> list[int] | None:
        ids = list(before.encode()) if isinstance(before, str) else before
        return [BOS, 1, *ids, 2, *after.encode(), 3]

    def encode(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        return [BOS] * add_special + list(text.encode())

    def decode(self, ids: Iterable[int], *, skip_special: bool) -> str:
        return b"".join(self.token_bytes(token, special=not skip_special) for token in ids).decode(errors="replace")

    def prefixed_token(self, ids: Iterable[int]) -> None:
        return None

    def encode_prompt(self, rendered: str, *, add_special: bool | None = None) -> list[int]:
        return list(rendered.encode())

    def shielded(self, texts: Sequence[str]) -> list[str]:
        return list(texts)

    def unshielded(self, rendered: str) -> str:
        return rendered

    def token_bytes(self, token_id: int, *, special: bool = False) -> bytes:
        if token_id < 256:
            return bytes([token_id])
        return f"<{token_id}>".encode() if special else b""


class PlainTemplate:
    """`role:content` lines."""

    variables = frozenset({"messages"})

    def source(self, with_tools: bool = False) -> str:
        return ""

    def render(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        tools: object,
        add_generation_prompt: bool,
        variables: Mapping[str, object] | None,
    ) -> str:
        assert tools is None
        if any(message["content"] == "reject me" for message in messages):
            raise RequestError("the template rejects this conversation", param="messages")
        text = "".join(f"{message['role']}:{self._text(message['content'])}\n" for message in messages)
        return text + "assistant:" * add_generation_prompt

    @staticmethod
    def _text(content: Any) -> str:
        return content if isinstance(content, str) else "".join(part["text"] for part in content)


@dataclass
class FakeHealth:
    ok: bool = True
    reason: str | None = None


@dataclass
class Script:
    """What the engine answers: bytes, in steps of random sizes with a pause between them."""

    text: Callable[[Submission], bytes] = lambda submission: b"Hello, world!"
    max_step: int = 5
    pause_s: float = 0.0
    fail_after: int | None = None  # tokens, then the request fails
    refuse: RequestError | None = None  # raised by submit


@dataclass
class Running:
    submission: Submission
    tokens: list[int]
    finish: Finish
    hold_text_from: int
    sent: int = 0
    due: float = 0.0

    def __post_init__(self) -> None:
        self.decoder = StreamDecoder(ByteTokenizer(), self.submission.prompt_ids)


class FakeEngine:
    """Keeps the contract of the engine with scripted answers: one thread, multi-token steps, one final output each."""

    fingerprint = "fp_fake"

    def __init__(self, script: Script | None = None) -> None:
        self.registry = CollectorRegistry()
        self.script = script or Script()
        self.submissions: list[Submission] = []
        self._grammars = Grammars(ByteTokenizer(), VOCAB)
        self.cancelled: list[str] = []
        self.health_now = FakeHealth()
        self._running: dict[str, Running] = {}
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="fake-engine", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def announce(self, bell: int | None) -> bool:
        return False

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()
        self._grammars.close()

    def health(self) -> FakeHealth:
        return self.health_now

    def state(self) -> dict[str, object]:
        return {"running": len(self._running)}

    def speculation(self) -> Future[dict[str, object]]:
        raise AssertionError("a scripted engine does not speculate")

    def change_speculation(self, body: object) -> Future[dict[str, object]]:
        raise AssertionError("a scripted engine does not speculate")

    def reset_cache(self) -> Future[dict[str, object]]:
        done: Future[dict[str, object]] = Future()
        done.set_result({"freed_blocks": 0, "kept_blocks": 0, "cached_blocks": 0})
        return done

    @property
    def num_running(self) -> int:
        return len(self._running)

    def submit(self, submission: Submission) -> None:
        if self.script.refuse is not None:
            raise self.script.refuse
        with self._lock:
            self.submissions.append(submission)
            self._running[submission.request_id] = self._scripted(submission)

    def compile(self, constraint: Constraint) -> Future[Grammar]:
        return self._grammars.compile(constraint)

    def cancel(self, request_id: str) -> None:
        with self._lock:
            self.cancelled.append(request_id)
            running = self._running.pop(request_id, None)
        if running is not None:
            running.submission.deliver(Output(finish=Finish(FinishReason.CANCELLED)))

    def _scripted(self, submission: Submission) -> Running:
        params = submission.params
        data = self.script.text(submission)
        stop_at = min((at for stop in params.stop if (at := data.find(stop.encode())) >= 0), default=None)
        tokens, reason, why = list(data), FinishReason.STOP, None
        completion = len(tokens) + 1
        if stop_at is not None:
            matched = next(stop for stop in params.stop if data[stop_at:].startswith(stop.encode()))
            tokens, why, completion = tokens[:stop_at], matched, stop_at + len(matched.encode())
        if completion > params.max_tokens:
            tokens, reason, why, completion = tokens[: params.max_tokens], FinishReason.LENGTH, None, params.max_tokens
        finish = Finish(
            reason, why, None, len(submission.prompt_ids), len(submission.prompt_ids) // 32 * 32, completion
        )
        return Running(submission, tokens, finish, len(tokens))

    def _loop(self) -> None:
        while not self._stop.is_set():
            with self._lock:
                now = time.monotonic()
                outputs = [(run, self._step(run, now)) for run in list(self._running.values()) if run.due <= now]
            for run, output in outputs:
                run.submission.deliver(output)
            time.sleep(0.0005)
        for run in self._running.values():
            run.submission.deliver(Output(finish=Finish(FinishReason.CANCELLED)))

    def _step(self, run: Running, now: float) -> Output:
        run.due = now + self.script.pause_s
        params = run.submission.params
        if run.submission.pooling is not None:
            return self._embed(run)
        first = run.sent == 0
        upto = min(run.sent + random.randint(1, self.script.max_step), len(run.tokens))
        tokens, run.sent = run.tokens[run.sent : upto], upto
        failing = self.script.fail_after is not None and run.sent >= self.script.fail_after
        done = failing or run.sent == len(run.tokens)
        finish = None
        if done:
            del self._running[run.submission.request_id]
            fault = RequestError("NaN in the logits", code="engine_error", status=500, kind="api_error")
            finish = Finish(FinishReason.ERROR, error=fault) if failing else run.finish
        prompt_draws = None
        if first and params.prompt_logprobs is not None:
            prompt_draws = [
                None,
                *(self._draw(token, params.prompt_logprobs) for token in run.submission.prompt_ids[1:]),
            ]
        return Output(
            token_ids=tokens,
            draws=[] if params.num_logprobs is None else [self._draw(token, params.num_logprobs) for token in tokens],
            text=run.decoder.feed(tokens) + (run.decoder.flush() if done else ""),
            prompt_draws=prompt_draws,
            finish=finish,
        )

    def _embed(self, run: Running) -> Output:
        """Something of the prompt: its ids' sum, their number, the last and the first."""
        ids = run.submission.prompt_ids
        del self._running[run.submission.request_id]
        if self.script.fail_after is not None:
            fault = RequestError("NaN in the rows", code="engine_error", status=500, kind="api_error")
            return Output(finish=Finish(FinishReason.ERROR, error=fault))
        vector = np.array([sum(ids), len(ids), ids[-1], ids[0]], np.float64)
        return Output(embedding=vector, finish=Finish(FinishReason.POOLED, prompt_tokens=len(ids)))

    @staticmethod
    def _draw(token: int, num_top: int) -> Draw:
        return Draw(
            token, -0.1 - token / 1000, tuple((other, -0.1 - other / 1000) for other in range(97, 97 + num_top))
        )


@dataclass
class Live:
    """A server that listens, its engine, and clients for it."""

    url: str
    engine: Any
    service: Service

    def client(self, api_key: str = "none") -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=api_key, max_retries=0)

    def http(self) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=20)


@contextlib.contextmanager
def serving(service: Service) -> Iterator[Live]:
    """Runs the app of `service` on a free loopback port, in a thread."""
    config = uvicorn.Config(
        create_app(service),
        host="127.0.0.1",
        port=0,
        http=BoundedConnection,
        ws="none",
        log_config=None,
        log_level="warning",
        access_log=False,
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive(), "the server did not start"
            time.sleep(0.005)
        port = server.servers[0].sockets[0].getsockname()[1]
        yield Live(f"http://127.0.0.1:{port}", service.engine, service)
    finally:
        server.should_exit = True
        thread.join(timeout=20)
        assert not thread.is_alive(), "the server did not stop"


Start = Callable[..., Live]


EMBEDDING = EmbeddingModel(Pooling.LAST, 4, (2,))


def _service(
    script: Script | None, template: Any, max_context: int, embedding: EmbeddingModel = EMBEDDING, **http: Any
) -> Service:
    model = ServedModel(
        names=("tiny", "alias"),
        tokenizer=ByteTokenizer(),
        template=PlainTemplate() if template is True else template or None,
        max_context=max_context,
        vocab_size=VOCAB,
        embedding=embedding,
    )
    return Service(model, FakeEngine(script), HttpSettings(**http))


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts servers over scripted engines; ends them with the test."""
    with contextlib.ExitStack() as stack:

        def begin(script: Script | None = None, *, template: Any = True, max_context: int = 2048, **http: Any) -> Live:
            return stack.enter_context(serving(_service(script, template, max_context, **http)))

        yield begin


@pytest.fixture(scope="module")
def real() -> Iterator[Live]:
    """A server on the real engine with a tiny model of random weights, shared by the tests of a file."""
    with _tiny() as live:
        yield live


@pytest.fixture(scope="module")
def drafting() -> Iterator[Live]:
    """Like `real`, with a draft model: the same file, so that every draft of it is right."""
    with _tiny(draft_model=str(TINY)) as live:
        yield live


@contextlib.contextmanager
def _tiny(**config: Any) -> Iterator[Live]:
    engine = EngineConfig(kv_memory=8 << 20, max_running=8, prefill_chunk=64, measure_cost=False, **config)
    settings = Settings(engine=EngineSettings())
    with serving(assemble(open_engine(TINY, engine, kv_type="f32"), settings, TINY)) as live:
        yield live


@pytest.fixture(scope="module")
def coder() -> Iterator[Live]:
    """A server on a small real model that can call tools, Qwen2.5-Coder-0.5B-Instruct."""
    path = real_model(CODER)
    opened = open_engine(path, EngineConfig(kv_memory=128 << 20, context_length=4096, measure_cost=False))
    with serving(assemble(opened, Settings(engine=EngineSettings()), path)) as live:
        yield live


@pytest.fixture(scope="session")
def serve() -> Callable[[Service], contextlib.AbstractContextManager[Live]]:
    """Serves any service; tests cannot import this file."""
    return serving


@pytest.fixture(scope="module")
def plain() -> Iterator[Live]:
    """A server with every setting at its default, shared by the tests of a file that change nothing in it."""
    with serving(_service(None, True, 2048)) as live:
        yield live


@pytest.fixture
def script() -> type[Script]:
    """The script type; tests cannot import this file."""
    return Script


def _eventually(condition: Callable[[], bool], timeout_s: float = 30.0) -> bool:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.005)
    return condition()


@pytest.fixture
def eventually() -> Callable[..., bool]:
    """Waits until a condition holds."""
    return _eventually
