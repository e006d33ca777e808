"""Every block is held, cached or free, exactly one of them, whatever happens in whatever order."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from hypothesis.strategies import DataObject, SearchStrategy, data, integers

from surefoot.engine.block_pool import NOWHERE, BlockPool

NUM_BLOCKS = 7


class PoolMachine(RuleBasedStateMachine):
    """Compares the pool with a model: a list of references and an ordered list of cached blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.evicted: list[int] = []
        self.freed: list[int] = []
        self.pool = BlockPool(NUM_BLOCKS, self.evicted.append, self.freed.append)
        self.held: list[int] = []  # one entry per reference
        self.indexed: set[int] = set()
        self.cached: list[int] = []  # least recently released first

    @precondition(lambda self: self.pool.num_available)
    @rule()
    def allocate(self) -> None:
        num_free, expected = self.pool.num_free, self.cached[0] if self.cached else None
        before = len(self.evicted)
        block = self.pool.allocate()
        assert block != NOWHERE and block not in self.held
        if num_free:
            assert len(self.evicted) == before, "evicted although a block was free"
        else:
            assert block == expected, "not the least recently released"
            assert self.evicted[before:] == [block] and self.freed[-1] == block
            self.cached.remove(block)
            self.indexed.discard(block)
        self.held.append(block)

    @precondition(lambda self: self.held)
    @rule(choice=data())
    def release(self, choice: DataObject) -> None:
        block = self.held.pop(choice.draw(_index(self.held)))
        before = len(self.freed)
        self.pool.release(block)
        if block in self.held:
            return
        if block in self.indexed:
            self.cached.append(block)
            assert len(self.freed) == before, "a cached block must keep its content"
        else:
            assert self.freed[before:] == [block]

    @precondition(lambda self: self.held or self.cached)
    @rule(choice=data())
    def share(self, choice: DataObject) -> None:
        shareable = self.held + self.cached
        block = shareable[choice.draw(_index(shareable))]
        self.pool.share(block)
        if block in self.cached:
            self.cached.remove(block)
        self.held.append(block)

    @precondition(lambda self: self.held)
    @rule(choice=data())
    def index(self, choice: DataObject) -> None:
        block = self.held[choice.draw(_index(self.held))]
        self.pool.mark_indexed(block)
        self.indexed.add(block)

    @precondition(lambda self: self.indexed)
    @rule(choice=data())
    def forget(self, choice: DataObject) -> None:
        known = sorted(self.indexed)
        block = known[choice.draw(_index(known))]
        self.pool.forget(block)
        self.indexed.discard(block)
        if block in self.cached:
            self.cached.remove(block)
            assert self.freed[-1] == block

    @invariant()
    def every_block_is_in_one_state(self) -> None:
        pool = self.pool
        assert pool.num_held == len(set(self.held))
        assert pool.num_cached == len(self.cached)
        assert pool.num_held + pool.num_cached + pool.num_free == pool.num_usable == NUM_BLOCKS - 1
        assert pool.num_available == pool.num_free + pool.num_cached
        for block in range(1, NUM_BLOCKS):
            assert pool.references(block) == self.held.count(block)


def _index(items: list[int]) -> SearchStrategy[int]:
    return integers(0, len(items) - 1)


TestBlockPool = PoolMachine.TestCase
TestBlockPool.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_misuse_is_an_assertion() -> None:
    pool = BlockPool(3)
    block = pool.allocate()
    pool.release(block)
    with pytest.raises(AssertionError, match="more often"):
        pool.release(block)
    with pytest.raises(AssertionError, match="cannot be shared"):
        pool.share(block)
    with pytest.raises(AssertionError, match="not held"):
        pool.mark_indexed(block)
    pool.allocate()
    pool.allocate()
    with pytest.raises(AssertionError, match="exhausted"):
        pool.allocate()
