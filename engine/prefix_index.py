"""Finds blocks by what they hold: a tree of full blocks, keyed by a hash chained over (parent, token ids, salt).

A node stands for the 32 tokens that fill one block after all tokens of its parents. It names, per KV group, the block
that holds them, and while it is being computed, who computes it. Knows no references and no positions.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from typing import Protocol

import numpy as np

from ..kernels.program import BLOCK
from .block_pool import NOWHERE


class Producer(Protocol):
    """Who computes a node: a sequence. Lower priorities are more urgent."""

    @property
    def priority(self) -> int: ...


class Node:
    """One full block of tokens in its context. `blocks[g]` is NOWHERE where group g holds nothing for it."""

    __slots__ = ("blocks", "ids", "key", "num_children", "num_pins", "parent", "producer")

    def __init__(self, key: bytes, parent: Node | None, ids: bytes, num_groups: int) -> None:
        self.key = key
        self.parent = parent
        self.ids = ids
        self.blocks = [NOWHERE] * num_groups
        self.producer: Producer | None = None
        self.num_children = 0
        self.num_pins = 0


class PrefixIndex:
    """The tree. The key of the hash is drawn per process, so nobody outside can aim at a collision."""

    def __init__(self, num_groups: int, secret: bytes | None = None) -> None:
        self._num_groups = num_groups
        self._secret = secrets.token_bytes(32) if secret is None else secret
        self._nodes: dict[bytes, Node] = {}
        self._holders: list[dict[int, Node]] = [{} for _ in range(num_groups)]
        self._claims: dict[Producer, list[Node]] = {}  # producer -> nodes it said it would compute

    def __len__(self) -> int:
        return len(self._nodes)

    def root_key(self, salt: bytes) -> bytes:
        """The key that stands before the first block of a tenant's prompts."""
        return blake2b(salt, digest_size=16, key=self._secret, person=b"root").digest()

    def key(self, parent_key: bytes, ids: bytes) -> bytes:
        """The key of the block `ids` after the context that `parent_key` stands for."""
        return blake2b(parent_key + ids, digest_size=16, key=self._secret, person=b"block").digest()

    def find(self, parent: Node | None, key: bytes, ids: bytes) -> Node | None:
        """The node of `ids` after `parent`, compared by its ids and not by its key alone."""
        node = self._nodes.get(key)
        if node is None or node.ids != ids or node.parent is not parent:
            return None
        return node

    def walk(self, blocks: Iterable[tuple[bytes, bytes]]) -> Iterator[Node]:
        """The nodes of consecutive (key, ids) from the root, up to the first that is missing."""
        node: Node | None = None
        for key, ids in blocks:
            node = self.find(node, key, ids)
            if node is None:
                return
            yield node

    def insert(self, parent: Node | None, key: bytes, ids: bytes) -> Node | None:
        """The node of `ids` after `parent`, made if missing. None if another block has its key (never, in practice)."""
        node = self._nodes.get(key)
        if node is None:
            node = Node(key, parent, ids, self._num_groups)
            self._nodes[key] = node
            if parent is not None:
                parent.num_children += 1
            return node
        return node if node.ids == ids and node.parent is parent else None

    def claim(self, node: Node, producer: Producer) -> None:
        """Says that `producer` is about to compute the node; others may wait for it."""
        if node.producer is None:
            node.producer = producer
            self._claims.setdefault(producer, []).append(node)

    def abandon(self, producer: Producer) -> None:
        """The producer will not compute what it claimed and has not filled yet."""
        for node in reversed(self._claims.pop(producer, ())):
            if node.producer is producer:
                node.producer = None
                self._prune(node)

    def fill(self, node: Node, group: int, block: int) -> bool:
        """Records that `block` holds the node's tokens. False if the node already has a block there."""
        if node.blocks[group] != NOWHERE:
            return False
        node.blocks[group] = block
        self._holders[group][block] = node
        return True

    def settle(self, node: Node) -> None:
        """The node has been computed, by whoever: nobody needs to wait any more."""
        node.producer = None

    def evict(self, group: int, block: int) -> None:
        """The block is about to hold something else."""
        node = self._holders[group].pop(block)
        node.blocks[group] = NOWHERE
        self._prune(node)

    def blocks(self, group: int) -> list[int]:
        """The blocks of a group that can be found."""
        return list(self._holders[group])

    def pin(self, node: Node) -> None:
        """Keeps the node (and with it its parents) while a sequence stands on it."""
        node.num_pins += 1

    def unpin(self, node: Node) -> None:
        """Undoes one `pin`."""
        assert node.num_pins > 0, "unpin without pin"
        node.num_pins -= 1
        self._prune(node)

    def _prune(self, node: Node | None) -> None:
        """Drops the node and then its parents, as far as nothing refers to them."""
        while node is not None:
            if node.num_children or node.num_pins or node.producer is not None or any(node.blocks):
                return
            del self._nodes[node.key]
            node = node.parent
            if node is not None:
                node.num_children -= 1


def block_ids(token_ids: Sequence[int], index: int) -> bytes:
    """The ids that fill block `index`, as they are hashed and compared."""
    return np.array(token_ids[index * BLOCK : (index + 1) * BLOCK], np.int32).tobytes()
