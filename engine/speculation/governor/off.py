"""No governing: every step drafts and verifies the exact window. For measurements, and for those who know better."""

from __future__ import annotations

from collections.abc import Sequence

from ..contract import Capabilities, Scores
from .contract import Offer, Progress, Situation, StepRecord


class OffGovernor:
    """Takes all of every draft; of several offers of one request, the first that has tokens."""

    name = "off"
    adaptive = False

    def __init__(self) -> None:
        self._verifies = 0

    @property
    def rates(self) -> tuple[float | None, float | None]:
        """It measures nothing."""
        return None, None

    def open(self, capabilities: Capabilities, request: str) -> str:
        """The ticket is the request's name."""
        return request

    def close(self, ticket: str) -> None:
        """Nothing to forget."""

    def plan(self, ticket: str, situation: Situation, limit: int, progress: Progress) -> int:
        """All of it."""
        return limit

    def beats(self, ticket: str, offers: Sequence[Offer], situation: Situation) -> bool:
        """No: a draft in hand is enough."""
        return False

    def keep_going(self, ticket: str, position: int, grade: int) -> bool:
        """Always; the window ends a draft."""
        return True

    def choose(self, offers: Sequence[Offer], situation: Situation) -> list[int]:
        """The whole of each draft."""
        return first_of_each(offers)

    def observe(self, ticket: str, scores: Scores) -> None:
        """Not needed."""

    def caught_up(self, ticket: str, tokens: int, seconds: float) -> None:
        """Not needed."""

    def served_elsewhere(self, steps: int) -> None:
        """Not needed."""

    def record(self, step: StepRecord) -> None:
        """Counts verifies."""
        self._verifies += step.verified

    def snapshot(self) -> dict[str, object]:
        """How many steps verified."""
        return {"verify_steps": self._verifies}


def first_of_each(offers: Sequence[Offer]) -> list[int]:
    """The whole of the first non-empty draft of each request, nothing of its others."""
    windows: list[int] = []
    served: set[str] = set()
    for offer in offers:
        window = min(offer.limit, len(offer.draft.token_ids))
        if offer.ticket in served:
            window = 0
        if window:
            served.add(offer.ticket)
        windows.append(window)
    return windows
