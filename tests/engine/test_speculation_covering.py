"""On real files, a pairwise covering set of what may stand around a speculating request: the same ids and the same
log-probabilities as plain decoding, by bits.

The references are plain, alone, in one chunk, without a prefix cache. Contexts lie before, across and far behind the
window of 512 positions of Gemma's local layers; blocks that leave it are filled with NaN.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest
from covering import all_pairs, covering, pairs_of
from engine_drive import Answer, Drive, params
from harness import DATA
from real_models import real_model
from speculation_doubles import Scripted

from surefoot.engine.active_request import ActiveRequest
from surefoot.engine.request import GenerationParams
from surefoot.engine.sequence import Rows
from surefoot.engine.speculation import session
from surefoot.engine.speculation.armed import Tracked
from surefoot.engine.speculation.contract import Capabilities, Draft, DraftContext
from surefoot.engine.speculation.policy import SpeculationPolicy
from surefoot.engine.speculation.registry import Entry, Registry
from surefoot.engine.step_speculation import StepSpeculation
from surefoot.kernels.backend import Backend
from surefoot.kernels.formats import KvType
from surefoot.kernels.registry import create_backend, has_native_module
from surefoot.models.load import LoadedModel, load_model

PLAIN = SpeculationPolicy(enabled=False)
LENGTH = 48  # tokens of an answer
AXES: dict[str, Sequence[object]] = {
    "model": ["smollm2-135m-instruct-q4_1", "gemma3-270m-q4_k_m"],
    "speculator": ["ngram", "draft-model", "auto", "recorded"],
    "window": [1, 3, 7, 16],
    "governor": ["off", "probe", "cost"],
    "temperature": [0.0, 0.8, 1.0],
    "kv_type": [KvType.F16, KvType.Q8_0, KvType.BF16],
    "context": [480, 505, 1200],  # the second crosses Gemma's window while it decodes
    "company": ["alone", "batch", "busy spell"],
    "chunk": [37, 512],
    "prefix": ["cold", "partly cached", "cached"],
}
CASES = covering(AXES, seed=4)


def test_the_set_covers_every_pair() -> None:
    covered = set().union(*(pairs_of(case) for case in CASES))
    assert covered == all_pairs(AXES)
    assert len(CASES) <= 24


@cache
def loaded(name: str) -> LoadedModel:
    return load_model(real_model(name))


@cache
def backend() -> Backend:
    return create_backend("cpu", 2)


@cache
def text(name: str) -> list[int]:
    """The recorded cases of a file, one after the other, again and again."""
    cases = json.loads((DATA / "real" / f"{name}.json").read_text())["complete"]
    return [token for case in cases for token in case["prompt_ids"]] * 40


def settings(temperature: float, max_tokens: int = LENGTH, seed: int = 5) -> GenerationParams:
    return params(max_tokens=max_tokens, seed=seed, temperature=temperature, num_logprobs=3, ignore_eos=True)


@cache
def plain(name: str, kv_type: KvType, context: int, temperature: float) -> Answer:
    engine = Drive(
        loaded(name),
        backend(),
        kv_type=kv_type,
        kv_memory=128 << 20,
        context_length=1280,
        speculation=PLAIN,
        prefix_cache=False,
    )
    return engine.one(text(name)[:context], settings(temperature))


class Watched:
    """A speculative loop that notes how many drafts of each verified window were accepted."""

    def __init__(self, loop: StepSpeculation) -> None:
        self._loop = loop
        self._windows: dict[str, int] = {}
        self.seen: Counter[tuple[int, int]] = Counter()  # (drafted, accepted) of every verify

    @property
    def taps(self) -> tuple[str, ...]:
        return self._loop.taps

    def prepare(self, running: Sequence[ActiveRequest], crowded: bool) -> None:
        self._loop.prepare(running, crowded)

    def draft(self, entries: Sequence[Rows[ActiveRequest]]) -> Sequence[Sequence[int]]:
        drafts = self._loop.draft(entries)
        self._windows = {
            rows.sequence.request_id: len(ids) for rows, ids in zip(entries, drafts or [()] * len(entries), strict=True)
        }
        return drafts

    def accepted(
        self, sequence: ActiveRequest, start: int, num_accepted: int, first_row: int, num_certain: int
    ) -> None:
        if window := self._windows[sequence.request_id]:
            self.seen[window, num_accepted] += 1
        self._loop.accepted(sequence, start, num_accepted, first_row, num_certain)

    def finish(self, sequences: int, rows: int, prefill_rows: int) -> None:
        self._loop.finish(sequences, rows, prefill_rows)

    def release(self, sequence: ActiveRequest) -> Tracked | None:
        return self._loop.release(sequence)


def recorded(reference: Answer, context: int) -> Scripted:
    """Drafts the subject's answer itself, with mistakes close together and far apart."""

    def script(asked: DraftContext) -> Draft:
        done = asked.position + 1 - context
        if asked.state != "subject":
            return Draft([], reason="not recorded")
        ids = reference.token_ids[done : done + asked.max_tokens]
        wrong = [token + 1 if (done + i) % 23 in (3, 5, 6) else token for i, token in enumerate(ids)]
        return Draft(wrong, [0] * len(wrong))

    return Scripted(script, Capabilities("recorded", 64, (0.9,)))


def opened(case: dict[str, Any], reference: Answer) -> Drive:
    """An engine with the case's policy, its prefix cache filled as the case says."""
    name, speculator = case["model"], case["speculator"]
    policy = SpeculationPolicy(
        governor=case["governor"],
        draft_tokens=case["window"],
        type="auto" if speculator == "recorded" else speculator,
        max_batch=4 if case["company"] == "batch" else 1,
    )
    weights = {"draft_model": str(real_model(name))} if speculator in ("draft-model", "auto") else {}
    engine = Drive(
        loaded(name),
        backend(),
        kv_type=case["kv_type"],
        kv_memory=384 << 20,
        context_length=1280,
        prefill_chunk=case["chunk"],
        speculation=policy,
        **weights,
    )
    if speculator == "recorded":
        made = recorded(reference, case["context"])
        engine.core.session.arming.registry = Registry().extended("recorded", Entry(lambda target, resources: made))
        engine.core.session.change({"type": "recorded"})
    cached = {"cold": 0, "partly cached": 300, "cached": case["context"]}[case["prefix"]]
    if cached:
        engine.one(text(name)[:cached], settings(0.0, 1), name="earlier")
    return engine


def serve(engine: Drive, case: dict[str, Any]) -> Answer:
    """The subject, alone or among neighbours that come and go."""
    ids = text(case["model"])
    subject = engine.add(ids[: case["context"]], settings(case["temperature"]), name="subject")
    if case["company"] == "batch":
        engine.add(ids[40:90], settings(0.7, 12, seed=1), name="short")
        engine.add(ids[7:77], settings(0.0, 60), name="long")
    step = 0
    while not subject.finish:
        engine.step()
        if case["company"] == "busy spell" and len(subject.token_ids) > 8 and "guest" not in engine.answers:
            engine.add(ids[11:61], settings(1.0, 9, seed=3), name="guest")
        step += 1
        assert step < 1000
    engine.run()
    return subject


@pytest.mark.slow
@pytest.mark.skipif(not has_native_module(), reason="the native module is not built")
@pytest.mark.parametrize("model", AXES["model"])
def test_every_pair_of_circumstances_gives_the_plain_answer(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "PAID_CATCH_UP_SECONDS", 60.0)  # a draft model reads in one piece
    seen: Counter[tuple[int, int]] = Counter()
    drafted: Counter[str] = Counter()
    for case in (case for case in CASES if case["model"] == model):
        reference = plain(model, case["kv_type"], case["context"], case["temperature"])
        engine = opened(case, reference)
        loop = engine.core.speculation = Watched(engine.core.session)
        answer = serve(engine, case)
        assert answer.token_ids == reference.token_ids, case
        assert answer.draws == reference.draws, case
        assert (answer.text, answer.done.reason) == (reference.text, reference.done.reason), case
        cached = answer.done.cached_tokens
        wanted = {"cold": 0, "partly cached": 288, "cached": (case["context"] - 1) // 32 * 32}[case["prefix"]]
        assert cached == wanted, case
        seen += loop.seen
        drafted += engine.core.session.counts.drafted
    assert set(drafted) == {"ngram", "draft-model", "recorded"}
    assert seen[1, 1] and seen[16, 16], f"windows were not accepted whole: {seen}"
    in_part = {accepted for window, accepted in seen if accepted < window}
    assert 0 in in_part and len(in_part) > 2, f"few windows were accepted in part: {seen}"
