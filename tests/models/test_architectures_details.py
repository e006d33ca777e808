"""What the oracle checkpoints do not reach: rope scaling, fused and biased tensors, patterns, caps, the page."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from gguf_bytes import Tensors, Value, f32, pack, tiny_llama, unpack
from harness import ORACLE, ProgramRunner
from numpy.typing import NDArray

from surefoot.kernels.errors import ModelFileError
from surefoot.kernels.program import Attend, Embed, Linear, Moe, Program, Rope, RopeTable, ScaleCap
from surefoot.kernels.reference.backend import ReferenceBackend
from surefoot.models.checkpoint import Checkpoint
from surefoot.models.config import Definition
from surefoot.models.gguf import GgufFile
from surefoot.models.registry import ARCHITECTURES, build

DOCS = Path(__file__).parents[2] / "docs" / "architectures.md"


def definition(folder: Path, values: dict[str, Value], tensors: Tensors) -> Definition:
    path = folder / "m.gguf"
    path.unlink(missing_ok=True)  # an earlier model may still be mapped: its file must not shrink under it
    path.write_bytes(pack(values, tensors))
    return build(Checkpoint(GgufFile.open(path)))


def logits(program: Program, ids: list[int]) -> NDArray[np.float32]:
    return ProgramRunner(ReferenceBackend(), program).feed(ids)


def rope_of(program: Program) -> RopeTable:
    return next(op.table for op in program.ops if isinstance(op, Rope))


def wide_llama() -> tuple[dict[str, Value], Tensors]:
    """The tiny llama with heads of 64, as many pairs as ramps need, and a context of 4,096 stretched by 8."""
    values, tensors = tiny_llama()
    values |= {"llama.attention.key_length": 64, "llama.context_length": 32768, "llama.rope.freq_base": 10000.0}
    tensors |= {"blk.0.attn_q.weight": f32(128, 8), "blk.0.attn_k.weight": f32(64, 8)}
    return values, tensors


PLAIN = 10000.0 ** (-np.arange(32) / 32)


def test_plain_and_linear_rope(tmp_path: Path) -> None:
    values, tensors = wide_llama()
    np.testing.assert_allclose(rope_of(definition(tmp_path, values, tensors).program).inv_freq, PLAIN, rtol=1e-12)
    for change in (
        {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 8.0},
        {"llama.rope.scaling.factor": 8.0},
        {"llama.rope.scale_linear": 8.0},
    ):
        table = rope_of(definition(tmp_path, values | change, tensors).program)
        np.testing.assert_allclose(table.inv_freq, PLAIN / 8, rtol=1e-12)
        assert table.magnitude == 1.0


def test_yarn_rope(tmp_path: Path) -> None:
    """Against the paper's own form: the ramp over wavelengths in units of the original context, between 1 and 32 turns.
    Converters round its ends to whole pairs, so pairs at the ends are compared with that rounding."""
    values, tensors = wide_llama()
    values |= {
        "llama.rope.scaling.type": "yarn",
        "llama.rope.scaling.factor": 8.0,
        "llama.rope.scaling.original_context_length": 4096,
    }
    table = rope_of(definition(tmp_path, values, tensors).program)
    assert table.magnitude == pytest.approx(0.1 * np.log(8) + 1)
    speeds = np.array(table.inv_freq)
    turns = 4096 * PLAIN / (2 * np.pi)
    first, last = int(np.flatnonzero(turns > 32)[-1]), int(np.flatnonzero(turns < 1)[0])
    np.testing.assert_allclose(speeds[: first + 1], PLAIN[: first + 1], rtol=1e-12)  # many turns: untouched
    np.testing.assert_allclose(speeds[last:], PLAIN[last:] / 8, rtol=1e-12)  # less than one: interpolated
    share = (np.arange(first, last + 1) - first) / (last - first)
    expected = PLAIN[first : last + 1] * (1 - share) + PLAIN[first : last + 1] / 8 * share
    np.testing.assert_allclose(speeds[first : last + 1], expected, rtol=1e-12)


def test_llama3_rope_divisors(tmp_path: Path) -> None:
    values, tensors = wide_llama()
    divisors = np.linspace(1, 8, 32, dtype="<f4")
    tensors["rope_freqs.weight"] = (0, (32,), divisors.tobytes())
    table = rope_of(definition(tmp_path, values, tensors).program)
    np.testing.assert_allclose(table.inv_freq, PLAIN / divisors.astype(np.float64), rtol=1e-12)
    tensors["rope_freqs.weight"] = (0, (32,), np.zeros(32, "<f4").tobytes())
    with pytest.raises(ModelFileError, match=r"rope_freqs\.weight: has a divisor"):
        definition(tmp_path, values, tensors)


def test_partial_rope(tmp_path: Path) -> None:
    values, tensors = wide_llama()
    table = rope_of(definition(tmp_path, values | {"llama.rope.dimension_count": 32}, tensors).program)
    np.testing.assert_allclose(table.inv_freq, 10000.0 ** (-np.arange(16) / 16), rtol=1e-12)
    with pytest.raises(ModelFileError, match=r"rope\.dimension_count: is 33, must be even"):
        definition(tmp_path, values | {"llama.rope.dimension_count": 33}, tensors)


def test_fused_query_key_value_is_the_same_model(tmp_path: Path) -> None:
    values, tensors = tiny_llama()
    for name, width in (("attn_q", 8), ("attn_k", 4), ("attn_v", 4)):
        tensors[f"blk.0.{name}.bias"] = f32(width, seed=20 + width)
    separate = logits(definition(tmp_path, values, tensors).program, [0, 1, 2, 3, 4])
    for kind in ("weight", "bias"):
        parts = [tensors.pop(f"blk.0.{name}.{kind}") for name in ("attn_q", "attn_k", "attn_v")]
        shape = (16, 8) if kind == "weight" else (16,)
        tensors[f"blk.0.attn_qkv.{kind}"] = (0, shape, b"".join(raw for _, _, raw in parts))
    fused = logits(definition(tmp_path, values, tensors).program, [0, 1, 2, 3, 4])
    np.testing.assert_array_equal(fused, separate)


def test_biases_count(tmp_path: Path) -> None:
    values, tensors = tiny_llama()
    bare = logits(definition(tmp_path, values, tensors).program, [0, 1, 2])
    for name, width in (("attn_q", 8), ("attn_output", 8), ("ffn_gate", 12), ("ffn_down", 8)):
        changed = definition(tmp_path, values, tensors | {f"blk.0.{name}.bias": f32(width, seed=9)}).program
        assert np.abs(logits(changed, [0, 1, 2]) - bare).max() > 1e-3, name


def test_half_precision_norms_are_widened(tmp_path: Path) -> None:
    values, tensors = tiny_llama()
    weights = np.arange(1, 9, dtype="<f4") / 4
    outputs = [
        logits(definition(tmp_path, values, tensors | {"output_norm.weight": stored}).program, [0, 1, 2])
        for stored in (
            (0, (8,), weights.tobytes()),
            (1, (8,), weights.astype("<f2").tobytes()),
            (30, (8,), (weights.view("<u4") >> 16).astype("<u2").tobytes()),
        )
    ]
    np.testing.assert_array_equal(outputs[0], outputs[1])
    np.testing.assert_array_equal(outputs[0], outputs[2])


def test_qwen2_needs_its_biases(tmp_path: Path) -> None:
    values, tensors = tiny_llama()
    values = {key.replace("llama.", "qwen2."): value for key, value in values.items()}
    values["general.architecture"] = "qwen2"
    with pytest.raises(ModelFileError, match=r"blk\.0\.attn_q\.bias: the tensor is missing"):
        definition(tmp_path, values, tensors)


def test_mixtral_style_experts(tmp_path: Path) -> None:
    values, tensors = tiny_llama()
    values |= {"llama.expert_count": 4, "llama.expert_used_count": 2}
    dense = {name: tensors.pop(f"blk.0.ffn_{name}.weight") for name in ("gate", "up", "down")}
    tensors["blk.0.ffn_gate_inp.weight"] = f32(4, 8, seed=30)
    for name, (kind, shape, raw) in dense.items():  # four equal experts: whatever is routed, it is the dense model
        tensors[f"blk.0.ffn_{name}_exps.weight"] = (kind, (4, *shape), 4 * raw)
    built = definition(tmp_path, values, tensors)
    moe = next(op for op in built.program.ops if isinstance(op, Moe))
    assert (moe.top_k, moe.renormalise, built.config.num_experts) == (2, True, 4)
    expected = logits(definition(tmp_path, *tiny_llama()).program, [0, 1, 2, 3])
    np.testing.assert_allclose(logits(built.program, [0, 1, 2, 3]), expected, rtol=0, atol=1e-4)


def test_fused_expert_tensors_are_the_same_model(tmp_path: Path) -> None:
    values, tensors = unpack(GgufFile.open(ORACLE / "qwen3moe" / "model.gguf"))
    separate = logits(definition(tmp_path, values, tensors).program, list(range(40)))
    for layer in range(3):
        gate, up = (tensors.pop(f"blk.{layer}.ffn_{name}_exps.weight") for name in ("gate", "up"))
        halves = [np.frombuffer(raw, "<f4").reshape(shape) for _, shape, raw in (gate, up)]
        both = np.concatenate(halves, axis=1)
        tensors[f"blk.{layer}.ffn_gate_up_exps.weight"] = (0, both.shape, both.tobytes())
    fused = logits(definition(tmp_path, values, tensors).program, list(range(40)))
    np.testing.assert_array_equal(fused, separate)


def gemma(changes: dict[str, Value]) -> tuple[dict[str, Value], Tensors]:
    values, tensors = unpack(GgufFile.open(ORACLE / "gemma3" / "model.gguf"))
    return values | {f"gemma3.{key}": value for key, value in changes.items()}, tensors


def windows(program: Program) -> list[int | None]:
    return [op.window for op in program.ops if isinstance(op, Attend)]


def test_gemma_window_patterns(tmp_path: Path) -> None:
    built = definition(tmp_path, *gemma({}))
    assert windows(built.program) == [64] * 5 + [None]
    assert [(g.name, g.num_layers, g.window) for g in built.program.kv_groups] == [("full", 1, None), ("window", 5, 64)]
    by_period = definition(tmp_path, *gemma({"attention.sliding_window_pattern": 3}))
    assert windows(by_period.program) == [64, 64, None] * 2
    flags = np.array([True, False, False, True, False, False])
    by_flags = definition(tmp_path, *gemma({"attention.sliding_window_pattern": flags}))
    assert windows(by_flags.program) == [64, None, None, 64, None, None]
    assert [op.layer for op in by_flags.program.ops if isinstance(op, Attend)] == [0, 0, 1, 1, 2, 3]
    none = definition(tmp_path, *gemma({"attention.sliding_window": 0}))
    assert windows(none.program) == [None] * 6
    with pytest.raises(ModelFileError, match=r"sliding_window_pattern: has 2 entries for 6 layers"):
        definition(tmp_path, *gemma({"attention.sliding_window_pattern": flags[:2]}))


def test_gemma_rope_scaling_is_for_full_layers(tmp_path: Path) -> None:
    scaled = {"rope.scaling.type": "linear", "rope.scaling.factor": 8.0}
    plain, stretched = (definition(tmp_path, *gemma(change)).program for change in ({}, scaled))
    speeds = [
        {op.table.name: np.array(op.table.inv_freq) for op in p.ops if isinstance(op, Rope)} for p in (plain, stretched)
    ]
    np.testing.assert_array_equal(speeds[0]["window"], speeds[1]["window"])
    np.testing.assert_allclose(speeds[0]["full"], speeds[1]["full"] * 8)
    np.testing.assert_allclose(speeds[0]["window"][1], 10000.0 ** (-1 / 16))
    np.testing.assert_allclose(speeds[0]["full"][1], 1e6 ** (-1 / 16))


def test_gemma_caps(tmp_path: Path) -> None:
    program = definition(tmp_path, *gemma({"final_logit_softcapping": 30.0, "attn_logit_softcapping": 50.0})).program
    assert {op.softcap for op in program.ops if isinstance(op, Attend)} == {50.0}
    assert [op.softcap for op in program.ops if isinstance(op, ScaleCap)] == [30.0]
    assert np.abs(logits(program, [5, 6, 7])).max() <= 30.0
    assert next(op.scale for op in program.ops if isinstance(op, Embed)) == 8.0


def test_gemma_27b_attention_scale(tmp_path: Path) -> None:
    """62 layers is the size whose scale is that of hidden / heads, not of its head size."""
    values, tensors = gemma({"block_count": 62})
    for name in [name for name in tensors if name.startswith("blk.0.")]:
        for layer in range(6, 62):
            tensors[name.replace("blk.0.", f"blk.{layer}.")] = tensors[name]
    scales = {op.scale for op in definition(tmp_path, values, tensors).program.ops if isinstance(op, Attend)}
    assert scales == {(64 / 4) ** -0.5}
    small = {op.scale for op in definition(tmp_path, *gemma({})).program.ops if isinstance(op, Attend)}
    assert small == {32**-0.5}


def test_tied_head_shares_the_embedding(tmp_path: Path) -> None:
    program = definition(tmp_path, *tiny_llama()).program
    table = next(op.table for op in program.ops if isinstance(op, Embed))
    assert next(op.weight for op in program.ops if isinstance(op, Linear) and op.out is program.logits) is table


@pytest.fixture
def documented(monkeypatch: pytest.MonkeyPatch) -> str:
    """The page's example as if it were in models/, registered by the page's own line."""
    blocks = re.findall(r"```python\n# (\S+?),?[ \n].*?```", DOCS.read_text(), re.DOTALL)
    assert blocks == ["models/smollm3.py", "models/registry.py"]
    source, line = re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.DOTALL)
    entry = re.search(r'"(\w+)": "(\w+):build",', line)
    assert entry is not None
    module = ModuleType(f"surefoot.models.{entry[2]}")
    module.__package__ = "surefoot.models"
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(compile(source, str(DOCS), "exec"), module.__dict__)
    monkeypatch.setitem(ARCHITECTURES, entry[1], f"{entry[2]}:build")
    return entry[1]


def test_the_documented_example(documented: str, tmp_path: Path) -> None:
    values, tensors = unpack(GgufFile.open(ORACLE / "llama" / "model.gguf"))
    values = {key.replace("llama.", f"{documented}."): value for key, value in values.items()}
    values["general.architecture"] = documented
    expected = np.load(ORACLE / "llama" / "expected.npz")
    program = definition(tmp_path, values, tensors).program  # three layers: the fourth is the first without rope
    ids = expected["p40_ids"].tolist()
    np.testing.assert_allclose(logits(program, ids)[-4:], expected["p40_logits_last4"], rtol=0, atol=1e-3)

    values[f"{documented}.block_count"] = 4
    tensors |= {n.replace("blk.0.", "blk.3."): t for n, t in tensors.items() if n.startswith("blk.0.")}
    program = definition(tmp_path, values, tensors).program
    assert sum(isinstance(op, Rope) for op in program.ops) == 6
    assert np.isfinite(logits(program, ids)).all()
    with pytest.raises(ModelFileError, match=rf"{documented}\.new_trick: the setting is not implemented"):
        definition(tmp_path, values | {f"{documented}.new_trick": 1}, tensors)
