"""The scheduler under random traffic: no block with two owners, none lost, nobody starves, limits are kept."""

from __future__ import annotations

from dataclasses import dataclass

from fake_backend import FakePool
from hypothesis import given, settings
from hypothesis import strategies as st

from surefoot.engine.block_pool import NOWHERE
from surefoot.engine.cost_curve import CostCurve
from surefoot.engine.kv_cache import KvCache, blocks_for, window_blocks
from surefoot.engine.scheduler import MIN_PREFILL_ROWS, Scheduler, StepLimits
from surefoot.engine.sequence import Plan, Sequence

BLOCK = 32


LIMITS = StepLimits(max_running=4, max_rows=80, max_logits_rows=20, prefill_chunk=48)


@dataclass(frozen=True)
class Fixed:
    """A cost curve that always says the same."""

    rows: int = 10_000

    def rows_within(self, seconds: float, rows: int, context: int) -> int:
        return self.rows


class Traffic:
    """A scheduler and a stand-in for the model: every drawn token is a hash of the tokens before it."""

    def __init__(
        self,
        windows: tuple[int | None, ...] = (None,),
        blocks: int = 12,
        limits: StepLimits = LIMITS,
        rows: int = 10_000,
        prefix_cache: bool = True,
    ) -> None:
        self.windows = windows
        self.pools = [FakePool(blocks + 1, limits.max_running, 64) for _ in windows]
        self.cache = KvCache(self.pools, windows, prefix_cache=prefix_cache)
        self.scheduler: Scheduler[Sequence] = Scheduler(self.cache, limits, Fixed(rows))
        self.limits = limits
        self.live: list[Sequence] = []
        self.ended: list[Sequence] = []
        self.arrivals = 0

    def add(self, prompt: list[int], max_tokens: int = 8, priority: int = 0, window: int = 0) -> Sequence:
        self.arrivals += 1
        sequence = Sequence(prompt, max_tokens, self.cache.holding(b""), priority=priority, arrival=self.arrivals)
        sequence.draft_window = window
        self.scheduler.add(sequence)
        self.live.append(sequence)
        return sequence

    def end(self, sequence: Sequence) -> None:
        self.scheduler.remove(sequence)
        self.live.remove(sequence)
        self.ended.append(sequence)

    def step(self, accept: int = 0) -> Plan[Sequence]:
        """One step; of every window, `accept` drafts are accepted."""
        plan = self.scheduler.schedule()
        self.check(plan)
        for rows in plan.entries:
            sequence = rows.sequence
            if not rows.draws:
                self.scheduler.advance(sequence, rows.start + rows.num_rows)
                continue
            taken = 1 + min(accept, rows.window)
            sequence.tokens += [hash((len(sequence.tokens) + n, sequence.rank)) % 100 for n in range(taken)]
            self.scheduler.advance(sequence, rows.start + rows.num_rows + taken - 1)
            if len(sequence.tokens) >= sequence.max_length:
                self.end(sequence)
        self.check_blocks()
        return plan

    def run(self, accept: int = 0, max_steps: int = 3000) -> None:
        for _ in range(max_steps):
            if not self.live:
                break
            self.step(accept)
        assert not self.live, "somebody starved"

    def check(self, plan: Plan[Sequence]) -> None:
        entries = plan.entries
        assert entries or not self.live
        assert sum(rows.num_rows + rows.window for rows in entries) <= self.limits.max_rows
        assert sum(rows.num_logits + rows.window for rows in entries) <= self.limits.max_logits_rows
        assert plan.num_prefill_rows <= self.limits.prefill_chunk
        assert len(self.scheduler.running) <= self.limits.max_running
        assert len({id(rows.sequence) for rows in entries}) == len(entries)
        assert self.scheduler.running == sorted(self.scheduler.running, key=lambda s: s.rank)
        assert self.scheduler.waiting == sorted(self.scheduler.waiting, key=lambda s: s.rank)
        for rows in entries:
            sequence = rows.sequence
            assert sequence.running and rows.start == sequence.num_computed and rows.num_rows > 0
            assert rows.window <= max(0, sequence.max_length - len(sequence.tokens) - 1)
            last = rows.start + rows.num_rows + rows.window - 1
            for group, pool in enumerate(self.pools):
                row = pool.block_table[sequence.holding.slot]
                window = self.windows[group]
                first = 0 if window is None else max(0, rows.start - window + 1)
                needed = row[first // BLOCK : last // BLOCK + 1]
                assert (needed != NOWHERE).all(), "a visible position without a block"
                assert needed.tolist() == sequence.holding.blocks[group][first // BLOCK : last // BLOCK + 1]

    def check_blocks(self) -> None:
        for group, pool in enumerate(self.cache.pools):
            held: dict[int, int] = {}
            for sequence in self.scheduler.running:
                for block in sequence.holding.blocks[group]:
                    if block != NOWHERE:
                        held[block] = held.get(block, 0) + 1
            assert pool.num_held == len(held)
            assert pool.num_held + pool.num_cached + pool.num_free == pool.num_usable
            for block, count in held.items():
                assert pool.references(block) == count
            writable = [
                block
                for sequence in self.scheduler.running
                for block in sequence.holding.blocks[group][sequence.num_computed // BLOCK :]
            ]
            assert all(held[block] == 1 for block in writable), "a block that is still written has two owners"


requests = st.lists(
    st.tuples(
        st.integers(1, 150),  # prompt length
        st.integers(1, 60),  # tokens to generate
        st.integers(0, 3),  # which family of prompts
        st.integers(0, 2),  # priority
        st.integers(0, 6),  # draft window
        st.integers(0, 5),  # steps before the next one
        st.booleans(),  # cancelled some steps later
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=150, deadline=None)
@given(requests, st.sampled_from([(None,), (None, 40), (33, None, 1)]), st.integers(0, 6), st.sampled_from([1, 7, 64]))
def test_random_traffic_keeps_every_invariant(
    arriving: list[tuple[int, int, int, int, int, int, bool]],
    windows: tuple[int | None, ...],
    accept: int,
    rows: int,
) -> None:
    traffic = Traffic(windows, rows=rows)
    for length, max_tokens, family, priority, window, steps, cancelled in arriving:
        prompt = [family] * (length // 2) + list(range(length - length // 2))
        sequence = traffic.add(prompt, max_tokens, priority, window)
        for _ in range(steps):
            traffic.step(accept)
        if cancelled and sequence in traffic.live:
            traffic.end(sequence)
            traffic.check_blocks()
    traffic.run(accept)
    assert all(pool.num_held == 0 for pool in traffic.cache.pools)
    assert traffic.cache.num_free_slots == traffic.limits.max_running
    assert not traffic.cache.index._claims
    for pool in traffic.pools:
        assert (pool.block_table == NOWHERE).all()


def test_decodes_come_first_and_prompts_get_what_time_allows() -> None:
    traffic = Traffic(blocks=40, rows=20)
    decoding = traffic.add([1] * 10, 30)
    traffic.step()
    newcomer = traffic.add([2] * 200, 5)
    plan = traffic.step()
    assert [(rows.sequence, rows.num_rows) for rows in plan.entries] == [(decoding, 1), (newcomer, 20)]
    assert plan.kind == "mixed"
    slow = Traffic(blocks=40, rows=-5)
    slow.add([1] * 10, 30)
    slow.step()
    slow.add([2] * 200, 5)
    assert slow.step().num_prefill_rows == MIN_PREFILL_ROWS


def test_a_prompt_alone_is_bounded_by_rows_only() -> None:
    traffic = Traffic(blocks=40, rows=1)
    traffic.add([2] * 200, 5)
    plan = traffic.step()
    assert (plan.num_prefill_rows, plan.kind) == (48, "prefill")


def test_two_prompts_that_each_need_over_half_of_the_blocks_both_end() -> None:
    traffic = Traffic(blocks=10, limits=StepLimits(4, 80, 20, 16))
    traffic.add(list(range(1000, 1220)), 20)
    traffic.step()
    traffic.add(list(range(2000, 2220)), 20)
    traffic.run()
    assert len(traffic.ended) == 2


def test_the_latest_is_preempted_and_the_first_never_is() -> None:
    traffic = Traffic(blocks=12)
    sequences = [traffic.add([n] * 60, 90) for n in range(4)]
    while len(traffic.scheduler.running) < 3:
        traffic.step()
    while not traffic.scheduler.counts.preemptions:
        assert sequences[0].running
        traffic.step()
    assert sequences[0].running
    traffic.run()
    assert traffic.ended[0] is sequences[0]


def test_an_urgent_request_takes_the_place_of_a_less_urgent_one() -> None:
    traffic = Traffic(blocks=40)
    four = [traffic.add([n] * 20, 50) for n in range(4)]
    for _ in range(5):
        traffic.step()
    assert all(sequence.running for sequence in four)
    urgent = traffic.add([9] * 20, 5, priority=-1)
    traffic.step()
    assert urgent.running and [sequence.running for sequence in four] == [True, True, True, False]
    traffic.run()
    assert len(traffic.ended) == 5


def test_waiting_requests_start_by_priority_then_arrival() -> None:
    traffic = Traffic(limits=StepLimits(1, 80, 20, 48))
    order = [traffic.add([n] * 5, 2, priority) for n, priority in enumerate([1, 0, 1, 0])]
    traffic.run()
    assert traffic.ended == [order[1], order[3], order[0], order[2]]


def test_nothing_is_preempted_for_a_draft() -> None:
    """Eight blocks, two sequences that fill them but for their drafts: windows shrink, both run on."""
    traffic = Traffic(blocks=8)
    sequences = [traffic.add([n] * 97, 30, window=64) for n in range(2)]
    seen: set[int] = set()
    while traffic.live:
        plan = traffic.step(accept=1)
        seen.update(rows.window for rows in plan.entries)
        for rows in plan.entries:
            assert rows.sequence.holding.num_blocks <= 4
    assert traffic.scheduler.counts.preemptions == 0
    assert len(traffic.ended) == len(sequences) and max(seen) > 0


def test_blocks_reserved_for_drafts_are_taken_back_before_anybody_is_preempted() -> None:
    traffic = Traffic(blocks=5, limits=StepLimits(4, 120, 90, 48))
    drafting = traffic.add([1] * 64, 40, window=60)
    for _ in range(3):
        traffic.step()
    assert drafting.holding.num_blocks == 4
    plain = traffic.add([2] * 32, 20)
    for _ in range(10):
        traffic.step()
    assert plain.running and traffic.scheduler.counts.preemptions == 0


def test_a_window_group_keeps_only_its_window() -> None:
    traffic = Traffic((None, 40), blocks=40)
    sequence = traffic.add(list(range(500)), 3)
    most = 0
    while traffic.live:
        traffic.step()
        if sequence.running:
            most = max(most, sum(block != NOWHERE for block in sequence.holding.blocks[1]))
    assert most <= window_blocks(40) + blocks_for(48) + 1


def test_a_more_urgent_request_does_not_wait_for_a_less_urgent_producer() -> None:
    traffic = Traffic(blocks=40, limits=StepLimits(4, 200, 20, 20))
    prompt = list(range(120))
    slow = traffic.add(prompt, 3, priority=5)
    traffic.step()
    same_rank = traffic.add(prompt, 3, priority=5)
    urgent = traffic.add(prompt, 3, priority=0)
    traffic.step()
    traffic.step()
    assert urgent.running and not same_rank.running and slow.running
    traffic.run()


def test_time_per_step_does_not_grow_with_the_context() -> None:
    """Block tables are written when a block is added, not in every step."""
    traffic = Traffic(blocks=2000, limits=StepLimits(1, 2000, 20, 1900), prefix_cache=False)
    sequence = traffic.add([1] * 1800, 60)
    traffic.step()
    table = traffic.pools[0].block_table
    table.flags.writeable = False  # any write would raise
    for _ in range(1800 % BLOCK, BLOCK - 1):
        traffic.scheduler.schedule()
        sequence.tokens.append(1)
        traffic.scheduler.advance(sequence, len(sequence.tokens) - 1)
    table.flags.writeable = True


def test_cost_curve_satisfies_the_scheduler() -> None:
    curve = CostCurve(64, seconds_per_row=0.01)
    assert curve.rows_within(0.1, 2, 0) == 8


def test_a_short_prompt_does_not_wait_for_a_long_one() -> None:
    traffic = Traffic(blocks=60)
    traffic.add(list(range(1000)), 3)
    traffic.step()
    short = traffic.add([1] * 60, 3)
    also_long = traffic.add([2] * 990, 3)
    steps = 0
    while len(short.tokens) == 60:
        plan = traffic.step()
        steps += 1
        assert plan.entries[0].num_rows >= 24, "the first in rank keeps at least half"
        assert all(rows.sequence is not also_long for rows in plan.entries)
    assert steps == 3
    traffic.run()


def test_waiters_start_when_what_they_share_is_there_not_when_its_producer_ends() -> None:
    traffic = Traffic(blocks=60)
    shared = list(range(64))
    producer = traffic.add(shared + [7] * 200, 50)
    traffic.step()
    waiter = traffic.add(shared + [8] * 10, 20)
    for _ in range(3):
        traffic.step()
    assert waiter.running and waiter.cached_tokens == 64
    assert producer.num_computed < producer.num_prompt


def test_an_urgent_prompt_that_finds_no_block_takes_one_from_a_decode_behind_it() -> None:
    traffic = Traffic(blocks=7, rows=16)
    behind = traffic.add([1] * 30, 150, priority=1)
    while len(behind.tokens) < 60:
        traffic.step()
    urgent = traffic.add([2] * 150, 3)
    steps = 0
    while len(urgent.tokens) == 150:
        traffic.step()
        steps += 1
    assert steps <= 150 // MIN_PREFILL_ROWS + 3
    assert traffic.scheduler.counts.preemptions == 1 and not behind.running
    traffic.run()


def test_those_behind_a_large_request_do_not_take_the_blocks_that_it_waits_for() -> None:
    traffic = Traffic(blocks=12)
    first = traffic.add([1] * 250, 6)
    traffic.step()
    large = traffic.add([2] * 250, 3)
    small = traffic.add([3] * 20, 3)
    while first in traffic.live:
        assert not large.running and not small.running
        traffic.step()
    traffic.step()
    assert large.running
    traffic.run()


def test_a_short_prompt_that_is_less_urgent_does_wait_for_a_long_one() -> None:
    traffic = Traffic(blocks=60)
    traffic.add(list(range(1000)), 3)
    traffic.step()
    short = traffic.add([1] * 60, 3, priority=1)
    for _ in range(3):
        assert [rows.num_rows for rows in traffic.step().entries] == [48]
    assert short.num_computed == 0
    traffic.run()


def test_a_newcomer_leaves_those_that_run_the_blocks_that_they_still_need() -> None:
    traffic = Traffic(blocks=7)
    first = traffic.add([1] * 150, 3)
    traffic.step()
    assert first.holding.num_blocks == 2 and traffic.cache.pools[0].num_available == 5
    newcomer = traffic.add([2] * 90, 3)
    while first in traffic.live:
        assert not newcomer.running
        traffic.step()
    traffic.run()
    assert traffic.scheduler.counts.preemptions == 0
