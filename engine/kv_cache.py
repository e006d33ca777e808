"""The block tables of all sequences: reserves, shares, indexes and frees blocks over every KV group at once.

Owns pools' ids, the prefix index and the tables' contents; knows token ids and positions, but neither requests nor
steps. A sequence's state here is its `Holding`. Everything is keyed by full blocks of 32 positions:

    block      0     1     2     3     4        full group:   all blocks are held
    positions  0..31 32..63 ...                  window group: blocks wholly behind the window are given back
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..kernels.backend import KvPool
from ..kernels.program import BLOCK
from .block_pool import NOWHERE, BlockPool
from .prefix_index import Node, PrefixIndex, Producer, block_ids

UNBOUNDED = 1 << 40


def blocks_for(positions: int) -> int:
    """Blocks that hold this many positions."""
    return -(-positions // BLOCK)


def window_blocks(window: int | None) -> int:
    """Full blocks behind a block border that a query at the border can still see."""
    return UNBOUNDED if window is None else blocks_for(window - 1)


class Holding:
    """What one sequence holds. `blocks[g][i]` is group g's block for positions 32i .. 32i+31, or NOWHERE."""

    __slots__ = ("blocks", "first", "keys", "num_blocks", "num_full", "slot", "tip", "unindexed")

    def __init__(self, root_key: bytes) -> None:
        self.slot = -1  # row in every block table while it holds anything
        self.keys = [root_key]  # keys[i + 1] is the key of block i
        self.blocks: list[list[int]] = []
        self.first: list[int] = []  # per group, the first block not yet given back
        self.num_blocks = 0  # blocks reserved, the same in every group
        self.num_full = 0  # blocks full of committed tokens
        self.tip: Node | None = None  # node of block num_full - 1
        self.unindexed = False  # its blocks cannot be found by others


class Match(NamedTuple):
    """The longest prefix that every group can resume from, and the node being computed that could make it longer."""

    nodes: list[Node]
    pending: Node | None

    @property
    def num_tokens(self) -> int:
        """Positions that need not be computed."""
        return len(self.nodes) * BLOCK


class Cleared(NamedTuple):
    """What `KvCache.clear` did, in blocks of all groups."""

    freed: int
    kept: int  # held by sequences, and from now on theirs alone


class KvCache:
    """All KV groups of a program. `windows[g]` is the window of pool g's group."""

    state_pool: BlockPool | None = None  # of recurrent states, where there are any

    def __init__(
        self,
        pools: Sequence[KvPool],
        windows: Sequence[int | None],
        *,
        prefix_cache: bool = True,
        secret: bytes | None = None,
        poison_freed: bool = False,
    ) -> None:
        self._tables: list[NDArray[np.int32]] = [pool.block_table for pool in pools]
        self._behind = [window_blocks(window) for window in windows]
        self._storage = pools
        self._poison = poison_freed
        self._prefix_cache = prefix_cache
        self.index = PrefixIndex(len(pools), secret)
        self.pools = [self._make_pool(group, pool) for group, pool in enumerate(pools)]
        self._free_slots = list(range(min(table.shape[0] for table in self._tables) - 1, -1, -1))
        for table in self._tables:
            table[:] = NOWHERE

    def _make_pool(self, group: int, storage: KvPool) -> BlockPool:
        """A pool that tells the index about evictions and, in tests, ruins what may not be read."""

        def evict(block: int) -> None:
            self.index.evict(group, block)

        def poison(block: int) -> None:
            storage.fill(block, float("nan"))

        if not self._poison:
            return BlockPool(storage.num_blocks, evict)
        for block in range(storage.num_blocks):
            poison(block)
        return BlockPool(storage.num_blocks, evict, poison)

    @property
    def num_free_slots(self) -> int:
        """Sequences that can still be opened."""
        return len(self._free_slots)

    @property
    def num_cached(self) -> int:
        """Blocks that nobody holds and that can be found."""
        return sum(pool.num_cached for pool in self.pools)

    def holding(self, salt: bytes) -> Holding:
        """The state of a new sequence; holds nothing yet."""
        return Holding(self.index.root_key(salt))

    # --- finding what is there -----------------------------------------------------------------------------------

    def match(self, holding: Holding, token_ids: Sequence[int]) -> Match:
        """What of the sequence, its last token left out, is cached or being computed."""
        if not self._prefix_cache:
            return Match([], None)
        max_blocks = (len(token_ids) - 1) // BLOCK
        runs = [0] * len(self.pools)  # blocks without a gap up to here, per group
        path: list[Node] = []
        best = 0
        for node in self.index.walk(self._keyed_blocks(holding, token_ids, max_blocks)):
            path.append(node)
            resumable = True
            for group, block in enumerate(node.blocks):
                runs[group] = runs[group] + 1 if block != NOWHERE else 0
                resumable = resumable and runs[group] >= min(len(path), self._behind[group])
            if resumable:
                best = len(path)
        pending = path[best] if len(path) > best and path[best].producer is not None else None
        return Match(path[:best], pending)

    def num_missing(self, match: Match, positions: int, ahead: int) -> list[int]:
        """Per group, how many available blocks a sequence of so many positions takes if it starts from `match`.

        `ahead` positions are computed at a time, so a window group never holds more than window and `ahead`.
        """
        total, hit = blocks_for(positions), len(match.nodes)
        missing: list[int] = []
        for group, pool in enumerate(self.pools):
            behind = self._behind[group]
            used = match.nodes[max(0, hit - behind) :]
            revived = sum(1 for node in used if pool.references(node.blocks[group]) == 0)
            missing.append(min(revived + total - hit, behind + blocks_for(ahead) + 1))
        return missing

    def num_outstanding(self, holding: Holding, positions: int, ahead: int) -> list[int]:
        """Per group, how many more blocks a running sequence takes to hold so many positions."""
        more = blocks_for(positions) - holding.num_blocks
        return [
            max(0, min(more, behind + blocks_for(ahead) + 1 - (holding.num_blocks - first)))
            for behind, first in zip(self._behind, holding.first, strict=True)
        ]

    def fits(self, missing: Sequence[int]) -> bool:
        """Whether every group has so many blocks available."""
        return all(pool.num_available >= count for pool, count in zip(self.pools, missing, strict=True))

    def _keyed_blocks(
        self, holding: Holding, token_ids: Sequence[int], max_blocks: int
    ) -> Iterator[tuple[bytes, bytes]]:
        for index in range(max_blocks):
            yield self._keyed(holding, token_ids, index)

    def _keyed(self, holding: Holding, token_ids: Sequence[int], index: int) -> tuple[bytes, bytes]:
        """(key, ids) of block `index`; keys are kept, so each is hashed once in a sequence's life."""
        ids = block_ids(token_ids, index)
        keys = holding.keys
        if len(keys) == index + 1:
            keys.append(self.index.key(keys[index], ids))
        return keys[index + 1], ids

    # --- holding and letting go ----------------------------------------------------------------------------------

    def open(self, holding: Holding, match: Match) -> None:
        """Gives the sequence a slot and the matched blocks."""
        slot = self._free_slots.pop()
        hit = len(match.nodes)
        holding.slot = slot
        holding.blocks, holding.first = [], []
        for group, pool in enumerate(self.pools):
            first = max(0, hit - self._behind[group])
            blocks = [NOWHERE] * first + [node.blocks[group] for node in match.nodes[first:]]
            for block in blocks[first:]:
                pool.share(block)
            self._tables[group][slot, :hit] = blocks
            holding.blocks.append(blocks)
            holding.first.append(first)
        holding.num_blocks = holding.num_full = hit
        if match.nodes:
            self._move_tip(holding, match.nodes[-1])

    def claim(self, holding: Holding, token_ids: Sequence[int], producer: Producer) -> None:
        """Announces the full blocks that the sequence is about to compute, so that others wait for them."""
        if not self._prefix_cache or holding.unindexed:
            return
        node = holding.tip
        for index in range(holding.num_full, len(token_ids) // BLOCK):
            node = self.index.insert(node, *self._keyed(holding, token_ids, index))
            if node is None:
                return
            if not all(node.blocks):
                self.index.claim(node, producer)

    def abandon(self, producer: Producer) -> None:
        """Withdraws announcements that were not kept."""
        self.index.abandon(producer)

    def reserve(self, holding: Holding, positions: int) -> bool:
        """Makes blocks for the first so many positions; all groups or, when one is short, none."""
        new = blocks_for(positions) - holding.num_blocks
        if new <= 0:
            return True
        for pool in self.pools:
            if pool.num_available < new:
                return False
        start = holding.num_blocks
        for pool, blocks, table in zip(self.pools, holding.blocks, self._tables, strict=True):
            for _ in range(new):
                blocks.append(pool.allocate())
            table[holding.slot, start : start + new] = blocks[start:]
        holding.num_blocks = start + new
        return True

    def reach(self, holding: Holding) -> int:
        """Positions that the sequence could have blocks for now."""
        return (holding.num_blocks + min(pool.num_available for pool in self.pools)) * BLOCK

    def trim(self, holding: Holding, positions: int) -> bool:
        """Gives back blocks beyond the first so many positions. True if there were any."""
        keep = blocks_for(positions)
        if holding.num_blocks <= keep:
            return False
        for pool, blocks, table in zip(self.pools, holding.blocks, self._tables, strict=True):
            for block in reversed(blocks[keep:]):
                pool.release(block)
            del blocks[keep:]
            table[holding.slot, keep : holding.num_blocks] = NOWHERE
        holding.num_blocks = keep
        return True

    def commit(self, holding: Holding, token_ids: Sequence[int], num_computed: int) -> None:
        """The first `num_computed` positions hold these tokens for good: index what is full, leave what is behind."""
        full = num_computed // BLOCK
        if full == holding.num_full:
            return
        if self._prefix_cache:
            for index in range(holding.num_full, full):
                self._index_block(holding, token_ids, index)
        holding.num_full = full
        for group, behind in enumerate(self._behind):
            if full - behind > holding.first[group]:
                self._leave_behind(holding, group, full - behind)

    def close(self, holding: Holding) -> None:
        """Gives everything back, the deepest block first, so that it is the first to be given out again."""
        if holding.slot < 0:
            return
        for pool, blocks, first, table in zip(self.pools, holding.blocks, holding.first, self._tables, strict=True):
            for block in reversed(blocks[first:]):
                pool.release(block)
            table[holding.slot, : holding.num_blocks] = NOWHERE
        self._move_tip(holding, None)
        self._free_slots.append(holding.slot)
        holding.slot = -1
        holding.blocks, holding.first = [], []
        holding.num_blocks = holding.num_full = 0

    def clear(self) -> Cleared:
        """Makes everything that is stored unfindable. Blocks that nobody holds are free; sequences keep their own."""
        num_free = sum(pool.num_free for pool in self.pools)
        num_found = 0
        for group, pool in enumerate(self.pools):
            for block in self.index.blocks(group):
                self.index.evict(group, block)
                pool.forget(block)
                num_found += 1
        num_freed = sum(pool.num_free for pool in self.pools) - num_free
        return Cleared(num_freed, num_found - num_freed)

    def _index_block(self, holding: Holding, token_ids: Sequence[int], index: int) -> None:
        if holding.unindexed:
            return
        node = self.index.insert(holding.tip, *self._keyed(holding, token_ids, index))
        if node is None:  # its key belongs to other tokens: everything after it stays private
            holding.unindexed = True
            self._move_tip(holding, None)
            return
        for group, pool in enumerate(self.pools):
            block = holding.blocks[group][index]
            if block != NOWHERE and self.index.fill(node, group, block):
                pool.mark_indexed(block)
        self.index.settle(node)
        self._move_tip(holding, node)

    def _leave_behind(self, holding: Holding, group: int, first: int) -> None:
        """Gives back a window group's blocks before block `first`."""
        blocks, pool = holding.blocks[group], self.pools[group]
        for index in range(holding.first[group], first):
            pool.release(blocks[index])
            blocks[index] = NOWHERE
        self._tables[group][holding.slot, holding.first[group] : first] = NOWHERE
        holding.first[group] = first

    def _move_tip(self, holding: Holding, node: Node | None) -> None:
        if node is not None:
            self.index.pin(node)
        if holding.tip is not None:
            self.index.unpin(holding.tip)
        holding.tip = node
