"""Blocks of one KV group: who holds each, which are kept for reuse, which are free. Knows ids only, no storage.

A block is *held* (references > 0), *cached* (nobody holds it, but the prefix index can still find it) or *free*. Cached
blocks are given out again, least recently released first, when no free one is left.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

NOWHERE = 0  # block 0 is never given out: table entries that hold nothing point at it


def ignore_block(block: int) -> None:
    """The default of both callbacks."""


class BlockPool:
    """Reference counts over blocks 1 .. num_blocks - 1.

    `on_evict` is told of a cached block that is about to be given out again, `on_free` of a block whose content may not
    be read any more.
    """

    def __init__(
        self,
        num_blocks: int,
        on_evict: Callable[[int], None] = ignore_block,
        on_free: Callable[[int], None] = ignore_block,
    ) -> None:
        assert num_blocks >= 2, "a pool needs block 0 and one to give out"
        self.num_blocks = num_blocks
        self.num_available = num_blocks - 1  # free or cached: what can be allocated now
        self._references = [0] * num_blocks
        self._indexed = bytearray(num_blocks)
        self._free = list(range(num_blocks - 1, 0, -1))
        self._cached: OrderedDict[int, None] = OrderedDict()
        self._on_evict = on_evict
        self._on_free = on_free

    @property
    def num_usable(self) -> int:
        """Blocks that can be held at the same time."""
        return self.num_blocks - 1

    @property
    def num_free(self) -> int:
        """Blocks that hold nothing."""
        return len(self._free)

    @property
    def num_cached(self) -> int:
        """Blocks that nobody holds and the prefix index can find."""
        return len(self._cached)

    @property
    def num_held(self) -> int:
        """Blocks that some sequence holds."""
        return self.num_usable - self.num_available

    def references(self, block: int) -> int:
        """How many sequences hold the block."""
        return self._references[block]

    def allocate(self) -> int:
        """A block with one reference. The caller has checked `num_available`."""
        if self._free:
            block = self._free.pop()
        else:
            assert self._cached, "allocate() on an exhausted pool"
            block, _ = self._cached.popitem(last=False)
            self._indexed[block] = 0
            self._on_evict(block)
            self._on_free(block)
        self._references[block] = 1
        self.num_available -= 1
        return block

    def share(self, block: int) -> None:
        """Adds a reference to a held or cached block."""
        if self._references[block] == 0:
            assert self._indexed[block], f"block {block} is free and cannot be shared"
            del self._cached[block]
            self.num_available -= 1
        self._references[block] += 1

    def release(self, block: int) -> None:
        """Drops a reference; the last one leaves the block cached if it is indexed, else free."""
        count = self._references[block] - 1
        assert count >= 0 and block != NOWHERE, f"block {block} released more often than held"
        self._references[block] = count
        if count:
            return
        self.num_available += 1
        if self._indexed[block]:
            self._cached[block] = None
        else:
            self._free.append(block)
            self._on_free(block)

    def mark_indexed(self, block: int) -> None:
        """The prefix index can find this held block from now on."""
        assert self._references[block] > 0, f"block {block} is not held and cannot be indexed"
        self._indexed[block] = 1

    def forget(self, block: int) -> None:
        """The prefix index cannot find this block any more."""
        assert self._indexed[block], f"block {block} is not indexed"
        self._indexed[block] = 0
        if self._references[block] == 0:
            del self._cached[block]
            self._free.append(block)
            self._on_free(block)
