"""What a step without a draft was and why, in words for counters and the debug log. Reads the step, changes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from logging import Logger
from typing import Any, Protocol

from .armed import NO_REASON, Armed, SpeculativeSequence
from .governor.contract import Outcome


class PlannedRows(Protocol):
    """A planned entry of a step."""

    @property
    def sequence(self) -> Any: ...
    @property
    def window(self) -> int:
        """Drafted tokens for which rows and blocks are reserved."""
        ...


def kind_of(outcomes: Sequence[Outcome]) -> str:
    """What a step without drafts was: nobody armed, nothing proposed, or not worth it in the governor's eyes."""
    kind = "plain"
    for outcome in outcomes:
        if outcome.draft is not None and outcome.draft.token_ids:
            return "parked"
        kind = "no_draft" if outcome.asked or kind == "no_draft" else "parked"
    return kind


def log_steps_without_draft(logger: Logger, entries: Sequence[PlannedRows], eligible: bool) -> None:
    """A debug line for each request that is armed and drafts nothing, once everybody has been asked. `eligible`: the
    step is one that may speculate."""
    for rows in entries:
        sequence: SpeculativeSequence = rows.sequence
        tracked = sequence.speculation
        if tracked is None or not tracked.armed or tracked.chosen is not None:
            continue
        reason = "others run, wait or prefill"
        if eligible:
            reason = "; ".join(
                f"{armed.speculator.capabilities.name}: {_reason(sequence, armed, rows.window)}"
                for armed in tracked.armed
            )
        logger.debug("request %s, token %d: no draft: %s", sequence.request_id, len(sequence.tokens), reason)


def _reason(sequence: SpeculativeSequence, armed: Armed, window: int) -> str:
    outcome = armed.outcome
    if outcome.asked:
        if outcome.draft is not None and outcome.draft.token_ids:
            return "its draft is not worth the rows"
        return (outcome.draft.reason if outcome.draft is not None else None) or NO_REASON
    if armed.ready:
        return "a free draft is as good" if window > 0 else "no rows or blocks are left"
    if sequence.max_length - len(sequence.tokens) <= 1:
        return "only one token may follow"
    if armed.progress.lag:
        return f"{armed.progress.lag} tokens of history are unread"
    return "the governor has parked it"
