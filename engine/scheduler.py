"""Decides what the next step runs: decodes first, then prefill chunks bounded in rows and time, then newcomers.

Owns the queues and a sequence's progress; knows neither requests nor tensors. Everything is ranked by (priority,
arrival). The first in rank that can run always runs and may preempt those behind it, so there is no deadlock.
"""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass
from typing import Generic, Protocol

from ..kernels.program import BLOCK
from .kv_cache import KvCache, Match
from .sequence import Plan, Rows, S, Sequence

MIN_PREFILL_ROWS = 16  # a prompt makes progress in every step, however slow the machine
MIXED_STEP_SECONDS = 0.1  # about what a running stream may be held up by somebody's prompt


NO_MATCH = Match([], None)


class StepCost(Protocol):
    """What the scheduler asks of the cost curve."""

    def rows_within(self, seconds: float, rows: int, context: int) -> int:
        """Prefill rows at position `context` that fit beside `rows` decode rows."""
        ...


@dataclass(frozen=True, slots=True)
class StepLimits:
    """Bounds of one step; the executor's buffers have these sizes."""

    max_running: int
    max_rows: int
    max_logits_rows: int
    prefill_chunk: int


@dataclass(slots=True)
class SchedulerCounts:
    """Counters for metrics."""

    preemptions: int = 0
    queried_tokens: int = 0
    hit_tokens: int = 0


def rank(sequence: Sequence) -> tuple[int, int]:
    """Sort key of both queues."""
    return sequence.rank


def share_rows(prefills: list[S], budget: int) -> list[tuple[S, int]]:
    """How many rows each prompt gets.

    The first in rank takes what it can use, but equally urgent prompts with less left than it share up to half of the
    rows, the shortest first: a short question does not wait for a long document.
    """
    head = prefills[0]
    if len(prefills) == 1:
        return [(head, min(budget, len(head.tokens) - head.num_computed))]
    left = {sequence: len(sequence.tokens) - sequence.num_computed for sequence in prefills}
    shares = dict.fromkeys(prefills, 0)
    shorter = [
        sequence for sequence in prefills[1:] if sequence.priority == head.priority and left[sequence] < left[head]
    ]
    shared = budget // 2
    for sequence in sorted(shorter, key=left.__getitem__):
        shares[sequence] = min(left[sequence], shared)
        shared -= shares[sequence]
    rest = budget - budget // 2 + shared
    for sequence in prefills:
        more = min(left[sequence] - shares[sequence], rest)
        shares[sequence] += more
        rest -= more
    return list(shares.items())


class Scheduler(Generic[S]):
    """Queues of waiting and running sequences, both in rank order."""

    def __init__(
        self, cache: KvCache, limits: StepLimits, cost: StepCost, counts: SchedulerCounts | None = None
    ) -> None:
        assert limits.max_running <= min(limits.max_rows, limits.max_logits_rows, cache.num_free_slots)
        self.cache = cache
        self.limits = limits
        self.counts = SchedulerCounts() if counts is None else counts
        self.waiting: list[S] = []
        self.running: list[S] = []
        self._cost = cost
        self._step = 0
        self._entries: list[Rows[S]] = []
        self._rows_left = 0
        self._logits_left = 0
        self._starved: S | None = None  # a prompt that found no block in the last step
        self._blocked: tuple[object, ...] = ()  # who could not start and what there was then: look again on a change

    @property
    def has_work(self) -> bool:
        """Whether any sequence has not ended."""
        return bool(self.running or self.waiting)

    def add(self, sequence: S) -> None:
        """Queues a new sequence."""
        insort(self.waiting, sequence, key=rank)

    def remove(self, sequence: S) -> None:
        """The sequence has ended, in whatever state; its blocks are available at once."""
        if sequence.running:
            self.running.remove(sequence)
            self._release(sequence)
        else:
            self.waiting.remove(sequence)

    def advance(self, sequence: S, num_computed: int) -> None:
        """The cache covers so many of the sequence's tokens for good."""
        sequence.num_computed = num_computed
        if num_computed // BLOCK != sequence.holding.num_full:
            self.cache.commit(sequence.holding, sequence.tokens, num_computed)

    def preempt(self, sequence: S) -> None:
        """Takes everything from a running sequence; it runs again later and recomputes what is not cached by then."""
        self.running.remove(sequence)
        self._release(sequence)
        insort(self.waiting, sequence, key=rank)
        self.counts.preemptions += 1

    def schedule(self) -> Plan[S]:
        """The next step. Empty only when no sequence is left."""
        self._step += 1
        self._entries = []
        self._rows_left = self.limits.max_rows
        self._logits_left = self.limits.max_logits_rows
        if self._starved is not None:
            self._feed_starved()
        if self.waiting:
            self._make_room()
        preemptions = self.counts.preemptions
        self._plan_decodes()
        num_decodes = len(self._entries)
        if self.waiting and self.counts.preemptions == preemptions:
            self._admit()
        num_prefill_rows = self._plan_prefills(num_decodes) if num_decodes < len(self.running) else 0
        self._plan_drafts(num_decodes)
        assert self._entries or not self.has_work, "sequences are left but none can run"
        return Plan(self._entries, num_prefill_rows, num_decodes)

    # --- running sequences -----------------------------------------------------------------------------------------

    def _plan_decodes(self) -> None:
        """One row for every sequence that decodes. What `_enter` notes is noted here, without a call for each."""
        reserve, entries, step = self.cache.reserve, self._entries, self._step
        for sequence in tuple(self.running):
            if not sequence.running:  # preempted by one before it
                continue
            start = sequence.num_computed
            if len(sequence.tokens) - start != 1 or sequence.scores_prompt:
                continue
            if (
                start < sequence.holding.num_blocks * BLOCK
                or reserve(sequence.holding, start + 1)
                or self._reserve_by_preempting(sequence, start + 1)
            ):
                sequence.planned_step = step
                sequence.planned_end = start + 1
                entries.append(Rows(sequence, start, 1, 1))
        self._rows_left -= len(entries)
        self._logits_left -= len(entries)

    def _enter(self, rows: Rows[S]) -> None:
        sequence = rows.sequence
        sequence.planned_step = self._step
        sequence.planned_end = rows.start + rows.num_rows
        self._entries.append(rows)
        self._rows_left -= rows.num_rows
        self._logits_left -= rows.num_logits

    def _reserve_by_preempting(self, sequence: S, positions: int) -> bool:
        """Makes blocks available from unused draft rows, then from the latest sequences that have no rows yet.

        False if there are none left, or the sequence itself was the latest and has been preempted.
        """
        self._trim_drafts()
        while not self.cache.reserve(sequence.holding, positions):
            victim = self.running[-1]
            if victim.planned_step == self._step:
                return False
            self.preempt(victim)
            if victim is sequence:
                return False
        return True

    def _feed_starved(self) -> None:
        """Whoever is behind a prompt that found no block makes room for it, even a decode: else it might outlast it."""
        sequence, self._starved = self._starved, None
        if sequence is None or not sequence.running:
            return
        self._trim_drafts()
        while not self.cache.reserve(sequence.holding, sequence.num_computed + 1):
            if self.running[-1] is sequence:
                return
            self.preempt(self.running[-1])

    def _trim_drafts(self) -> None:
        """Takes back blocks that earlier steps reserved for drafts."""
        for sequence in self.running:
            planned = sequence.planned_step == self._step
            self.cache.trim(sequence.holding, sequence.planned_end if planned else sequence.num_computed)

    # --- prefills --------------------------------------------------------------------------------------------------

    def _plan_prefills(self, num_decodes: int) -> int:
        """Chunks for the sequences that prefill. Returns how many rows they got."""
        prefills = [sequence for sequence in self.running if sequence.planned_step != self._step]
        budget = min(self.limits.prefill_chunk, self._rows_left)
        if num_decodes:
            rows = self._cost.rows_within(MIXED_STEP_SECONDS, num_decodes, prefills[0].num_computed)
            budget = min(budget, max(MIN_PREFILL_ROWS, rows))
        before = self._rows_left
        for sequence, count in share_rows(prefills, budget):
            if sequence.running:  # not preempted by one before it
                self._plan_prefill(sequence, count)
        return before - self._rows_left

    def _plan_prefill(self, sequence: S, count: int) -> None:
        """The sequence's next chunk: at most `count` rows, fewer if logits or blocks are short, perhaps none."""
        start, length = sequence.num_computed, len(sequence.tokens)
        if sequence.scores_prompt:
            count = min(count, self._logits_left)
        elif sequence.generates and start + count == length and not self._logits_left:
            count -= 1
        if count <= 0:
            return
        cache, holding = self.cache, sequence.holding
        if not cache.reserve(holding, start + count):
            count = min(count, cache.reach(holding) - start)
            if count <= 0:
                if not self._reserve_by_preempting(sequence, start + 1):
                    self._starved = self._starved or sequence
                    return
                count = 1  # the rest of the chunk comes in later steps
            reserved = cache.reserve(holding, start + count)
            assert reserved, "blocks counted as available were not"
        num_logits = count if sequence.scores_prompt else int(sequence.generates and start + count == length)
        self._enter(Rows(sequence, start, count, num_logits))

    # --- newcomers -------------------------------------------------------------------------------------------------

    def _admit(self) -> None:
        """Starts waiting sequences, in rank order, while there are slots and blocks."""
        position = 0
        while position < len(self.waiting) and len(self.running) < self.limits.max_running:
            sequence = self.waiting[position]
            if self._waits_for_producer(sequence):
                position += 1
            elif not self._start(sequence):
                return  # those behind it must not take the blocks it waits for
            elif not sequence.running:
                position += 1

    def _waits_for_producer(self, sequence: S) -> bool:
        """Whether blocks that it could share are still being computed by another."""
        node = sequence.waiting_on
        if node is None:
            return False
        if node.producer is not None:
            return True
        sequence.waiting_on = None
        return False

    def _start(self, sequence: S) -> bool:
        """Gives a waiting sequence its slot and cached blocks, or a producer to wait for. False if blocks are short."""
        state = (sequence, len(self.running), *(pool.num_available for pool in self.cache.pools))
        if state == self._blocked:
            return False
        match = self._match(sequence)
        pending = match.pending
        if pending is not None and pending.producer is not None and pending.producer.priority <= sequence.priority:
            sequence.waiting_on = pending
            return True
        missing = self._missing(sequence, match)
        if not self.cache.fits(missing):
            self._blocked = state
            return False
        self._open(sequence, match)
        return True

    def _match(self, sequence: S) -> Match:
        fresh = sequence.scores_prompt or not sequence.adopts
        return NO_MATCH if fresh else self.cache.match(sequence.holding, sequence.tokens)

    def _missing(self, sequence: S, match: Match) -> list[int]:
        """Blocks per group that must be available for it to start, and for those that run to go on beside it."""
        ahead = self.limits.prefill_chunk
        missing = self.cache.num_missing(match, len(sequence.tokens), ahead)
        for other in self.running:
            more = self.cache.num_outstanding(other.holding, len(other.tokens) + 1, ahead)
            missing = [count + extra for count, extra in zip(missing, more, strict=True)]
        return missing

    def _open(self, sequence: S, match: Match) -> None:
        self.waiting.remove(sequence)
        insort(self.running, sequence, key=rank)
        sequence.running = True
        sequence.num_computed = match.num_tokens
        if sequence.cached_tokens is None:
            sequence.cached_tokens = match.num_tokens
            self.counts.queried_tokens += sequence.num_prompt
            self.counts.hit_tokens += match.num_tokens
        self.cache.open(sequence.holding, match)
        if sequence.adopts and not sequence.scores_prompt:
            self.cache.claim(sequence.holding, sequence.tokens, sequence)

    def _make_room(self) -> None:
        """Preempts less urgent sequences while a more urgent one cannot start for want of a slot or blocks."""
        head = self.waiting[0]
        while self.running and self.running[-1].priority > head.priority and not self._waits_for_producer(head):
            if len(self.running) < self.limits.max_running:
                match = self._match(head)
                if match.pending is not None or self.cache.fits(self._missing(head, match)):
                    return
            self.preempt(self.running[-1])

    # --- drafts ----------------------------------------------------------------------------------------------------

    def _plan_drafts(self, num_decodes: int) -> None:
        """Widens decodes by the drafts that rows, logits and free blocks allow. Nothing is preempted for a draft."""
        for position, rows in enumerate(self._entries[:num_decodes]):
            sequence = rows.sequence
            if not sequence.draft_window:
                continue
            end = rows.start + 1
            window = min(
                sequence.draft_window,
                sequence.max_length - len(sequence.tokens) - 1,
                self._rows_left,
                self._logits_left,
                self.cache.reach(sequence.holding) - end,
            )
            if window > 0 and self.cache.reserve(sequence.holding, end + window):
                sequence.planned_end = end + window
                self._entries[position] = rows._replace(window=window)
                self._rows_left -= window
                self._logits_left -= window

    def _release(self, sequence: S) -> None:
        sequence.running = False
        sequence.num_computed = 0
        sequence.waiting_on = None
        self.cache.abandon(sequence)
        self.cache.close(sequence.holding)
