"""Asks the armed algorithms of a step's requests for drafts, and lets the governor choose what is verified.

A faulty algorithm loses the request that it failed for, and nothing else happens: what it proposed is not used.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TypeAlias

from .armed import NO_DRAFT, NO_REASON, Armed, SpeculativeSequence
from .arming import Arming
from .contract import Draft
from .explain import PlannedRows
from .governor.contract import Situation

_log = logging.getLogger(__name__)

NO_DRAFTS: tuple[Sequence[int], ...] = ()

Asked: TypeAlias = tuple[int, SpeculativeSequence, Armed]  # number of the entry, its sequence, whom to ask


class Drafting:
    """The drafts of a step. `verified`: whether it verifies any."""

    def __init__(self, arming: Arming, vocab_size: int) -> None:
        self.verified = False
        self._arming = arming
        self._counts = arming.counts
        self._vocab_size = vocab_size

    def draft(self, entries: Sequence[PlannedRows], situation: Situation) -> Sequence[Sequence[int]]:
        """The tokens to verify, one list per entry; nothing at all when no entry has any."""
        free: list[Asked] = []
        paid: list[Asked] = []
        for number, rows in enumerate(entries):
            tracked = rows.sequence.speculation
            if rows.window <= 0 or tracked is None:
                continue
            for armed in tracked.armed:
                if armed.ready and armed.offer.limit:
                    armed.offer.limit = min(armed.offer.limit, rows.window)
                    (paid if armed.speculator.capabilities.paid else free).append((number, rows.sequence, armed))
        offered = self._ask(free) if free else []
        if paid:
            offered += self._ask([item for item in paid if self._is_wanted(item[2], offered, situation)])
        return self._choose(len(entries), offered, situation) if offered else NO_DRAFTS

    def _is_wanted(self, armed: Armed, offered: list[Asked], situation: Situation) -> bool:
        """Whether a drafter that costs time is worth asking beside the drafts that cost nothing."""
        others = [other.offer for _, sequence, other in offered if armed.request is sequence]
        return not others or self._arming.governor.beats(armed.ticket, others, situation)

    def _ask(self, asked: list[Asked]) -> list[Asked]:
        """Proposals of these; returns those that proposed anything."""
        for _, sequence, armed in asked:
            context, tokens = armed.context, sequence.tokens
            context.max_tokens = armed.offer.limit
            context.token_id = tokens[-1]
            context.position = len(tokens) - 1
            armed.outcome.asked = True
        offered: list[Asked] = []
        for item, draft in zip(asked, self._propose(asked), strict=True):
            _, sequence, armed = item
            assert sequence.speculation is not None
            armed.outcome.draft = armed.offer.draft = draft
            sequence.speculation.report.drafted += len(draft.token_ids)
            sequence.speculation.report.draft_seconds += draft.seconds
            if draft.token_ids:
                self._arming.observe(sequence, armed)
                offered.append(item)
            else:
                self._counts.no_draft[draft.reason or NO_REASON] += 1
        return offered

    def _choose(self, num_entries: int, offered: list[Asked], situation: Situation) -> Sequence[Sequence[int]]:
        windows = self._arming.governor.choose([armed.offer for _, _, armed in offered], situation)
        drafts: list[Sequence[int]] = [()] * num_entries
        for (number, sequence, armed), size in zip(offered, windows, strict=True):
            if size:
                drafts[number] = self._take(sequence, armed, size)
        return drafts if self.verified else NO_DRAFTS

    def _take(self, sequence: SpeculativeSequence, armed: Armed, size: int) -> Sequence[int]:
        tokens = armed.offer.draft.token_ids[:size]
        if not all(type(token) is int and 0 <= token < self._vocab_size for token in tokens):
            self._arming.disarm(sequence, armed, "vocabulary", "it proposed an id outside the vocabulary")
            return ()
        tracked = sequence.speculation
        assert tracked is not None
        tracked.chosen = armed
        armed.outcome.window = size
        tracked.report.verified += size
        self.verified = True
        self._counts.window = max(self._counts.window, size)
        return tokens

    def _propose(self, asked: list[Asked]) -> list[Draft]:
        """Drafts in the order of `asked`; one call per algorithm. A faulty algorithm is asked again request by request,
        so that only those it fails for lose it."""
        if len(asked) == 1:
            return [self._propose_one(asked[0][1], asked[0][2])]
        drafts = [NO_DRAFT] * len(asked)
        by_speculator: dict[int, list[int]] = {}
        for i, (_, _, armed) in enumerate(asked):
            by_speculator.setdefault(id(armed.speculator), []).append(i)
        for numbers in by_speculator.values():
            speculator = asked[numbers[0]][2].speculator
            try:
                made = speculator.propose([asked[i][2].context for i in numbers])
                if len(made) != len(numbers):
                    raise ValueError(f"{len(made)} drafts for {len(numbers)} contexts")
            except Exception as fault:  # noqa: BLE001
                _log.error("a batch could not be drafted for, trying one by one: %r", fault)
                made = [self._propose_one(asked[i][1], asked[i][2]) for i in numbers]
            for i, draft in zip(numbers, made, strict=True):
                drafts[i] = self._checked(asked[i][1], asked[i][2], draft)
        return drafts

    def _propose_one(self, sequence: SpeculativeSequence, armed: Armed) -> Draft:
        try:
            (draft,) = armed.speculator.propose((armed.context,))
        except Exception as fault:  # noqa: BLE001
            self._arming.disarm(sequence, armed, "raised", f"propose raised {fault!r}")
            return NO_DRAFT
        return self._checked(sequence, armed, draft)

    def _checked(self, sequence: SpeculativeSequence, armed: Armed, draft: Draft) -> Draft:
        if not isinstance(draft, Draft):  # pyright: ignore[reportUnnecessaryIsInstance]
            self._arming.disarm(sequence, armed, "raised", f"propose gave {draft!r}")
            return NO_DRAFT
        size = len(draft.token_ids)
        if size > armed.context.max_tokens or size > len(draft.grades):
            self._arming.disarm(
                sequence, armed, "window", f"it proposed {size} tokens for a window of {armed.context.max_tokens}"
            )
            return NO_DRAFT
        return draft
