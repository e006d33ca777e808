"""Schedules sequences that carry a recurrent state: who has rows also needs a block for the state behind them."""

from __future__ import annotations

from .kv_cache import Match
from .recurrent_cache import RecurrentCache
from .scheduler import Scheduler, SchedulerCounts, StepCost, StepLimits
from .sequence import Plan, Rows, S


class RecurrentScheduler(Scheduler[S]):
    """A Scheduler over a RecurrentCache."""

    def __init__(
        self, cache: RecurrentCache, limits: StepLimits, cost: StepCost, counts: SchedulerCounts | None = None
    ) -> None:
        super().__init__(cache, limits, cost, counts)
        self._states = cache

    def schedule(self) -> Plan[S]:
        """The next step. Rows for whose state no block is left wait for a later one."""
        plan = super().schedule()
        states = self._states.states
        kept: list[Rows[S]] = []
        num_prefill_rows, num_decodes = plan.num_prefill_rows, plan.num_decodes
        for number, rows in enumerate(plan.entries):
            if states.plan(rows.sequence.holding.slot, rows.start, rows.num_rows):
                kept.append(rows)
            elif number < plan.num_decodes:
                num_decodes -= 1
            else:
                num_prefill_rows -= rows.num_rows
        for rows in kept:
            self._states.plan_checkpoints(rows.sequence.holding, rows.start, rows.num_rows)
        assert kept or not plan.entries, "nobody found a block for a state"
        return plan if len(kept) == len(plan.entries) else Plan(kept, num_prefill_rows, num_decodes)

    def advance(self, sequence: S, num_computed: int) -> None:
        """As Scheduler.advance; the state that the step left is the sequence's."""
        super().advance(sequence, num_computed)
        self._states.settle(sequence.holding)

    def _open(self, sequence: S, match: Match) -> None:
        super()._open(sequence, match)
        if sequence.scores_prompt or not sequence.adopts:  # who claims nothing leaves checkpoints too
            self._states.choose_checkpoints(sequence.holding, sequence.tokens)

    def _plan_drafts(self, num_decodes: int) -> None:
        """No more drafts than the log of a sequence holds."""
        most = self._states.states.max_drafts
        for rows in self._entries[:num_decodes]:
            rows.sequence.draft_window = min(rows.sequence.draft_window, most)
        super()._plan_drafts(num_decodes)
