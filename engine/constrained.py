"""Requests whose answer must match a grammar, in the engine's steps: prescribed tokens as drafts, masks, cut windows.

Stands between the speculative loop, which proposes drafts and knows no grammars, and the step that verifies them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ..kernels.errors import RequestError
from .generation import Generation
from .grammar.matcher import Matcher
from .request import FinishReason, Output
from .speculation.contract import MAX_WINDOW

if TYPE_CHECKING:
    from .active_request import ActiveRequest
    from .sequence import Rows


class ConstrainedAnswer:
    """One request's grammar and what it said about the coming step."""

    __slots__ = ("fault", "matcher", "num_certain", "num_proposed", "prescribed")

    def __init__(self, matcher: Matcher) -> None:
        self.matcher = matcher
        self.prescribed: list[int] = []  # tokens that must come next
        self.num_certain = 0  # of the step's drafts, those that are prescribed: they come first
        self.num_proposed = 0  # of the step's drafts, those that the speculative loop proposed
        self.fault: RequestError | None = None  # the grammar gave up; the request ends with this step

    @property
    def goes_on(self) -> bool:
        """Whether a token may follow."""
        return self.fault is None and not self.matcher.complete

    def plain(self) -> None:
        """Nothing is prescribed, or it may not be drafted."""
        self.prescribed = []
        self.num_certain = 0

    def window(self, proposed: Sequence[int], room: int) -> Sequence[int]:
        """The step's drafts: what is prescribed, or a proposal that goes beyond it."""
        prescribed = self.prescribed[:room]
        self.num_certain = len(prescribed)
        agreed = 0
        for one, other in zip(proposed, prescribed, strict=False):
            if one != other:
                break
            agreed += 1
        if agreed == len(prescribed):
            self.num_proposed = len(proposed)
            return proposed
        self.num_proposed = agreed
        return prescribed

    def commit(self, token_ids: Sequence[int], generation: Generation, output: Output) -> None:
        """Takes drawn tokens. The answer ends when nothing may follow, which counts before the limit of its length."""
        self.matcher.commit(token_ids)
        if self.matcher.complete:
            if output.finish is None:
                generation.end(FinishReason.STOP, output)
            elif output.finish.reason is FinishReason.LENGTH:
                output.finish = generation.finish(FinishReason.STOP)


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
