"""`bench kernels`: limits and shares, and the command on a tiny model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from harness import ORACLE

from surefoot.engine.bench.opened import OpenedModel
from surefoot.kernels.formats import KvType
from surefoot.kernels.registry import has_native_module
from surefoot.models.load import load_model
from surefoot.server.cli import main

pytestmark = pytest.mark.skipif(not has_native_module(), reason="the native module is not built")

TINY = ORACLE / "llama-quants" / "model-Q4_K_M.gguf"


def test_the_slower_limit_counts() -> None:
    from surefoot.engine.bench.kernels import OpTime, RowsReport

    slow = OpTime("a", 2, seconds=4.0, bytes=8, memory_seconds=1.0, arithmetic_seconds=2.0)
    free = OpTime("b", 1, seconds=1.0)
    assert (slow.limit_seconds, slow.share_of_limit, free.share_of_limit) == (2.0, 0.5, None)
    whole = RowsReport(4, 4, 10, 5.0, [slow, free]).whole
    assert (whole.count, whole.bytes, whole.limit_seconds, whole.share_of_limit) == (3, 8, 2.0, 0.4)


def test_the_command_tells_every_operation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "kernels.json"
    shape = ["--rows", "1,3,80", "--context", "40", "--seconds", "0.02", "--threads", "1"]
    main_and_exit(["bench", "kernels", str(TINY), *shape, "--json", str(out)])
    report = json.loads(out.read_text())
    assert report["machine"]["threads"] == 1 and report["machine"]["bytes"] > 0
    assert [(part["rows"], part["logits_rows"]) for part in report["rows"]] == [(1, 1), (3, 3), (80, 1)]
    for part in report["rows"]:
        labels = [op["label"] for op in part["ops"]]
        assert {"attention", "products attn_output", "gated ffn_gate+ffn_up"} <= set(labels)
        assert len(labels) == len(set(labels))
        assert part["steps"] >= 3 and part["share_of_limit"] > 0
        assert sum(op["seconds"] for op in part["ops"]) <= 1.5 * part["seconds"]
    read = [sum(op["bytes"] for op in part["ops"]) for part in report["rows"]]
    assert read[0] < read[1] < read[2] < 1.5 * read[0]  # the weights once, and what is in the cache
    printed = capsys.readouterr().out
    assert "share of limit" in printed and "machine before" in printed and "GB/s read" in printed


def main_and_exit(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert end.value.code == 0


@pytest.mark.parametrize(
    ("arguments", "complaint"), [(["--rows", "0"], "--rows '0'"), (["--kv-type", "f8"], "KV type 'f8'")]
)
def test_bad_arguments_are_one_line(arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["bench", "kernels", str(TINY), *arguments])
    assert end.value.code == 2 and complaint in capsys.readouterr().err


def test_a_backend_without_a_profile_is_refused() -> None:
    from fake_backend import FakeBackend

    from surefoot.engine.bench.kernels import measure
    from surefoot.kernels.errors import ConfigError

    with pytest.raises(ConfigError, match="does not tell its time"):
        measure(OpenedModel(load_model(TINY), FakeBackend(), KvType.F16))
