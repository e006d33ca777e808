"""A speculative loop for tests: drafts from recorded answers, with mistakes in them."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from surefoot.engine.active_request import ActiveRequest
from surefoot.engine.sequence import Rows


class RecordedDrafts:
    """Drafts what an earlier answer to the same prompt says, each token wrong with probability `mistakes`."""

    taps = ()

    def __init__(self, answers: Mapping[tuple[int, ...], Sequence[int]], window: int, mistakes: float) -> None:
        self.answers = answers
        self.window = window
        self.mistakes = mistakes
        self.rng = random.Random(window)
        self.num_drafted = self.num_accepted = self.num_rows = 0
        self.released: list[str] = []

    def prepare(self, running: Sequence[ActiveRequest], crowded: bool) -> None:
        for request in running:
            request.draft_window = self.window

    def draft(self, entries: Sequence[Rows[ActiveRequest]]) -> list[list[int]]:
        return [self._draft(rows) for rows in entries]

    def _draft(self, rows: Rows[ActiveRequest]) -> list[int]:
        request = rows.sequence
        answer = self.answers[tuple(request.tokens[: request.num_prompt])]
        done = len(request.tokens) - request.num_prompt
        ids = list(answer[done : done + rows.window])
        ids = [(token + (self.rng.random() < self.mistakes)) % 96 for token in ids]
        self.num_drafted += len(ids)
        return ids

    def accepted(
        self, sequence: ActiveRequest, start: int, num_accepted: int, first_row: int, num_certain: int
    ) -> None:
        self.num_accepted += num_accepted
        assert sequence.num_computed == len(sequence.tokens) - 1, "the cache covers all but the last token"
        assert start < sequence.num_computed + 1

    def finish(self, sequences: int, rows: int, prefill_rows: int) -> None:
        self.num_rows += rows

    def release(self, sequence: ActiveRequest) -> None:
        self.released.append(sequence.submission.request_id)
