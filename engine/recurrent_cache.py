"""The block tables of sequences that also carry a recurrent state, and the checkpoints that prefixes are resumed from.

A checkpoint is the state at a block border. It belongs to the node of the block before it: a prefix can be resumed
where all its keys and values are there and the last of its nodes has a checkpoint. Checkpoints are taken

    where a prompt leaves what is known already, because others may leave it there as well,
    at a prompt's last block border, and on the way there every CHECKPOINT_SPACING positions,
    at an answer's last block border: each one that a sequence passes takes the place of the one before.

They live in state blocks that nobody else needs, least recently used first to go, and no longer than their keys and
values.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field

from ..kernels.backend import KvPool, StatePool
from ..kernels.program import BLOCK
from .block_pool import NOWHERE
from .kv_cache import Cleared, Holding, KvCache, Match
from .prefix_index import Node, PrefixIndex, Producer
from .states import States

CHECKPOINT_SPACING = 1024


class CheckpointIndex(PrefixIndex):
    """A prefix index whose last group is checkpoints: they go with their blocks."""

    def __init__(self, num_groups: int, secret: bytes | None, drop: Callable[[int], None]) -> None:
        super().__init__(num_groups, secret)
        self._drop = drop

    def evict(self, group: int, block: int) -> None:
        """As PrefixIndex.evict; with keys and values goes the checkpoint behind them."""
        node = self._holders[group][block]
        super().evict(group, block)
        checkpoint = node.blocks[-1]
        if group != self._num_groups - 1 and checkpoint != NOWHERE:
            self._drop(checkpoint)


@dataclass(slots=True)
class Course:
    """Where a sequence takes checkpoints."""

    wanted: list[int] = field(default_factory=list[int])  # positions on the way to its prompt's end
    last: int = 0  # position of the latest
    rolling: tuple[Node, int] | None = None  # of its answer: the node and the block of the latest


class RecurrentCache(KvCache):
    """A KvCache and the states of `storage`."""

    def __init__(
        self,
        pools: SequenceOf[KvPool],
        windows: SequenceOf[int | None],
        storage: StatePool,
        *,
        prefix_cache: bool = True,
        secret: bytes | None = None,
        poison_freed: bool = False,
    ) -> None:
        super().__init__(pools, windows, prefix_cache=prefix_cache, secret=secret, poison_freed=poison_freed)
        self.index = CheckpointIndex(len(pools) + 1, secret, self._drop_checkpoint)
        self._group = len(pools)  # of checkpoints in the index
        self._courses: dict[int, Course] = {}
        self.states = States(storage, self._evict_checkpoint, poison_freed=poison_freed)
        self.state_pool = self.states.pool

    @property
    def num_cached(self) -> int:
        """As KvCache.num_cached, checkpoints included."""
        return super().num_cached + self.states.pool.num_cached

    def _evict_checkpoint(self, block: int) -> None:
        self.index.evict(self._group, block)

    def _drop_checkpoint(self, block: int) -> None:
        self.index.evict(self._group, block)
        self.states.pool.forget(block)

    # --- finding what is there -----------------------------------------------------------------------------------

    def match(self, holding: Holding, token_ids: SequenceOf[int]) -> Match:
        """As KvCache.match; a prefix also needs a checkpoint at its end, and who is about to take one is waited for."""
        if not self._prefix_cache:
            return Match([], None)
        max_blocks = (len(token_ids) - 1) // BLOCK
        runs = [0] * len(self.pools)
        path: list[Node] = []
        best, pending = 0, None
        for node in self.index.walk(self._keyed_blocks(holding, token_ids, max_blocks)):
            path.append(node)
            resumable = node.blocks[self._group] != NOWHERE
            for group in range(len(self.pools)):
                runs[group] = runs[group] + 1 if node.blocks[group] != NOWHERE else 0
                resumable = resumable and runs[group] >= min(len(path), self._behind[group])
            if resumable:
                best, pending = len(path), None
            if node.producer is not None:
                pending = node
        return Match(path[:best], pending)

    def choose_checkpoints(self, holding: Holding, token_ids: SequenceOf[int]) -> None:
        """Decides where the sequence takes checkpoints on the way to its last token."""
        if not self._prefix_cache or holding.unindexed:
            return
        last = (len(token_ids) - 1) // BLOCK
        known = sum(1 for _ in self.index.walk(self._keyed_blocks(holding, token_ids, last)))
        wanted = sorted({blocks for blocks in (known, last) if blocks > holding.num_full})
        self._courses[holding.slot].wanted = [blocks * BLOCK for blocks in wanted]

    def claim(self, holding: Holding, token_ids: SequenceOf[int], producer: Producer) -> None:
        """Chooses checkpoints and announces them, so that others wait for them."""
        self.choose_checkpoints(holding, token_ids)
        wanted = self._courses[holding.slot].wanted
        if not wanted:
            return
        node = holding.tip
        for index in range(holding.num_full, wanted[-1] // BLOCK):
            parent, node = node, self.index.insert(node, *self._keyed(holding, token_ids, index))
            if node is None:  # its key belongs to other tokens; what was made on the way here must not be lost sight of
                if parent is not None:
                    self.index.claim(parent, producer)
                return
            if (index + 1) * BLOCK in wanted and node.blocks[self._group] == NOWHERE:
                self.index.claim(node, producer)

    # --- holding and letting go ----------------------------------------------------------------------------------

    def open(self, holding: Holding, match: Match) -> None:
        """As KvCache.open, and the state of the matched prefix."""
        super().open(holding, match)
        checkpoint = match.nodes[-1].blocks[self._group] if match.nodes else NOWHERE
        self.states.open(holding.slot, checkpoint, match.num_tokens)
        self._courses[holding.slot] = Course(last=match.num_tokens)

    def close(self, holding: Holding) -> None:
        """As KvCache.close; the checkpoints that were taken stay."""
        if holding.slot >= 0:
            self.states.close(holding.slot)
            del self._courses[holding.slot]
        super().close(holding)

    def clear(self) -> Cleared:
        """As KvCache.clear, checkpoints included."""
        pool = self.states.pool
        num_free, found = pool.num_free, self.index.blocks(self._group)
        cleared = super().clear()
        for block in self.index.blocks(self._group):
            self._drop_checkpoint(block)
        freed = pool.num_free - num_free
        return Cleared(cleared.freed + freed, cleared.kept + len(found) - freed)

    # --- steps ---------------------------------------------------------------------------------------------------

    def plan_checkpoints(self, holding: Holding, first: int, rows: int) -> None:
        """Tells the planned step of these rows which states to save."""
        positions: list[int] = []
        if self._prefix_cache and not holding.unindexed:
            course, stop = self._courses[holding.slot], first if rows == 1 else first + rows
            border = stop // BLOCK * BLOCK
            positions = [position for position in course.wanted if position <= stop]
            if rows == 1 or border - course.last >= CHECKPOINT_SPACING:
                positions.append(border)
        self.states.save(holding.slot, first, positions)

    def settle(self, holding: Holding) -> None:
        """The planned step was done and its positions are committed: what it saved can be found from now on."""
        for position, block in self.states.settle(holding.slot):
            course, node = self._courses[holding.slot], self._node_before(holding, position)
            course.last = position
            present = node is not None and all(node.blocks[: self._group])  # else a reset came between
            if present and node is not None and self.index.fill(node, self._group, block):
                self.states.pool.mark_indexed(block)
                if not course.wanted or position > course.wanted[-1]:
                    self._replace_rolling(course, node, block)
            self.states.pool.release(block)

    def _node_before(self, holding: Holding, position: int) -> Node | None:
        """The node of the sequence's block that ends at a position."""
        node = holding.tip
        for _ in range(holding.num_full - position // BLOCK):
            node = None if node is None else node.parent
        return node

    def _replace_rolling(self, course: Course, node: Node, block: int) -> None:
        before, course.rolling = course.rolling, (node, block)
        if before is not None and before[0].blocks[self._group] == before[1]:
            self._drop_checkpoint(before[1])
