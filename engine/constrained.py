"""One request's answer that must match a grammar: which drafts of a step the grammar prescribes, and when it ends."""

from __future__ import annotations

from collections.abc import Sequence

from ..kernels.errors import RequestError
from .generation import Generation
from .grammar.matcher import Matcher
from .request import FinishReason, Output


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
