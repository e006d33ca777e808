"""Grammars in the engine's steps: prescribed tokens as drafts, masks, and windows cut where a grammar forbids a draft.

Stands between the speculative loop, which proposes drafts and knows no grammars, and the step that verifies them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..kernels.errors import RequestError
from .active_request import ActiveRequest
from .sequence import Rows
from .speculation.contract import MAX_WINDOW


def prescribe(running: Sequence[ActiveRequest], drafts: Callable[[ActiveRequest], bool]) -> None:
    """Before scheduling: widens windows for the tokens that grammars prescribe, for requests that `drafts` allows."""
    for request in running:
        answer = request.constrained
        if answer is None:
            continue
        answer.plain()
        if answer.fault is None and len(request.tokens) - request.num_computed == 1 and drafts(request):
            try:
                answer.prescribed = answer.matcher.forced_drafts(MAX_WINDOW)
            except RequestError as fault:
                answer.fault = fault
            request.draft_window = max(request.draft_window, len(answer.prescribed))


def constrain(entries: Sequence[Rows[ActiveRequest]], drafts: Sequence[Sequence[int]]) -> Sequence[Sequence[int]]:
    """Sets the masks that the step draws under, and returns its drafts: those given, without what grammars forbid."""
    constrained = list(drafts) or [()] * len(entries)
    changed = False
    for number, rows in enumerate(entries):
        request = rows.sequence
        answer = request.constrained
        if answer is None or answer.fault is not None or not (rows.draws and request.generates):
            continue
        window = answer.window(constrained[number], rows.window)
        try:
            masks = answer.matcher.masks_for(window)
        except RequestError as fault:
            answer.fault = fault
            masks = None
        request.draw.masks = masks
        constrained[number] = window[: 0 if masks is None else len(masks) - 1]
        changed = True
    return constrained if changed and any(constrained) else drafts if not changed else ()
