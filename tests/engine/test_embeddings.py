"""Embeddings: right by recorded and reference hidden rows, the same bits whatever happens around them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
import pytest
from engine_drive import Answer, Drive, params
from fake_backend import FakeBackend, FakeModel
from harness import ORACLE, ProgramRunner
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from surefoot.engine.config import EngineConfig
from surefoot.engine.engine import Engine
from surefoot.engine.pooling import HIDDEN, make_pooler, normalised
from surefoot.engine.request import FinishReason, Submission
from surefoot.kernels.backend import Backend
from surefoot.kernels.errors import RequestError
from surefoot.kernels.formats import KvType
from surefoot.kernels.registry import create_backend, has_native_module
from surefoot.models.load import LoadedModel, load_model
from surefoot.models.pooling import Pooling

native = pytest.mark.skipif(not has_native_module(), reason="the native module is not built")
POOLINGS = [Pooling.LAST, Pooling.MEAN, Pooling.CLS]
ONLY_PROMPT = params(max_tokens=0)


@cache
def loaded(model: str) -> LoadedModel:
    return load_model(ORACLE / model / "model.gguf")


@cache
def backend(threads: int = 2) -> Backend:
    return create_backend("cpu", threads)


@cache
def prompt(model: str, name: str = "p300") -> tuple[int, ...]:
    with np.load(ORACLE / model / "expected.npz") as arrays:
        return tuple(arrays[f"{name}_ids"].tolist())


def drive(model: str, *, threads: int = 2, **config: object) -> Drive:
    config = {"kv_memory": 24 << 20, "kv_type": KvType.F16, "context_length": 640, **config}
    return Drive(loaded(model), backend(threads), **config)


def embed(engine: Drive, ids: Sequence[int], pooling: Pooling, name: str | None = None) -> Answer:
    return engine.add(ids, ONLY_PROMPT, pooling=pooling, name=name)


def vector(answer: Answer) -> NDArray[np.float64]:
    assert answer.done.reason is FinishReason.POOLED
    assert answer.embedding is not None
    return answer.embedding


@cache
def alone(model: str, pooling: Pooling, length: int = 300) -> NDArray[np.float64]:
    """On its own: the whole text in one step, no prefix cache, one thread."""
    engine = drive(model, threads=1, prefix_cache=False)
    answer = embed(engine, prompt(model)[:length], pooling)
    engine.run()
    return vector(answer)


# --- right values --------------------------------------------------------------------------------------------------


@native
@pytest.mark.parametrize("model", ["llama", "qwen3", "gemma3", "qwen35"])
@pytest.mark.parametrize("pooling", POOLINGS)
def test_vectors_come_from_the_reference_executors_rows(model: str, pooling: Pooling) -> None:
    ids = prompt(model)
    reference = ProgramRunner(create_backend("reference"), loaded(model).program)
    reference.step({0: ids}, taps=(HIDDEN,), want="last")
    rows = reference.outputs[HIDDEN].astype(np.float64)
    expected = {Pooling.LAST: rows[-1], Pooling.MEAN: rows.mean(0), Pooling.CLS: rows[0]}[pooling]
    engine = drive(model, kv_type=KvType.F32, prefill_chunk=64)
    answer = embed(engine, ids, pooling)
    engine.run()
    np.testing.assert_allclose(vector(answer), expected, rtol=0, atol=2e-4 * np.abs(rows).max())


@native
def test_the_last_row_is_the_recorded_hidden_state() -> None:
    """Of transformers, in float32, after the final norm."""
    for model in ("llama", "qwen3", "qwen3moe", "gemma3", "qwen35"):
        with np.load(ORACLE / model / "expected.npz") as arrays:
            if "p40_hidden_last" not in arrays:
                continue
            expected = arrays["p40_hidden_last"][-1]
        engine = drive(model, kv_type=KvType.F32)
        answer = embed(engine, prompt(model, "p40"), Pooling.LAST)
        engine.run()
        np.testing.assert_allclose(vector(answer), expected, rtol=0, atol=2e-4 * np.abs(expected).max())


# --- the same bits -------------------------------------------------------------------------------------------------


@native
@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("model", ["llama", "gemma3", "qwen35"])
class TestNothingChangesAnEmbedding:
    def test_chunks(self, model: str, pooling: Pooling) -> None:
        for chunk in (16, 37, 64, 299):
            engine = drive(model, prefill_chunk=chunk)
            answer = embed(engine, prompt(model), pooling)
            engine.run()
            assert np.array_equal(vector(answer), alone(model, pooling))

    def test_neighbours(self, model: str, pooling: Pooling) -> None:
        engine = drive(model, prefill_chunk=48, max_running=8)
        ids = prompt(model)
        for number in range(3):
            engine.add(ids[number * 9 : number * 9 + 20], params(max_tokens=60, temperature=1.0, ignore_eos=True))
        engine.step()
        others = [
            (other, 40 + 13 * number, embed(engine, ids[: 40 + 13 * number], other))
            for number, other in enumerate(POOLINGS)
        ]
        answer = embed(engine, ids, pooling)
        engine.run()
        assert np.array_equal(vector(answer), alone(model, pooling))
        for other, length, given_answer in others:
            assert np.array_equal(vector(given_answer), alone(model, other, length))

    def test_preemption(self, model: str, pooling: Pooling) -> None:
        engine = drive(model, prefill_chunk=32)
        answer = embed(engine, prompt(model), pooling, "subject")
        for number in range(40):
            engine.step()
            subject = engine.core.requests.get("subject")
            if number in (1, 4, 11) and subject is not None:
                engine.core.scheduler.preempt(subject)
        engine.run()
        assert engine.core.scheduler.counts.preemptions >= 2
        assert np.array_equal(vector(answer), alone(model, pooling))

    def test_a_warm_cache(self, model: str, pooling: Pooling) -> None:
        """Only the last row needs no others: it begins with what is cached. Everybody leaves blocks for the next."""
        engine = drive(model)
        embed(engine, prompt(model)[:200], pooling)
        engine.run()
        answer = embed(engine, prompt(model), pooling)
        engine.run()
        assert answer.done.cached_tokens == (192 if pooling is Pooling.LAST else 0)
        assert np.array_equal(vector(answer), alone(model, pooling))
        stream = engine.one(prompt(model), params(max_tokens=4))
        assert stream.done.cached_tokens == 288


@native
def test_a_stream_is_not_held_up_and_not_changed() -> None:
    """While long texts are embedded in chunks, a running stream gets its token in every step."""
    ids = prompt("llama")
    request = params(max_tokens=40, ignore_eos=True, num_logprobs=0)
    lonely = drive("llama").one(ids[:50], request)
    engine = drive("llama", prefill_chunk=16)
    stream = engine.add(ids[:50], request)
    while not stream.token_ids:
        engine.step()
    texts = [embed(engine, ids[number:], Pooling.MEAN) for number in range(4)]
    while not stream.finish:
        before = len(stream.token_ids)
        engine.step()
        assert len(stream.token_ids) > before
    assert any(text.finish is None for text in texts), "the texts were too short to meet the stream"
    assert (stream.token_ids, stream.draws) == (lonely.token_ids, lonely.draws)
    engine.run()


@native
def test_no_head_is_computed_for_an_embedding() -> None:
    engine = drive("llama")
    embed(engine, prompt("llama")[:40], Pooling.LAST)
    plan = engine.core.scheduler.schedule()
    assert [(rows.num_rows, rows.num_logits) for rows in plan.entries] == [(40, 0)]


# --- endings -------------------------------------------------------------------------------------------------------


@native
@pytest.mark.parametrize("pooling", POOLINGS)
def test_cancelled_texts_leave_nothing_behind(pooling: Pooling) -> None:
    engine = drive("gemma3", prefill_chunk=32)
    answers = [embed(engine, prompt("gemma3")[number:], pooling, f"e{number}") for number in range(6)]
    for number in range(6):
        engine.step()
        engine.cancel(f"e{number}")
    engine.step()
    engine.check_idle()
    assert [answer.done.reason for answer in answers] == [FinishReason.CANCELLED] * 6
    assert all(answer.embedding is None for answer in answers)


@native
def test_rows_that_are_not_numbers_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = drive("llama")
    read = engine.core.runner.rows

    def spoiled(name: str, number: int, count: int) -> NDArray[np.float32]:
        rows = read(name, number, count).copy()
        if number == 0:
            rows[-1, 3] = np.nan
        return rows

    monkeypatch.setattr(engine.core.runner, "rows", spoiled)
    bad, good = embed(engine, prompt("llama"), Pooling.LAST), embed(engine, prompt("llama")[9:], Pooling.LAST)
    engine.run()
    assert bad.done.reason is FinishReason.ERROR and bad.done.error is not None and bad.done.error.status == 500
    assert good.done.reason is FinishReason.POOLED


def test_a_program_without_hidden_rows_is_refused_at_submission() -> None:
    engine = Engine(FakeModel(), FakeBackend(), EngineConfig(measure_cost=False, kv_memory=1 << 20))  # type: ignore[arg-type]
    submission = Submission("r", [1, 2], ONLY_PROMPT, b"", lambda output: None, pooling=Pooling.LAST)
    with pytest.raises(RequestError, match="no hidden rows"):
        engine.submit(submission)
    engine.stop()


# --- pooling on its own --------------------------------------------------------------------------------------------


@given(st.data())
def test_a_mean_does_not_depend_on_chunks(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 40))
    rows = np.random.default_rng(data.draw(st.integers(0, 99))).standard_cauchy((count, 7)).astype(np.float32)
    whole, pieces = make_pooler(Pooling.MEAN), make_pooler(Pooling.MEAN)
    whole.feed(rows, 0)
    pieces.feed(rows[: data.draw(st.integers(1, count))], 0)  # what a preemption throws away
    start = 0
    while start < count:
        stop = data.draw(st.integers(start + 1, count))
        pieces.feed(rows[start:stop], start)
        start = stop
    assert np.array_equal(whole.vector(), pieces.vector())
    np.testing.assert_allclose(whole.vector(), rows.astype(np.float64).mean(0), rtol=1e-9, atol=1e-9)


def test_normalised() -> None:
    whole = normalised(np.array([3.0, 4.0, 12.0]), 3)
    assert whole.dtype == np.float32
    np.testing.assert_allclose(whole, [3 / 13, 4 / 13, 12 / 13], rtol=1e-7)
    np.testing.assert_allclose(normalised(np.array([3.0, 4.0, 12.0]), 2), [0.6, 0.8], rtol=1e-7)
    assert normalised(np.zeros(3), 3).tolist() == [0, 0, 0]
