"""Every architecture against logits and hidden states that others computed, with float32 keys and values.

Where a backend multiplies in float32 the numbers must be the same within a tolerance; where it rounds activations to 8
bits (quantised weights on the CPU backend) the logits must correlate and the best tokens mostly agree.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from harness import ORACLE, ProgramRunner, open_model
from numpy.typing import NDArray

from surefoot.kernels.backend import Backend
from surefoot.kernels.program import Linear, Program, Tap
from surefoot.kernels.registry import create_backend, has_native_module

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
def path(request: pytest.FixtureRequest) -> Path:
    return request.param


NATIVE = pytest.mark.skipif(not has_native_module(), reason="the native module was not built")


@pytest.fixture(scope="module", params=["reference", pytest.param("cpu", marks=NATIVE)])
def backend(request: pytest.FixtureRequest) -> Iterator[Backend]:
    yield create_backend(request.param)


def multiplies_in_float32(backend: Backend, program: Program) -> bool:
    """Whether activations stay unrounded: everywhere, or with weights that are floats themselves."""
    types = {op.weight.type.name for op in program.ops if isinstance(op, Linear)}
    return backend.name == "reference" or types <= {"F32", "F16", "BF16"}


def assert_near(logits: NDArray[np.float32], case: Case, *, exact: bool) -> None:
    """Logits of all prompt rows against the case."""
    agreeing = logits.argmax(-1) == case["argmax"]
    if exact:
        np.testing.assert_allclose(logits[-4:], case["logits_last4"], rtol=0, atol=TOLERANCE)
        assert agreeing.all()
    else:
        assert np.corrcoef(logits[-4:].ravel(), case["logits_last4"].ravel())[0, 1] > 0.99
        assert agreeing.mean() >= 0.8


@pytest.mark.parametrize("prompt", ["p5", "p40", "p300"])
def test_logits_and_greedy_tokens(backend: Backend, path: Path, prompt: str) -> None:
    case = Case(expected_of(path), prompt)
    program = open_model(path).program
    runner = ProgramRunner(backend, program)
    logits = runner.feed(case.ids)
    assert_near(logits, case, exact=multiplies_in_float32(backend, program))
    if not multiplies_in_float32(backend, program):
        return
    greedy = case["greedy"].astype(int)
    close = np.flatnonzero(case["greedy_margin"] < UNDECIDED)
    decided = int(close[0]) if len(close) else len(greedy)
    assert decided > 0
    tokens, last = runner.greedy(int(logits[-1].argmax()), len(greedy))
    assert tokens[:decided] == greedy[:decided].tolist()
    if decided == len(greedy):
        np.testing.assert_allclose(last, case["greedy_last_logits"], rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("path", [p for p in FILES if "p40_hidden_last" in expected_of(p)], ids=name_of)
def test_hidden_states(backend: Backend, path: Path) -> None:
    case = Case(expected_of(path), "p40")
    program = open_model(path).program
    layers = len(case["hidden_last"]) - 1
    taps = (*(f"residual.{layer}" for layer in range(layers + 1)), "hidden")
    assert program.tap_names == taps
    runner = ProgramRunner(backend, program)
    runner.step({0: case.ids.tolist()}, taps=taps, want="last")
    names = [*taps[:layers], "hidden"]
    for name, expected in zip(names, case["hidden_last"], strict=True):
        assert runner.outputs[name].shape == (40, program.ops[0].out.width)  # type: ignore[union-attr]
        scale = np.abs(expected).max()
        tolerance = 2e-5 if multiplies_in_float32(backend, program) else 0.1
        np.testing.assert_allclose(
            runner.outputs[name][-1] / scale, expected / scale, rtol=0, atol=tolerance, err_msg=name
        )


def test_taps_come_before_what_changes_their_buffer(path: Path) -> None:
    ops = open_model(path).program.ops
    names = [op.name for op in ops if isinstance(op, Tap)]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("path", [path for path in EVERY_FILE if path not in FILES], ids=name_of)
def test_other_weight_types_stay_near_float32(backend: Backend, path: Path) -> None:
    case = Case(expected_of(path.with_name("model.gguf")), "p300")
    logits = ProgramRunner(backend, open_model(path).program).feed(case.ids)
    correlation = np.corrcoef(logits[-4:].ravel(), case["logits_last4"].ravel())[0, 1]
    assert correlation > (0.99 if path.stem.endswith("q8_0") else 0.999)
    assert np.mean(logits.argmax(-1) == case["argmax"]) > 0.9


@pytest.mark.parametrize("chunks", [[16], [1, 39, 64, 7]], ids=str)
def test_chunks_change_nothing_that_matters(backend: Backend, path: Path, chunks: list[int]) -> None:
    case = Case(expected_of(path), "p300")
    program = open_model(path).program
    logits = ProgramRunner(backend, program, seed=5).feed(case.ids, chunks=chunks)
    assert_near(logits, case, exact=multiplies_in_float32(backend, program))


def test_sequences_in_one_step_do_not_meet(backend: Backend, path: Path) -> None:
    cases = [Case(expected_of(path), prompt) for prompt in ("p40", "p5", "p300")]
    program = open_model(path).program
    runner = ProgramRunner(backend, program, sequences=3)
    rows = runner.step({slot: case.ids.tolist() for slot, case in enumerate(cases)})
    for slot, case in enumerate(cases):
        assert_near(rows[slot], case, exact=multiplies_in_float32(backend, program))
