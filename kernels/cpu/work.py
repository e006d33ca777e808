"""What each native stage of a program has to do at least: bytes of weights and cache to read, products to sum.

In the order in which `lower` appends stages, so that it can be laid beside `CpuExecutor.profile()`. Pure, like plan.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ..program import Attend, Moe, Program, Rope, Rows, Weight
from .plan import (
    AttendStage,
    ConvStage,
    DeltaStage,
    ExpertStage,
    GatedStage,
    ProductStage,
    Stage,
    is_quantised,
    plan,
)


@dataclass(frozen=True, slots=True)
class StageWork:
    """One native stage. `weights` are multiplied with all rows, or `of_logits` with those that want logits; `routed`:
    with the share of rows and experts that routing gives each."""

    label: str
    weights: tuple[Weight, ...] = ()
    of_logits: bool = False
    attend: Attend | None = None
    routed: Moe | None = None

    def weight_bytes(self, rows: int) -> float:
        """Bytes of weights in the file's formats; of experts, as many as `rows` rows can choose at most."""
        whole = float(sum(weight.data.nbytes for weight in self.weights))
        if self.routed is None:
            return whole
        experts = self.routed.gate.shape[0]
        return whole * min(experts, self.routed.top_k * rows) / experts

    def products(self, rows: int, quantised: bool) -> float:
        """Multiply-adds with weights of quantised formats, or of float ones."""
        per_row = sum(math.prod(weight.shape) for weight in self.weights if is_quantised(weight) is quantised)
        if self.routed is not None:
            per_row = per_row * self.routed.top_k / self.routed.gate.shape[0]
        return float(rows * per_row)

    def cached_values(self, context: int) -> float:
        """Keys and values that attention of one sequence at `context` positions reads, in numbers."""
        if self.attend is None:
            return 0.0
        group = self.attend.group
        visible = context if group.window is None else min(context, group.window)
        return float(visible * group.kv_heads * (group.key_dim + group.value_dim))

    def attended(self, context: int, rows: int) -> float:
        """Multiply-adds of attention for rows at positions from `context` on, each with all positions it sees."""
        if self.attend is None:
            return 0.0
        group = self.attend.group
        seen = sum(min(position + 1, group.window or position + 1) for position in range(context, context + rows))
        return float(seen * self.attend.heads * (group.key_dim + group.value_dim))


def stage_work(program: Program) -> list[StageWork]:
    """One entry per native stage."""
    work = [StageWork("rope angles")] if any(isinstance(op, Rope) for op in program.ops) else []
    for stage in plan(program):
        work += _of_stage(stage)
    return work


def _of_stage(stage: Stage) -> list[StageWork]:
    match stage:
        case ProductStage():
            weights = tuple(op.weight for op in stage.products)
            of_logits = stage.products[0].out.rows is Rows.LOGITS
            return [StageWork(f"products {_names(weights)}", weights, of_logits)]
        case GatedStage():
            weights = (stage.gate.weight, stage.up.weight)
            return [StageWork(f"gated {_names(weights)}", weights)]
        case AttendStage():
            return [StageWork("attention", attend=stage.op)]
        case ConvStage():
            return [StageWork("short conv")]
        case DeltaStage():
            return [StageWork("delta rule")]
        case ExpertStage():
            moe = stage.moe
            return [
                StageWork("experts gather"),
                StageWork("experts gated", (moe.gate, moe.up), routed=moe),
                StageWork("experts down", (moe.down,), routed=moe),
            ]
        case _:
            names = "+".join(dict.fromkeys(type(op).__name__ for op in stage.ops))
            return [StageWork(f"rows {names}")]


def _names(weights: Sequence[Weight]) -> str:
    """blk.7.attn_q.weight and blk.7.attn_k.weight are attn_q+attn_k in every layer."""
    return "+".join(weight.name.split(".")[-2] if "." in weight.name else weight.name for weight in weights)
