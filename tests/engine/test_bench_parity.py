"""Parity: it finds nothing where rows are exact, and everything where they are not."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness import ORACLE
from numpy.typing import NDArray

from surefoot.engine.bench.opened import OpenedModel, open_model
from surefoot.engine.bench.parity import RowClass, compare, measure
from surefoot.kernels.backend import Executor, KvPool, Limits, StatePool, StepBatch
from surefoot.kernels.cpu.backend import CpuBackend
from surefoot.kernels.errors import ConfigError, StartError
from surefoot.kernels.formats import KvType
from surefoot.kernels.program import KvGroup, Program
from surefoot.kernels.registry import has_native_module
from surefoot.models.load import load_model
from surefoot.server.cli import main

pytestmark = pytest.mark.skipif(not has_native_module(), reason="the native module is not built")

TINY = ORACLE / "llama-quants" / "model-Q4_K_M.gguf"
BEND = 2.0**-6


class BentExecutor:
    """Every row of a step but the first has other logits than it would have alone."""

    def __init__(self, inner: Executor) -> None:
        self._inner = inner
        self.program = inner.program

    def step(self, batch: StepBatch) -> None:
        self._inner.step(batch)

    def logits(self) -> NDArray[np.float32]:
        logits = self._inner.logits().copy()
        logits[1:] += np.float32(BEND)
        logits[1:, 7] = 1e6
        return logits

    def output(self, name: str) -> NDArray[np.float32]:
        return self._inner.output(name)

    def cancel(self) -> None:
        self._inner.cancel()


class BentBackend(CpuBackend):
    def load(
        self, program: Program, pools: Mapping[KvGroup, KvPool], limits: Limits, states: StatePool | None = None
    ) -> Executor:
        return BentExecutor(super().load(program, pools, limits, states))


def test_verifies_of_an_exact_backend_are_the_same_bits() -> None:
    report = measure(open_model(TINY, threads=2), [3, 1, 4, 1, 5], 20)
    assert [row_class.rows for row_class in report.classes] == list(range(2, 18))
    assert all(row_class.compared == 20 for row_class in report.classes)
    assert report.num_different == 0 and report.exact and not report.promise_broken
    assert all(row_class.largest_error == 0 and not row_class.flips for row_class in report.classes)


def test_a_row_that_is_not_what_it_was_alone_is_found() -> None:
    opened = OpenedModel(load_model(TINY), BentBackend(1), KvType.F32)
    (pair,) = measure(opened, [3, 1, 4, 1, 5], 12, windows=(3,)).classes
    firsts = pair.compared - pair.different  # steps: the first row of each is left alone
    assert pair.compared == 12 and 3 <= firsts < 12
    assert pair.largest_error > 1e5
    assert len(pair.flips) == pair.different
    assert all(flip.verify == 7 and flip.plain != 7 and flip.margin >= 0 for flip in pair.flips)


def test_what_a_flip_says() -> None:
    row_class = RowClass(rows=4)
    plain = np.array([1.0, 3.0, 2.5], np.float32)
    compare(plain, plain.copy(), 9, row_class)
    compare(plain, np.array([1.0, 2.0, 2.25], np.float32), 10, row_class)
    assert (row_class.compared, row_class.different, row_class.largest_error) == (2, 1, 1.0)
    (flip,) = row_class.flips
    assert (flip.position, flip.rows, flip.plain, flip.verify, flip.margin) == (10, 4, 1, 2, 0.5)


def test_a_row_that_is_no_number_stays_visible() -> None:
    row_class = RowClass(rows=2)
    for row in (np.array([math.nan, 0], np.float32), np.array([0, 1], np.float32)):
        compare(np.zeros(2, np.float32), row, 0, row_class)
    assert math.isnan(row_class.largest_error) and row_class.different == 2


def test_bad_questions_are_refused() -> None:
    with pytest.raises(ConfigError, match="at least one token"):
        measure(open_model(TINY), [], 4)
    with pytest.raises(StartError, match="KV type 'f8'"):
        open_model(TINY, kv_type="f8")


@pytest.mark.parametrize("bent", [False, True])
def test_the_command_exits_with_1_where_the_promise_is_broken(
    bent: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def create(name: str | None, threads: int | None) -> Any:
        return BentBackend(threads) if bent else CpuBackend(threads)

    monkeypatch.setattr("surefoot.engine.bench.opened.create_backend", create)
    out = tmp_path / "parity.json"
    with pytest.raises(SystemExit) as end:
        main(["bench", "parity", str(TINY), "--positions", "6", "--json", str(out)])
    assert end.value.code == int(bent)
    printed = capsys.readouterr().out
    assert ("although the backend says" in printed) is bent
    assert ("same bits" in printed) is not bent
    assert ('"different": 0' in out.read_text()) is not bent
    assert "load" in printed


def test_a_model_that_cannot_go_back_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="has recurrent layers"):
        measure(open_model(ORACLE / "qwen35" / "model.gguf", threads=1), [3, 1, 4], 4)
