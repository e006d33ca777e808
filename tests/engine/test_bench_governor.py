"""Recordings and regrets: what is recorded is right, what is replayed is bounded, and nothing sees the future."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest
from harness import DATA, ORACLE

from surefoot.engine.bench import regret
from surefoot.engine.bench.recording import (
    Guesses,
    RecordedAnswer,
    Recording,
    all_guesses,
    load_recording,
    record,
)
from surefoot.engine.bench.regret import SURFACES, Causality, causality, measured_surface, regrets
from surefoot.engine.bench.texts import TURNS
from surefoot.engine.speculation.ngram_index import NgramIndex
from surefoot.engine.speculation.replay import Trace, opportunities
from surefoot.kernels.errors import ConfigError
from surefoot.kernels.registry import has_native_module
from surefoot.server.cli import main

TRACES = DATA / "traces"
TINY = ORACLE / "llama-quants" / "model-Q4_K_M.gguf"
needs_native = pytest.mark.skipif(not has_native_module(), reason="the native module is not built")


@cache
def stored() -> Recording:
    return load_recording(TRACES / "smollm2-135m-instruct.json")


def test_guesses_are_those_that_the_index_has() -> None:
    """Two ways to the same numbers: the drafter asked through its contract, and its index directly."""
    for answer in stored().answers[::9]:
        (found,) = all_guesses(answer.prompt, answer.output, 1 << 30).values()
        chances = opportunities(answer.trace, NgramIndex)
        assert found.accepted == [
            min(chance.accepted, len(chances) - 1 - i) if i < len(chances) - 1 else 0
            for i, chance in enumerate(chances)
        ]
        assert [bool(n) for n in found.drafted[:-1]] == [chance.match is not None for chance in chances[:-1]]


def test_a_recording_survives_the_disk(tmp_path: Path) -> None:
    answer = RecordedAnswer("prose", 0.8, [1, 2, 3], [4, 5], {"ngram": Guesses([0], [0])})
    recording = Recording("a model", {1: 0.01, 2: 0.011}, [answer])
    recording.save(tmp_path / "r.json")
    assert load_recording(tmp_path / "r.json") == recording


@pytest.mark.parametrize(
    "content", ["nonsense", "[]", '{"answers": []}', '[{"kind": "x"}]', '{"model": 1, "costs": 2, "answers": []}']
)
def test_what_is_no_recording_is_refused(content: str, tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    path.write_text(content)
    with pytest.raises(ConfigError, match=r"r\.json"):
        load_recording(path)


def test_regrets_keep_their_order() -> None:
    """Foresight beats hindsight, a choice of match too beats a window alone, and plain is one of the windows."""
    traces = [answer.trace for answer in stored().answers[::9]]
    for surface in SURFACES.values():
        lines = regrets(traces, surface)
        for line in lines:
            assert line.clairvoyant <= line.tuned <= line.fixed <= line.plain == line.tokens
            assert all(line.clairvoyant <= cost for cost in line.governed.values())
        whole = lines[-1]
        assert whole.kind == "all" and whole.tokens == sum(line.tokens for line in lines[:-1])
        assert whole.over(2 * whole.governed["cost"]) == -0.5


def test_a_measured_surface_counts_in_plain_steps() -> None:
    surface = measured_surface({1: 0.02, 2: 0.025, 4: 0.03})
    assert [surface(rows) for rows in (1, 2, 3, 4)] == pytest.approx([1, 1.25, 1.375, 1.5])


def test_no_decision_sees_the_future() -> None:
    traces = [answer.trace for answer in stored().answers[::8]]
    checked = causality(traces, SURFACES["large model"])
    assert checked.different == 0 and checked.compared > 300


def test_a_decision_that_sees_the_future_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check can fail: decisions that depend on the whole text are different ones."""

    def peeking(traces: list[Trace], surface: object, governor: str, noise: float, cut: int) -> list[tuple[int, int]]:
        return [(at, sum(traces[-1].output) % 7) for at in range(1, cut)]

    monkeypatch.setattr(regret, "_decisions", peeking)
    checked = causality([Trace("x", [1], [1, 2, 3, 4, 5, 6])], SURFACES["large model"], governors=["cost"])
    assert checked == Causality(compared=2, different=2)


@needs_native
def test_the_command_records_and_replays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, out = tmp_path / "recorded.json", tmp_path / "out.json"
    with pytest.raises(SystemExit) as end:
        main(["bench", "governor", str(file), "--record", str(TINY), "--tokens", "16", "--json", str(out)])
    assert end.value.code == 0
    recorded = load_recording(file)
    assert {answer.kind for answer in recorded.answers} <= set(TURNS) and recorded.costs[1] > 0
    assert all(len(a.guesses["ngram"].drafted) == len(a.output) - 1 for a in recorded.answers)
    (report,) = json.loads(out.read_text())["surfaces"]
    assert report["surface"] == "measured" and report["lines"][-1]["kind"] == "all"
    assert "decisions that saw the future: 0 of" in capsys.readouterr().out


@needs_native
def test_greedy_answers_are_recorded_alike() -> None:
    first, second = (record(TINY, 8, context=512) for _ in range(2))
    assert [a.output for a in first.answers] == [a.output for a in second.answers]


@pytest.mark.parametrize("arguments", [[], [str(TRACES / "smollm2-135m-instruct.json"), "--surface", "flat"]])
def test_the_command_says_what_it_needs(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["bench", "governor", *arguments])
    assert end.value.code == 2
    assert ("--record MODEL" if not arguments else "known are small model") in capsys.readouterr().err
