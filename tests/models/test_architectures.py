"""Every architecture against logits and hidden states that others computed, on the reference backend in float32."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from harness import ORACLE, ProgramRunner, open_model
from numpy.typing import NDArray

from surefoot.kernels.program import Tap
from surefoot.kernels.reference.backend import ReferenceBackend

EVERY_FILE = sorted(ORACLE.glob("*/*.gguf"))
TOLERANCE = 1e-3  # absolute, on logits whose standard deviation is 3 to 10
UNDECIDED = 2e-3  # a greedy step with a smaller margin may go either way


@dataclass(frozen=True)
class Case:
    """A prompt and what must come of it."""

    expected: dict[str, NDArray[np.float32]]
    prompt: str

    def __getitem__(self, key: str) -> NDArray[np.float32]:
        return self.expected[f"{self.prompt}_{key}"]

    @property
    def ids(self) -> NDArray[np.int32]:
        return self["ids"].astype(np.int32)


def expectations(path: Path) -> Path:
    return path.with_name(path.stem.replace("model", "expected") + ".npz")


def expected_of(path: Path) -> dict[str, NDArray[np.float32]]:
    return dict(np.load(expectations(path)))


def name_of(path: Path) -> str:
    return f"{path.parent.name}-{path.stem.removeprefix('model').lstrip('-') or 'F32'}"


FILES = [path for path in EVERY_FILE if expectations(path).exists()]


@pytest.fixture(scope="module", params=FILES, ids=name_of)
def path(request: pytest.FixtureRequest) -> Iterator[Path]:
    yield request.param


@pytest.mark.parametrize("prompt", ["p5", "p40", "p300"])
def test_logits_and_greedy_tokens(path: Path, prompt: str) -> None:
    case = Case(expected_of(path), prompt)
    runner = ProgramRunner(ReferenceBackend(), open_model(path).program)
    logits = runner.feed(case.ids)
    np.testing.assert_allclose(logits[-4:], case["logits_last4"], rtol=0, atol=TOLERANCE)
    np.testing.assert_array_equal(logits.argmax(-1), case["argmax"])

    greedy = case["greedy"].astype(int)
    close = np.flatnonzero(case["greedy_margin"] < UNDECIDED)
    decided = int(close[0]) if len(close) else len(greedy)
    assert decided > 0
    tokens, last = runner.greedy(int(logits[-1].argmax()), len(greedy))
    assert tokens[:decided] == greedy[:decided].tolist()
    if decided == len(greedy):
        np.testing.assert_allclose(last, case["greedy_last_logits"], rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("path", [p for p in FILES if "p40_hidden_last" in expected_of(p)], ids=name_of)
def test_hidden_states(path: Path) -> None:
    case = Case(expected_of(path), "p40")
    program = open_model(path).program
    layers = len(case["hidden_last"]) - 1
    taps = (*(f"residual.{layer}" for layer in range(layers + 1)), "hidden")
    assert program.tap_names == taps
    runner = ProgramRunner(ReferenceBackend(), program)
    runner.step({0: case.ids.tolist()}, taps=taps, want="last")
    names = [*taps[:layers], "hidden"]
    for name, expected in zip(names, case["hidden_last"], strict=True):
        assert runner.outputs[name].shape == (40, program.ops[0].out.width)  # type: ignore[union-attr]
        scale = np.abs(expected).max()
        np.testing.assert_allclose(runner.outputs[name][-1] / scale, expected / scale, rtol=0, atol=2e-5, err_msg=name)


def test_taps_come_before_what_changes_their_buffer(path: Path) -> None:
    ops = open_model(path).program.ops
    names = [op.name for op in ops if isinstance(op, Tap)]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("path", [path for path in EVERY_FILE if path not in FILES], ids=name_of)
def test_other_weight_types_stay_near_float32(path: Path) -> None:
    case = Case(expected_of(path.with_name("model.gguf")), "p300")
    logits = ProgramRunner(ReferenceBackend(), open_model(path).program).feed(case.ids)
    correlation = np.corrcoef(logits[-4:].ravel(), case["logits_last4"].ravel())[0, 1]
    assert correlation > (0.99 if path.stem.endswith("q8_0") else 0.999)
    assert np.mean(logits.argmax(-1) == case["argmax"]) > 0.9


@pytest.mark.parametrize("chunks", [[16], [1, 39, 64, 7]], ids=str)
def test_chunks_change_nothing_that_matters(path: Path, chunks: list[int]) -> None:
    case = Case(expected_of(path), "p300")
    logits = ProgramRunner(ReferenceBackend(), open_model(path).program, seed=5).feed(case.ids, chunks=chunks)
    np.testing.assert_allclose(logits[-4:], case["logits_last4"], rtol=0, atol=TOLERANCE)
    np.testing.assert_array_equal(logits.argmax(-1), case["argmax"])


def test_sequences_in_one_step_do_not_meet(path: Path) -> None:
    cases = [Case(expected_of(path), prompt) for prompt in ("p40", "p5", "p300")]
    runner = ProgramRunner(ReferenceBackend(), open_model(path).program, sequences=3)
    rows = runner.step({slot: case.ids.tolist() for slot, case in enumerate(cases)})
    for slot, case in enumerate(cases):
        np.testing.assert_allclose(rows[slot][-4:], case["logits_last4"], rtol=0, atol=TOLERANCE)
