"""The least work of stages: laid beside the native stages, and counted by hand."""

from __future__ import annotations

import numpy as np
import pytest
from harness import ORACLE, ProgramRunner, open_model
from tiny_programs import SHAPES, tiny_program

from surefoot.kernels.cpu import _ops
from surefoot.kernels.cpu.backend import CpuBackend, CpuExecutor
from surefoot.kernels.cpu.plan import is_quantised
from surefoot.kernels.cpu.work import stage_work
from surefoot.kernels.program import Linear, Moe, Program

FILES = ["llama-quants/model-Q4_K_M.gguf", "gemma3/model.gguf", "qwen3moe/model.gguf"]


def program_of(name: str) -> Program:
    return tiny_program(SHAPES[name]) if name in SHAPES else open_model(ORACLE / name).program


@pytest.mark.parametrize("name", [*SHAPES, *FILES])
def test_every_native_stage_has_its_work_at_its_place(name: str) -> None:
    program = program_of(name)
    executor = ProgramRunner(CpuBackend(1), program).executor
    assert isinstance(executor, CpuExecutor)
    native = [label for label, _ in executor.profile()]
    work = stage_work(program)
    assert len(native) == len(work)
    for label, stage in zip(native, work, strict=True):
        kind = label.split()[0].split(".")[0]
        assert stage.label.removeprefix("rows ").startswith({"attend": "attention"}.get(kind, kind)), label


@pytest.mark.parametrize("file", FILES)
def test_no_weight_is_forgotten_or_counted_twice(file: str) -> None:
    program, work = open_model(ORACLE / file).program, stage_work(open_model(ORACLE / file).program)
    linear = [op.weight for op in program.ops if isinstance(op, Linear)]
    experts = [weight for op in program.ops if isinstance(op, Moe) for weight in (op.gate, op.up, op.down)]
    expected = sum(weight.data.nbytes for weight in [*linear, *experts])
    assert sum(stage.weight_bytes(1 << 20) for stage in work) == expected
    rows = 3
    products = rows * sum(int(np.prod(weight.shape)) for weight in linear)
    for op in program.ops:
        if isinstance(op, Moe):
            products += rows * op.top_k * sum(int(np.prod(weight.shape[1:])) for weight in (op.gate, op.up, op.down))
    assert sum(s.products(rows, True) + s.products(rows, False) for s in work) == products
    some_quantised = any(is_quantised(weight) for weight in linear)
    assert (sum(stage.products(rows, True) for stage in work) > 0) is some_quantised


def test_attention_reads_its_window_and_no_more() -> None:
    by_window = {s.attend.group.window: s for s in stage_work(program_of("gemma3/model.gguf")) if s.attend is not None}
    whole = by_window.pop(None)
    (windowed,) = by_window.values()
    assert windowed.attend is not None and whole.attend is not None
    window = windowed.attend.group.window
    assert window is not None
    assert windowed.cached_values(10 * window) == windowed.cached_values(window)
    assert whole.cached_values(10 * window) == 10 * whole.cached_values(window)
    size = whole.attend.heads * (whole.attend.group.key_dim + whole.attend.group.value_dim)
    assert whole.attended(4, 3) == (5 + 6 + 7) * size
    assert windowed.attended(5 * window, 2) == 2 * window * size


@pytest.mark.parametrize("isa", _ops.instruction_sets())
def test_the_machine_has_limits(isa: str) -> None:
    runtime = _ops.Runtime(isa, 2)
    rates = _ops.measure_machine(runtime, isa, 1 << 20, 0.02)
    assert 1e6 < rates.bytes < 1e13
    assert 1e6 < rates.byte_products < 1e14
    assert 1e6 < rates.float_products < 1e14
    with pytest.raises(ValueError, match="unknown instruction set"):
        _ops.measure_machine(runtime, "mmx", 1 << 20, 0.01)
