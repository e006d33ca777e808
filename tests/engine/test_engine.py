"""The engine's thread and door: submissions, cancellations, refusals, drain, health, faults that stay put."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from engine_drive import Answer, params
from fake_backend import FakeBackend, FakeModel, fail_when

from surefoot.engine.config import EngineConfig
from surefoot.engine.engine import Engine
from surefoot.engine.request import FinishReason, GenerationParams, Output, Submission
from surefoot.kernels.backend import NativeTime, StepBatch
from surefoot.kernels.errors import RequestError


class Listener(Answer):
    """An answer that another thread can wait for."""

    def __init__(self) -> None:
        super().__init__()
        self.ended = threading.Event()
        self.started = threading.Event()

    def take(self, output: Output) -> None:
        super().take(output)
        self.started.set()
        if output.finish is not None:
            self.ended.set()

    def wait(self, seconds: float = 20) -> Answer:
        assert self.ended.wait(seconds), "no final output"
        return self


class Harness:
    def __init__(self, **config: object) -> None:
        self.backend = FakeBackend()
        settings = EngineConfig(measure_cost=False, poison_freed=True, **config)  # type: ignore[arg-type]
        self.engine = Engine(FakeModel((None, 40), 256), self.backend, settings)  # type: ignore[arg-type]
        assert self.backend.executor is not None
        self.executor = self.backend.executor
        self.engine.start()

    def submit(self, name: str, ids: range | list[int], request: GenerationParams | None = None) -> Listener:
        listener = Listener()
        self.engine.submit(Submission(name, list(ids), request or params(), b"", listener.take))
        return listener

    def held(self) -> int:
        return sum(group["held"] for group in self.engine.state()["kv_blocks"].values())  # type: ignore[attr-defined]

    def wait_idle(self) -> None:
        deadline = time.monotonic() + 20
        while self.engine.num_open:
            assert time.monotonic() < deadline, "requests did not end"
            time.sleep(0.001)
        assert self.held() == 0
        assert self.engine.state()["free_slots"] == self.engine.config.max_running


@pytest.fixture
def harness() -> Iterator[Callable[..., Harness]]:
    made: list[Harness] = []

    def make(**config: object) -> Harness:
        made.append(Harness(**config))
        return made[-1]

    yield make
    for one in made:
        one.engine.stop()
    assert not [thread for thread in threading.enumerate() if thread.name == "surefoot-engine"]


def block_steps(executor: object) -> tuple[threading.Event, threading.Event]:
    """(a step has begun, let it go on): the hook also ends when the step is cancelled, as native code does."""
    begun, release = threading.Event(), threading.Event()

    def hook(batch: StepBatch) -> None:
        begun.set()
        while not release.wait(0.001) and not executor.cancelled:  # type: ignore[attr-defined]
            pass

    executor.before_step = hook  # type: ignore[attr-defined]
    return begun, release


def test_a_request_is_answered(harness: Callable[..., Harness]) -> None:
    one = harness()
    answer = one.submit("a", range(50), params(max_tokens=5)).wait()
    assert len(answer.token_ids) == len(answer.text) == 5
    assert answer.done.reason is FinishReason.LENGTH
    assert (answer.done.prompt_tokens, answer.done.completion_tokens) == (50, 5)
    one.wait_idle()
    assert one.engine.health().ok


@pytest.mark.parametrize(
    ("ids", "settings", "param", "code"),
    [
        ([], params(), "prompt", None),
        ([1] * 256, params(), "prompt", "context_length_exceeded"),
        ([1] * 257, params(max_tokens=0), "prompt", "context_length_exceeded"),
        ([1, 96], params(), "prompt", None),
        ([-1], params(), "prompt", None),
        ([1], params(logit_bias=((191222, -100.0),)), "logit_bias", None),
        ([1], params(stop_token_ids=(96,)), "stop_token_ids", None),
    ],
)
def test_what_can_never_run_is_refused_at_once(
    harness: Callable[..., Harness], ids: list[int], settings: GenerationParams, param: str, code: str | None
) -> None:
    one = harness()
    running = one.submit("other", range(10))
    with pytest.raises(RequestError) as refusal:
        one.submit("bad", ids, settings)
    assert (refusal.value.status, refusal.value.param, refusal.value.code) == (400, param, code)
    assert running.wait().done.reason is FinishReason.LENGTH
    one.wait_idle()


def test_a_prompt_larger_than_the_cache_is_refused_and_blocks_nobody(harness: Callable[..., Harness]) -> None:
    """The model was trained for 256 tokens, the cache holds 128."""
    one = harness(kv_memory=2 * 5 * 1024)
    assert one.engine.context_length == 128
    running = one.submit("other", range(90), params(max_tokens=38))
    with pytest.raises(RequestError, match="128"):
        one.submit("bad", [1] * 200)
    assert running.wait().done.reason is FinishReason.LENGTH
    one.wait_idle()


def test_a_call_runs_between_steps_and_its_fault_is_the_callers(harness: Callable[..., Harness]) -> None:
    one = harness()
    stream = one.submit("a", range(20), params(max_tokens=200))
    assert one.engine.call(lambda core: len(core.requests)).result(5) in (0, 1)
    with pytest.raises(LookupError):
        one.engine.call(lambda core: core.requests["nobody"]).result(5)
    assert len(stream.wait().token_ids) == 200


def test_a_full_queue_is_429(harness: Callable[..., Harness]) -> None:
    one = harness(max_running=1, max_waiting=1)
    _, release = block_steps(one.executor)
    accepted = [one.submit("a", range(5)), one.submit("b", range(5))]
    with pytest.raises(RequestError) as refusal:
        one.submit("c", range(5))
    assert refusal.value.status == 429 and refusal.value.retry_after is not None
    release.set()
    for listener in accepted:
        listener.wait()
    one.submit("c", range(5)).wait()


def test_who_is_refused_hears_how_long_a_place_takes(harness: Callable[..., Harness]) -> None:
    one = harness(max_running=2, max_waiting=0)
    one.engine.metrics.whole_request.observe(20.0, 3)
    _, release = block_steps(one.executor)
    for name in "ab":
        one.submit(name, range(5))
    with pytest.raises(RequestError) as refusal:
        one.submit("c", range(5))
    assert refusal.value.retry_after == 10
    release.set()


def test_cancelling_a_waiting_request_frees_its_id(harness: Callable[..., Harness]) -> None:
    one = harness(max_running=1)
    begun, release = block_steps(one.executor)
    first = one.submit("a", range(5))
    begun.wait()
    waiting = one.submit("b", range(6))
    with pytest.raises(RequestError, match="in use"):
        one.submit("b", range(7))
    one.engine.cancel("b")
    again = one.submit("b", range(7))
    release.set()
    assert waiting.wait().done.reason is FinishReason.CANCELLED
    assert again.wait().done.prompt_tokens == 7
    first.wait()
    one.wait_idle()


def test_cancelling_a_lone_prefill_ends_its_step(harness: Callable[..., Harness]) -> None:
    one = harness()
    begun, _ = block_steps(one.executor)  # never released: only the cancel flag can end the step
    listener = one.submit("a", range(90))
    begun.wait()
    one.engine.cancel("a")
    assert listener.wait(5).done.reason is FinishReason.CANCELLED
    one.executor.before_step = None
    one.wait_idle()


def test_a_storm_of_cancellations_leaves_nothing(harness: Callable[..., Harness]) -> None:
    one = harness(max_running=4, prefill_chunk=16)
    rng = np.random.default_rng(0)
    listeners: list[Listener] = []
    for number in range(300):
        ids = rng.integers(0, 90, rng.integers(1, 100)).tolist()
        listeners.append(one.submit(f"r{number}", ids, params(max_tokens=int(rng.integers(1, 60)))))
        if rng.random() < 0.7:
            time.sleep(float(rng.random()) * 0.002)
            one.engine.cancel(f"r{number - int(rng.integers(0, 3))}")
        if number >= 200:  # below the limit of the queue
            listeners[number - 200].wait()
    for listener in listeners:
        assert listener.wait().done.reason in (FinishReason.CANCELLED, FinishReason.LENGTH)
    one.wait_idle()
    ids = list(range(70))
    fresh = harness().submit("solo", ids).wait()
    assert one.submit("after", ids).wait().token_ids == fresh.token_ids


def test_a_step_that_fails_ends_only_the_request_that_fails_again(harness: Callable[..., Harness]) -> None:
    one = harness()
    expected = one.submit("alone", [3] * 20, params(max_tokens=30)).wait().token_ids
    one.executor.before_step = fail_when(95)
    good = one.submit("good", [3] * 20, params(max_tokens=30))
    bad = one.submit("bad", [95] * 10, params(max_tokens=30))
    finish = bad.wait().done
    assert finish.reason is FinishReason.ERROR and finish.error is not None and finish.error.status == 500
    assert good.wait().token_ids == expected
    one.wait_idle()


def test_a_step_that_fails_once_is_run_again(harness: Callable[..., Harness]) -> None:
    one = harness()
    expected = one.submit("a", [7] * 40).wait().token_ids
    one.executor.before_step = fail_when(7, times=1)
    assert one.submit("b", [7] * 40).wait().token_ids == expected
    assert one.engine.health().ok


def test_a_draw_that_faults_ends_only_its_request(harness: Callable[..., Harness]) -> None:
    one = harness()
    one.backend.fault = lambda sampler, position: "no token" if sampler.prompt == [1] and position == 2 else None
    bad, good = one.submit("bad", [1], params(max_tokens=9)), one.submit("good", [2], params(max_tokens=9))
    finish = bad.wait().done
    assert finish.error is not None and "no token" in finish.error.message and finish.completion_tokens == 2
    assert len(good.wait().token_ids) == 9
    one.wait_idle()


def test_a_defect_ends_all_requests_and_the_engine_goes_on(
    harness: Callable[..., Harness], caplog: pytest.LogCaptureFixture
) -> None:
    one = harness()
    expected = one.submit("a", range(40)).wait().token_ids

    def defect(batch: StepBatch) -> None:
        one.executor.before_step = None
        raise RuntimeError("a defect")

    one.executor.before_step = defect
    finish = one.submit("b", range(40)).wait().done
    assert finish.error is not None and finish.error.status == 500 and "defect" not in finish.error.message
    assert "a defect" in caplog.text
    assert one.submit("c", range(40)).wait().token_ids == expected
    one.wait_idle()


def test_an_engine_that_breaks_again_and_again_says_so_and_takes_no_more(harness: Callable[..., Harness]) -> None:
    one = harness()

    def defect(batch: StepBatch) -> None:
        raise RuntimeError("a defect")

    one.executor.before_step = defect
    for name in "abc":
        assert one.engine.health().ok
        error = one.submit(name, range(40)).wait().done.error
        assert error is not None and error.status == 500
    health = one.engine.health()
    assert not health.ok and health.reason is not None and "internal error" in health.reason
    with pytest.raises(RequestError) as refusal:
        one.submit("d", range(40))
    assert (refusal.value.status, refusal.value.code) == (503, "engine_stopped")


def test_a_listener_that_raises_harms_nobody(harness: Callable[..., Harness], caplog: pytest.LogCaptureFixture) -> None:
    one = harness()

    def broken(output: Output) -> None:
        raise RuntimeError("broken pipe")

    one.engine.submit(Submission("x", [1, 2], params(), b"", broken))
    assert len(one.submit("y", [1, 2]).wait().token_ids) == 8
    one.wait_idle()
    assert "broken pipe" in caplog.text


def test_drain_lets_streams_end_and_refuses_new_ones(harness: Callable[..., Harness]) -> None:
    one = harness()
    stream = one.submit("a", range(20), params(max_tokens=200))
    stream.started.wait()
    assert one.engine.drain(20)
    assert len(stream.wait(0).token_ids) == 200
    with pytest.raises(RequestError) as refusal:
        one.submit("b", range(3))
    assert refusal.value.status == 503 and refusal.value.retry_after is not None


def test_drain_cancels_what_outlives_the_deadline(harness: Callable[..., Harness]) -> None:
    one = harness()
    one.executor.before_step = lambda batch: time.sleep(0.005)
    stream = one.submit("a", range(20), params(max_tokens=230))
    stream.started.wait()
    assert not one.engine.drain(0.05)
    assert stream.wait().done.reason is FinishReason.CANCELLED


def test_health_is_progress(harness: Callable[..., Harness]) -> None:
    one = harness(stall_seconds=1.0)
    time.sleep(1.2)
    assert one.engine.health().ok, "idle is healthy"
    begun, release = block_steps(one.executor)
    listener = one.submit("a", range(5))
    begun.wait()
    assert one.engine.health().ok
    time.sleep(1.2)
    health = one.engine.health()
    assert not health.ok and health.reason is not None and "no step" in health.reason
    release.set()
    listener.wait()
    assert one.engine.health().ok


def test_stop_ends_every_request(harness: Callable[..., Harness]) -> None:
    one = harness(max_running=2)
    block_steps(one.executor)
    listeners = [one.submit(f"r{number}", range(30)) for number in range(5)]
    one.engine.stop()
    for listener in listeners:
        assert listener.wait(0).done.reason is FinishReason.CANCELLED
    with pytest.raises(RequestError) as refusal:
        one.submit("late", range(3))
    assert refusal.value.status == 503
    assert not one.engine.health().ok


def test_metrics_count_tokens_and_requests(harness: Callable[..., Harness]) -> None:
    one = harness()
    one.submit("a", range(70), params(max_tokens=9)).wait()
    one.submit("b", range(70), params(max_tokens=9)).wait()
    one.wait_idle()

    def sample(name: str, **labels: str) -> float | None:
        return one.engine.registry.get_sample_value(f"surefoot_{name}", labels)

    assert sample("requests_total", finish_reason="length") == 2
    assert sample("prompt_tokens_total") == 140
    assert sample("generation_tokens_total") == 18
    assert sample("prefix_cache_query_tokens_total") == 140
    assert sample("prefix_cache_hit_tokens_total") == 64
    assert sample("inter_token_latency_seconds_count") == 16
    assert sample("time_to_first_token_seconds_count") == sample("e2e_request_latency_seconds_count") == 2
    assert sample("kv_blocks", group="group0", state="held") == 0
    assert sample("step_seconds_count", kind="decode") == 16
    assert sample("requests_running") == sample("requests_waiting") == 0


def test_a_turns_time_is_native_or_waits_for_the_gil_or_is_python(harness: Callable[..., Harness]) -> None:
    one = harness()

    def native(_: StepBatch) -> None:
        running, waiting = one.backend.native_time
        one.backend.native_time = NativeTime(running + 3.0, waiting + 1.0)
        time.sleep(0.002)

    one.executor.before_step = native
    one.submit("a", range(70), params(max_tokens=9)).wait()
    one.engine.stop()  # the last turn is booked after its outputs are out

    def seconds(kind: str, part: str) -> float:
        value = one.engine.registry.get_sample_value("surefoot_engine_turn_seconds_total", {"kind": kind, "part": part})
        assert value is not None
        return value

    assert (seconds("prefill", "native"), seconds("prefill", "gil_wait")) == (3, 1)
    assert (seconds("decode", "native"), seconds("decode", "gil_wait")) == (24, 8)
    assert 8 * 0.002 < seconds("decode", "python") + 32 < 8
    assert seconds("mixed", "native") == seconds("mixed", "gil_wait") == seconds("mixed", "python") == 0
