"""The operator's changes of the speculation policy. The engine checks them (its policy.py); the model here describes
them in the OpenAPI document."""

from __future__ import annotations

from pydantic import ConfigDict, Field

from .sampling import Strict, Whole


class PolicyChange(Strict):
    """`PATCH /admin/speculation`: any of these; what is left out stays as it is."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    enabled: bool = True
    type: str = Field("auto", description="auto, or the name of an algorithm")
    draft_tokens: Whole | None = Field(
        None, ge=0, le=64, description="Ceiling where the governor chooses windows, else the exact window; 0: plain"
    )
    min_confidence: float | None = Field(None, ge=0, le=1)
    governor: str = Field("cost", description="cost, probe or off")
    max_batch: Whole = Field(1, ge=1, description="Requests that may run, and speculate, at the same time")
