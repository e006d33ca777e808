"""qwen35: what the oracle checkpoint does not reach, and what is refused."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf_bytes import Tensors, Value, pack, unpack
from harness import ORACLE, ProgramRunner
from numpy.typing import NDArray

from surefoot.kernels.errors import ModelFileError
from surefoot.kernels.program import Attend, Program, Rope, ShortConv
from surefoot.kernels.reference.backend import ReferenceBackend
from surefoot.models.checkpoint import Checkpoint
from surefoot.models.config import Definition
from surefoot.models.gguf import GgufFile
from surefoot.models.registry import build

IDS = [5, 900, 17, 17, 3, 250, 8]


@pytest.fixture
def oracle() -> tuple[dict[str, Value], Tensors]:
    return unpack(GgufFile.open(ORACLE / "qwen35" / "model.gguf"))


def definition(folder: Path, values: Mapping[str, Value], tensors: Tensors) -> Definition:
    path = folder / "m.gguf"
    path.unlink(missing_ok=True)  # an earlier model may still be mapped
    path.write_bytes(pack(values, tensors))
    return build(Checkpoint(GgufFile.open(path)))


def logits(program: Program) -> NDArray[np.float32]:
    return ProgramRunner(ReferenceBackend(), program).feed(IDS)


def test_layers_heads_and_rope(tmp_path: Path, oracle: tuple[dict[str, Value], Tensors]) -> None:
    built = definition(tmp_path, *oracle)
    program, group = built.program, built.program.recurrent
    assert group is not None and built.config.num_layers == 4
    assert (group.num_layers, group.kernel, group.key_heads, group.value_heads, group.key_dim) == (3, 4, 2, 4, 16)
    assert [op.layer for op in program.ops if isinstance(op, ShortConv)] == [0, 1, 2]
    assert [(kv.name, kv.num_layers) for kv in program.kv_groups] == [("full", 1)]
    assert sum(isinstance(op, Attend) for op in program.ops) == 1
    assert {op.table.num_rotated for op in program.ops if isinstance(op, Rope)} == {8}  # of heads of 32


def test_a_draft_head_is_named_and_left_alone(
    tmp_path: Path, oracle: tuple[dict[str, Value], Tensors], caplog: pytest.LogCaptureFixture
) -> None:
    values, tensors = oracle
    with caplog.at_level(logging.INFO, "surefoot"):
        with_head = logits(definition(tmp_path, values, tensors).program)
    assert [record.message for record in caplog.records] == ["Qwen35: block 4 is a NextN draft head, which is not used"]
    trunk = {name: tensor for name, tensor in tensors.items() if not name.startswith("blk.4.")}
    changes = {"qwen35.block_count": 4, "qwen35.attention.recurrent_layers": np.array([1, 1, 1, 0], "?")}
    values = {key: value for key, value in values.items() if key != "qwen35.nextn_predict_layers"} | changes
    caplog.clear()
    assert np.array_equal(logits(definition(tmp_path, values, trunk).program), with_head)
    assert not caplog.records
    with pytest.raises(ModelFileError, match=r"blk\.4\."):  # nobody said what a fifth block is
        definition(tmp_path, values, tensors)


def test_the_interval_says_which_layers_attend(tmp_path: Path, oracle: tuple[dict[str, Value], Tensors]) -> None:
    values, tensors = oracle
    expected = logits(definition(tmp_path, values, tensors).program)
    del values["qwen35.attention.recurrent_layers"]
    assert np.array_equal(logits(definition(tmp_path, values, tensors).program), expected)
    del values["qwen35.full_attention_interval"]  # four is what it is without
    assert np.array_equal(logits(definition(tmp_path, values, tensors).program), expected)


def test_rows_of_query_and_gate_are_told_apart_in_quantised_weights(
    tmp_path: Path, oracle: tuple[dict[str, Value], Tensors]
) -> None:
    values, tensors = oracle
    expected = logits(definition(tmp_path, values, tensors).program)
    _, shape, raw = tensors["blk.3.attn_q.weight"]
    kind = gguf.GGMLQuantizationType.Q8_0
    quantised = gguf.quantize(np.frombuffer(raw, np.float32).reshape(shape), kind)
    tensors["blk.3.attn_q.weight"] = (int(kind), shape, quantised.tobytes())
    got = logits(definition(tmp_path, values, tensors).program)
    assert np.corrcoef(got.ravel(), expected.ravel())[0, 1] > 0.9999


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"qwen35.ssm.inner_size": 48}, r"ssm\.inner_size: is 48, not 4 heads of 16"),
        ({"qwen35.ssm.group_count": 3}, r"ssm\.group_count: is 3, which does not divide 4"),
        ({"qwen35.ssm.conv_kernel": 1}, r"ssm\.conv_kernel: is 1"),
        ({"qwen35.ssm.state_size": 32}, r"ssm\.inner_size"),
        ({"qwen35.nextn_predict_layers": 5}, r"nextn_predict_layers: is 5"),
        ({"qwen35.attention.value_length": 16}, r"attention\.value_length: is 16"),
        ({"qwen35.attention.recurrent_layers": np.ones(5, "?")}, r"one kind of layers only"),
        ({"qwen35.attention.recurrent_layers": np.ones(4, "?")}, r"has 4 entries for 5 layers"),
        ({"qwen35.rope.dimension_sections": np.array([2, 1, 1], "<i4")}, r"dimension_sections"),
        ({"qwen35.ssm.dt_b_c_rms": True}, r"ssm\.dt_b_c_rms: the setting is not implemented"),
    ],
)
def test_what_is_not_implemented_or_damaged_is_refused(
    tmp_path: Path, oracle: tuple[dict[str, Value], Tensors], changes: dict[str, Value], message: str
) -> None:
    values, tensors = oracle
    with pytest.raises(ModelFileError, match=message):
        definition(tmp_path, values | changes, tensors)


def test_a_tensor_that_nobody_knows_is_refused(tmp_path: Path, oracle: tuple[dict[str, Value], Tensors]) -> None:
    values, tensors = oracle
    tensors["blk.0.ssm_other.weight"] = tensors["blk.0.ssm_dt.bias"]
    with pytest.raises(ModelFileError, match=r"blk\.0\.ssm_other\.weight"):
        definition(tmp_path, values, tensors)
