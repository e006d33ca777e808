"""Speculation's counters: plain numbers, written by the engine thread, read when somebody scrapes."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from .contract import MAX_WINDOW

KINDS = ("plain", "verify", "no_draft", "parked", "prescribed")


@dataclass(slots=True)
class SpeculationCounts:
    """Since the process started. Steps and seconds are those of decode-only steps."""

    steps: dict[str, int] = field(default_factory=lambda: dict.fromkeys(KINDS, 0))
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(KINDS, 0.0))
    drafted: Counter[str] = field(default_factory=Counter[str])  # verified draft tokens, by speculator
    accepted: Counter[str] = field(default_factory=Counter[str])
    accepted_by_position: list[int] = field(default_factory=lambda: [0] * MAX_WINDOW)
    no_draft: Counter[str] = field(default_factory=Counter[str])  # by reason
    declined: Counter[str] = field(default_factory=Counter[str])
    disarmed: Counter[str] = field(default_factory=Counter[str])
    shadow_hits: int = 0
    shadow_misses: int = 0
    catch_ups: int = 0
    armed: int = 0  # now
    window: int = 0  # of the last step
    parks: int = 0  # times that drafting stopped after a verify

    def as_dict(self) -> dict[str, object]:
        """Their part of GET /admin/speculation."""
        return {
            "armed": self.armed,
            "steps": dict(self.steps),
            "step_seconds": dict(self.seconds),
            "drafted": dict(self.drafted),
            "accepted": dict(self.accepted),
            "no_draft": dict(self.no_draft),
            "declined_requests": dict(self.declined),
            "disarmed": dict(self.disarmed),
        }
