"""The engine: one thread that owns the model, its caches and every request, and the door through which others reach it.

Everything that changes state goes through the inbox and happens between steps, in the order it was sent.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from typing import TypeVar

from prometheus_client import CollectorRegistry

from ..kernels.backend import Backend, NativeTime
from ..kernels.bell import NO_BELL, ring
from ..kernels.errors import RequestError
from ..models.load import LoadedModel
from .config import EngineConfig
from .core import REQUEST_FAULTS, EngineCore
from .grammar.compiler import Grammars
from .grammar.constraint import Constraint
from .grammar.matcher import Grammar
from .grammar.metrics import GrammarMetrics
from .log_fields import fields
from .metrics import Levels, Metrics
from .pooling import HIDDEN
from .request import Output, Submission
from .resources import Resources, allocate
from .speculation.metrics import SpeculationMetrics

_log = logging.getLogger("surefoot.engine")

T = TypeVar("T")

MAX_BROKEN_TURNS = 3  # broken turns in a row after which the engine gives up
INTERNAL_ERROR = "the engine met an internal error"


@dataclass(frozen=True, slots=True)
class Health:
    """Whether the engine makes progress; if not, why."""

    ok: bool
    reason: str | None = None


class Engine:
    """Serves one model. Any thread may call any method; `drain` and `stop` block, the others return at once."""

    def __init__(
        self,
        model: LoadedModel,
        backend: Backend,
        config: EngineConfig | None = None,
        registry: CollectorRegistry | None = None,
        grammars: Grammars | None = None,
    ) -> None:
        self.config = config or EngineConfig()
        self.registry = registry or CollectorRegistry()
        self._resources: Resources = allocate(model, backend, self.config)
        self.metrics = Metrics(self.registry, self._levels)
        self._core = EngineCore(self._resources, self.metrics)
        self._core.hand_out = self._deliver
        self._grammars = grammars or Grammars(model.tokenizer, model.program.vocab_size)
        SpeculationMetrics(self.registry, self._core.session)
        GrammarMetrics(self.registry, self._grammars.counts, self._grammars.kept)
        self._inbox: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="surefoot-engine", daemon=True)
        self._lock = threading.Condition()
        self._ids: dict[str, Submission] = {}  # requests that have not ended and were not cancelled
        self._num_open = 0  # requests accepted and not ended
        self._draining = False
        self._stopping = False
        self._failure: str | None = None
        self._progress_at = time.monotonic()
        self._bell = NO_BELL
        self._native: NativeTime = backend.native_time  # when the last turn ended

    @property
    def fingerprint(self) -> str:
        """Results are the same bits within one fingerprint."""
        return self._resources.fingerprint

    @property
    def context_length(self) -> int:
        """Tokens that prompt and answer may have together."""
        return self._resources.context_length

    def announce(self, bell: int | None) -> bool:
        """Outputs that have been delivered are announced, once a step, by ringing this bell; None: by nothing."""
        self._bell = NO_BELL if bell is None else bell
        return True

    @property
    def num_open(self) -> int:
        """Requests accepted and not ended."""
        return self._num_open

    def start(self) -> None:
        """Starts the engine thread."""
        self._progress_at = time.monotonic()
        self._thread.start()

    # --- requests --------------------------------------------------------------------------------------------------

    def submit(self, submission: Submission) -> None:
        """Takes a request; its outputs end with exactly one final one.

        Raises RequestError: 400 if it can never run, 429 when the queue is full, 503 while draining or broken.
        """
        self._check(submission)
        request_id = submission.request_id
        with self._lock:
            self._check_open()
            if self._num_open >= self.config.max_running + self.config.max_waiting:
                raise RequestError(
                    "too many requests are waiting; try again later",
                    status=429,
                    kind="rate_limit_error",
                    code="queue_full",
                    retry_after=self._retry_after(),
                )
            if request_id in self._ids:
                raise RequestError(f"request id {request_id!r} is in use", param="request_id", code="duplicate_id")
            self._ids[request_id] = submission
            if not self._num_open:
                self._progress_at = time.monotonic()
            self._num_open += 1
            self._inbox.put(partial(self._core.add, submission, time.monotonic()))

    def compile(self, constraint: Constraint) -> Future[Grammar]:
        """A constraint ready for `GenerationParams.grammar`. The future's RequestError says why it cannot be used."""
        return self._grammars.compile(constraint)

    def cancel(self, request_id: str) -> None:
        """Ends a request within one step; its id may be used again at once. Unknown and ended ids are ignored."""
        with self._lock:
            if self._ids.pop(request_id, None) is None:
                return
            self._inbox.put(partial(self._core.cancel, request_id))
        if self._core.solo == request_id:
            self._resources.runner.executor.cancel()

    def call(self, function: Callable[[EngineCore], T]) -> Future[T]:
        """Runs a function on the engine thread between two steps (a change of policy, a consistent look)."""
        future: Future[T] = Future()

        def run() -> None:
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(function(self._core))
                except REQUEST_FAULTS as fault:
                    future.set_exception(fault)

        self._inbox.put(run)
        return future

    def speculation(self) -> Future[dict[str, object]]:
        """Policy, state and counters of speculation, taken between two steps."""
        return self.call(lambda core: core.session.snapshot())

    def change_speculation(self, body: object) -> Future[dict[str, object]]:
        """Applies a PATCH between two steps; running requests go on. The result is the policy in force and, per setting
        that has no effect here, the reason. Fails with RequestError 422, and nothing changed, for what is unknown or
        malformed."""
        return self.call(lambda core: core.session.change(body))

    def reset_cache(self) -> Future[dict[str, object]]:
        """Forgets all that is cached of prompts, between two steps: what starts later finds nothing from before.

        Running requests go on with the blocks that they hold. The result says what is true behind it. Fails with
        RequestError 503 where no step comes any more.
        """
        with self._lock:
            if self._failure is None and not self._stopping:
                return self.call(self._reset_cache)
        refused: Future[dict[str, object]] = Future()
        refused.set_exception(self._stopped())
        return refused

    def _reset_cache(self, core: EngineCore) -> dict[str, object]:
        caches = [core.cache, *core.session.arming.caches()]
        cleared = [cache.clear() for cache in caches]
        freed = sum(each.freed for each in cleared)
        self.metrics.cache_resets += 1
        self.metrics.reset_blocks += freed
        return {
            "freed_blocks": freed,
            "kept_blocks": sum(each.kept for each in cleared),
            "cached_blocks": sum(cache.num_cached for cache in caches),
        }

    def _check(self, submission: Submission) -> None:
        """Refuses what no engine state could ever serve."""
        num_prompt, params = len(submission.prompt_ids), submission.params
        vocab_size = self._resources.model.program.vocab_size
        if not num_prompt:
            raise RequestError("the prompt is empty", param="prompt")
        if num_prompt + min(params.max_tokens, 1) > self.context_length:
            raise RequestError(
                f"the prompt has {num_prompt} tokens, but the context holds {self.context_length} with the answer",
                param="prompt",
                code="context_length_exceeded",
            )
        if submission.pooling is not None and HIDDEN not in self._resources.model.program.tap_names:
            raise RequestError("this model gives no hidden rows, so no embeddings", code="unsupported_value")
        biased = [token for token, _ in params.logit_bias]
        for param, ids in (
            ("prompt", submission.prompt_ids),
            ("logit_bias", biased),
            ("stop_token_ids", params.stop_token_ids),
        ):
            if ids and not 0 <= min(ids) <= max(ids) < vocab_size:
                bad = next(token for token in ids if not 0 <= token < vocab_size)
                raise RequestError(f"token id {bad} is not in the vocabulary of {vocab_size}", param=param)

    def _check_open(self) -> None:
        if self._failure is not None or self._stopping:
            raise self._stopped()
        if self._draining:
            raise RequestError(
                "the server is shutting down", status=503, kind="server_error", code="draining", retry_after=10
            )

    def _stopped(self) -> RequestError:
        return RequestError(
            self._failure or "the engine has stopped", status=503, kind="server_error", code="engine_stopped"
        )

    def _retry_after(self) -> int:
        """Seconds until a place in the queue should be free, from what requests took so far."""
        took = self.metrics.whole_request
        seconds = took.total / took.count if took.count else 1.0
        return max(1, min(60, round(seconds / self.config.max_running)))

    # --- ending ----------------------------------------------------------------------------------------------------

    def begin_drain(self) -> None:
        """Refuses new requests from now on; those accepted run on."""
        with self._lock:
            self._draining = True

    def drain(self, deadline_s: float) -> bool:
        """Refuses new requests and waits until the others have ended. After the deadline it cancels what is left.

        Blocks. True if nothing had to be cancelled.
        """
        self.begin_drain()
        with self._lock:
            if self._lock.wait_for(lambda: not self._num_open, deadline_s):
                return True
        self._cancel_everything()
        with self._lock:
            self._lock.wait_for(lambda: not self._num_open, self.config.stall_seconds)
        return False

    def stop(self) -> None:
        """Ends every request and joins the engine thread."""
        with self._lock:
            self._stopping = True
        self._cancel_everything()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()
        self._grammars.close()

    def _cancel_everything(self) -> None:
        with self._lock:
            self._ids.clear()
        self._inbox.put(self._core.cancel_all)
        self._resources.runner.executor.cancel()

    # --- looking in ------------------------------------------------------------------------------------------------

    def health(self) -> Health:
        """Healthy: idle, or a step has ended within the last `stall_seconds`."""
        if self._failure is not None:
            return Health(False, self._failure)
        if not self._thread.is_alive():
            return Health(False, "the engine thread is not running")
        stalled = time.monotonic() - self._progress_at
        if self._num_open and stalled > self.config.stall_seconds:
            return Health(False, f"work is pending and no step has ended for {stalled:.0f} s")
        return Health(True)

    def state(self) -> dict[str, object]:
        """What the engine is doing, for people. Read while it runs: each number is exact, two may be a step apart."""
        core, scheduler = self._core, self._core.scheduler
        running, waiting = list(scheduler.running), list(scheduler.waiting)
        blocks: dict[str, dict[str, int]] = {}
        for group, kind, count in self._block_states():
            blocks.setdefault(group, {})[kind] = count
        return {
            "model": self._resources.model.config.name,
            "backend": self._resources.backend.name,
            "fingerprint": self.fingerprint,
            "context_length": self.context_length,
            "kv_type": self.config.kv_type.value,
            "kv_bytes": self._resources.kv_bytes,
            "draining": self._draining,
            "steps": core.num_steps,
            "step_seconds": {
                kind: {"count": tally.count, "sum": tally.total} for kind, tally in self.metrics.step_seconds.items()
            },
            "step_faults": self.metrics.step_faults,
            "preemptions": scheduler.counts.preemptions,
            "prefix_cache_query_tokens": scheduler.counts.queried_tokens,
            "prefix_cache_hit_tokens": scheduler.counts.hit_tokens,
            "prefix_cache_nodes": len(core.cache.index),
            "free_slots": core.cache.num_free_slots,
            "kv_blocks": blocks,
            "requests": [
                {
                    "id": request.submission.request_id,
                    "state": "running" if request.running else "waiting",
                    "prompt_tokens": request.num_prompt,
                    "cached_tokens": request.generation.cached_tokens,
                    "completion_tokens": request.generation.num_output,
                    "computed_positions": request.num_computed,
                    "priority": request.priority,
                }
                for request in (*running, *waiting)
            ],
            "step_cost_seconds": core.cost.table(),
        }

    def _levels(self) -> Levels:
        """What metrics show of the scheduler and the pools."""
        scheduler, counts = self._core.scheduler, self._core.counts
        return Levels(
            len(scheduler.running),
            len(scheduler.waiting),
            counts.preemptions,
            counts.queried_tokens,
            counts.hit_tokens,
            self._block_states(),
        )

    def _block_states(self) -> list[tuple[str, str, int]]:
        groups = self._resources.model.program.kv_groups
        states: list[tuple[str, str, int]] = []
        for group, pool in zip(groups, self._core.cache.pools, strict=True):
            states.append((group.name, "held", pool.num_held))
            states.append((group.name, "cached", pool.num_cached))
            states.append((group.name, "free", pool.num_free))
        if (pool := self._core.cache.state_pool) is not None:
            states += [("recurrent", "held", pool.num_held), ("recurrent", "cached", pool.num_cached)]
            states.append(("recurrent", "free", pool.num_free))
        return states

    # --- the engine thread -----------------------------------------------------------------------------------------

    def _run(self) -> None:
        """Turns until stopped. The loop's last guard: a fault that reaches it is a defect, and ends all requests."""
        broken = 0
        while not (self._stopping and not self._core.has_work and self._inbox.empty()):
            try:
                self._turn()
                broken = 0
            except Exception:  # noqa: BLE001
                broken += 1
                _log.critical("%s", INTERNAL_ERROR, exc_info=True)
                if broken >= MAX_BROKEN_TURNS:
                    self._failure = INTERNAL_ERROR
                self._core.reset(INTERNAL_ERROR)
                ring(self._deliver())
        ring(self._deliver())

    def _turn(self) -> None:
        """The inbox, one step, and its results. Sleeps when there is nothing to do."""
        core, inbox, backend = self._core, self._inbox, self._resources.backend
        if not core.has_work:
            inbox.get()()
        began = time.monotonic()
        while not inbox.empty():
            inbox.get()()
            self._native = backend.native_time  # what ran there was no part of a step
        kind = core.step() if core.has_work else None
        if core.outbox and (kind is None or not core.has_work):
            ring(self._deliver())  # else they go out as the next step starts, when nobody waits for the GIL
        if kind is not None:
            self._progress_at = now = time.monotonic()
            before, self._native = self._native, backend.native_time
            self.metrics.turn_seconds[kind].add(now - began, before, self._native)

    def _deliver(self) -> int:
        """Hands out what steps gave, in order, and closes the books of what ended. Returns the bell that says so."""
        outbox: Sequence[tuple[Submission, Output]] = self._core.outbox
        self._core.outbox = []
        for submission, output in outbox:
            if output.finish is not None:
                self._close(submission)
            try:
                submission.deliver(output)
            except Exception:  # noqa: BLE001  (part of the last guard: a listener must not end other requests)
                about = fields(choice_id=submission.request_id)
                _log.exception("the outputs of request %s failed", submission.request_id, extra=about)
        return self._bell

    def _close(self, submission: Submission) -> None:
        with self._lock:
            if self._ids.get(submission.request_id) is submission:  # else it was cancelled, its id perhaps used again
                del self._ids[submission.request_id]
            self._num_open -= 1
            if not self._num_open:
                self._lock.notify_all()
