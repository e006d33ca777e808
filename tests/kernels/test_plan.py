"""Which ops run together: the fewest barriers, and none too few."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from tiny_programs import HIDDEN, SHAPES, Shape, tiny_program

from surefoot.kernels.cpu.plan import (
    AttendStage,
    ExpertStage,
    GatedStage,
    ProductStage,
    Quantise,
    RowStage,
    Stage,
    plan,
)
from surefoot.kernels.errors import ConfigError
from surefoot.kernels.formats import WeightType
from surefoot.kernels.program import Activation, Add, Buffer, Embed, Gate, Linear, Op, Program, Rows, Tap, Weight


def names(stages: Sequence[Stage]) -> list[str]:
    """Stage types, with what row stages do and how many products run side by side."""
    found: list[str] = []
    for stage in stages:
        match stage:
            case RowStage():
                found.append("+".join(type(op).__name__ for op in stage.ops))
            case ProductStage():
                found.append(f"{len(stage.products)} products")
            case GatedStage():
                forms = {(False, True): "gated", (True, False): "gated, quantised", (True, True): "gated, both forms"}
                found.append(forms[stage.quantise, stage.floats])
            case AttendStage():
                found.append("attend, quantised" if stage.quantise else "attend")
            case ExpertStage():
                found.append("experts")
    return found


def test_a_dense_layer_has_five_parallel_regions() -> None:
    """Between them only passes over rows, which a decode step runs without a barrier; rows are quantised where made."""
    stages = names(plan(tiny_program(Shape(weights=WeightType.Q8_0, layers=1))))
    assert stages == [
        "Embed+Tap+RmsNorm+Quantise",
        "3 products",
        "Rope+Rope+KvWrite",
        "attend, quantised",
        "1 products",
        "RmsNorm+Quantise",
        "gated, quantised",
        "1 products",
        "SelectLogitsRows+RmsNorm+Tap+Quantise",
        "1 products",
        "ScaleCap",
    ]


def test_float_weights_read_unquantised_rows() -> None:
    stages = plan(tiny_program(Shape(weights=WeightType.F16)))
    assert not any(isinstance(op, Quantise) for stage in stages if isinstance(stage, RowStage) for op in stage.ops)
    assert not any(stage.quantise for stage in stages if isinstance(stage, (GatedStage, AttendStage)))


def test_experts_stand_between_routing_and_summing() -> None:
    stages = names(plan(tiny_program(SHAPES["experts"])))
    at = stages.index("experts")
    assert stages[at - 1] == "Quantise+Route" or stages[at - 1] == "Route"
    assert stages[at + 1].startswith("Combine")


def weight(out: int, width: int = HIDDEN, kind: WeightType = WeightType.Q8_0) -> Weight:
    return Weight("w", kind, (out, width), np.zeros(out * kind.row_bytes(width), np.uint8))


X, A, B, C = (Buffer(name, HIDDEN) for name in "xabc")


def stages_of(*ops: Op) -> list[str]:
    logits = Buffer("logits", HIDDEN, Rows.LOGITS)
    return names(plan(Program("p", ops, logits, ())))


def test_products_that_depend_on_each_other_stay_apart() -> None:
    """A product that writes what its neighbour writes or adds cannot run beside it."""
    w = weight(HIDDEN)
    assert stages_of(Linear(A, X, w), Linear(B, X, w)) == ["Quantise", "2 products"]
    assert stages_of(Linear(A, X, w), Linear(A, X, w, None, A)) == ["Quantise", "1 products", "1 products"]
    assert stages_of(Linear(A, X, w), Linear(B, X, w, None, A)) == ["Quantise", "1 products", "1 products"]
    assert stages_of(Linear(B, X, w, None, A), Linear(A, X, w)) == ["Quantise", "1 products", "1 products"]
    assert stages_of(Linear(A, X, w), Linear(B, A, w)) == ["Quantise", "1 products", "Quantise", "1 products"]


def test_rows_are_quantised_anew_only_after_they_changed() -> None:
    w = weight(HIDDEN)
    assert stages_of(Linear(A, X, w), Add(A, A, B), Linear(B, X, w)) == ["Quantise", "1 products", "Add", "1 products"]
    assert stages_of(Linear(A, X, w), Add(X, A, B), Linear(B, X, w)) == [
        "Quantise",
        "1 products",
        "Add+Quantise",
        "1 products",
    ]
    assert stages_of(Linear(A, X, w), Linear(X, A, w, None, X), Linear(B, X, w)) == [
        "Quantise",
        "1 products",
        "Quantise",
        "1 products",
        "Quantise",
        "1 products",
    ]


def test_a_gate_joins_only_its_own_two_products() -> None:
    w, gate = weight(HIDDEN), Gate(A, A, B, Activation.SILU)
    assert stages_of(Linear(A, X, w), Linear(B, X, w), gate) == ["Quantise", "gated"]
    assert stages_of(Linear(A, X, w), Linear(B, X, w), gate, Linear(X, A, w)) == [
        "Quantise",
        "gated, quantised",
        "1 products",
    ]
    assert stages_of(Linear(A, X, w), Linear(C, X, w), gate) == ["Quantise", "2 products", "Gate"]
    assert stages_of(Linear(A, X, w, None, A), Linear(B, X, w), gate) == ["Quantise", "2 products", "Gate"]
    other = weight(HIDDEN, kind=WeightType.Q4_0)
    assert stages_of(Linear(A, X, w), Linear(B, X, other), gate) == ["Quantise", "2 products", "Gate"]


def test_a_gate_does_not_overwrite_the_rows_that_its_products_still_read() -> None:
    """Its chunks run side by side: one must not write what another has yet to read."""
    w = weight(HIDDEN)
    assert stages_of(Linear(A, X, w), Linear(B, X, w), Gate(X, A, B, Activation.SILU)) == [
        "Quantise",
        "2 products",
        "Gate",
    ]


def test_a_gates_products_are_kept_where_something_reads_them() -> None:
    w = weight(HIDDEN)
    products, gate = (Linear(A, X, w), Linear(B, X, w)), Gate(A, A, B, Activation.SILU)
    apart, joined = ["Quantise", "2 products", "Gate"], ["Quantise", "gated"]
    assert stages_of(*products, gate, Add(X, A, B)) == [*apart[:2], "Gate+Add"]
    assert stages_of(*products, gate, Add(B, A, A), Add(X, A, B)) == [*joined, "Add+Add"]
    assert stages_of(*products, Gate(C, A, B, Activation.SILU), Linear(X, A, w)) == [
        *apart[:2],
        "Gate+Quantise",
        "1 products",
    ]
    assert stages_of(*products, gate, Linear(C, A, w), Tap("gated", A)) == [
        "Quantise",
        "gated, both forms",
        "1 products",
        "Tap",
    ]
    assert stages_of(*products, gate, Linear(C, A, w, None, A)) == ["Quantise", "gated, both forms", "1 products"]
    assert stages_of(*products, gate, Linear(C, A, w), Embed(A, w), Tap("other", A)) == [
        "Quantise",
        "gated, quantised",
        "1 products",
        "Embed+Tap",
    ]


def test_a_product_cannot_overwrite_its_input() -> None:
    with pytest.raises(ConfigError, match="own input"):
        stages_of(Linear(X, X, weight(HIDDEN)))
