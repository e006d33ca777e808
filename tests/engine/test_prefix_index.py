"""The tree finds a block by its whole context and by nothing less, and forgets what nothing refers to."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from surefoot.engine.prefix_index import Node, PrefixIndex, block_ids


@dataclass(eq=False)
class Producer:
    priority: int = 0


def path(index: PrefixIndex, salt: bytes, blocks: list[bytes]) -> list[tuple[bytes, bytes]]:
    keyed: list[tuple[bytes, bytes]] = []
    key = index.root_key(salt)
    for ids in blocks:
        key = index.key(key, ids)
        keyed.append((key, ids))
    return keyed


def insert(index: PrefixIndex, salt: bytes, blocks: list[bytes]) -> list[Node]:
    nodes: list[Node] = []
    for key, ids in path(index, salt, blocks):
        node = index.insert(nodes[-1] if nodes else None, key, ids)
        assert node is not None
        nodes.append(node)
    return nodes


def walk(index: PrefixIndex, salt: bytes, blocks: list[bytes]) -> list[Node]:
    return list(index.walk(path(index, salt, blocks)))


letters = st.lists(st.sampled_from([b"a", b"b"]), max_size=5)


@given(st.lists(st.tuples(st.sampled_from([b"x", b"y"]), letters), max_size=8), st.sampled_from([b"x", b"y"]), letters)
def test_a_walk_finds_the_longest_inserted_prefix_of_its_salt(
    inserted: list[tuple[bytes, list[bytes]]], salt: bytes, wanted: list[bytes]
) -> None:
    index = PrefixIndex(1)
    for other, blocks in inserted:
        insert(index, other, blocks)
    known = {tuple(blocks[:n]) for other, blocks in inserted if other == salt for n in range(len(blocks) + 1)}
    expected = max((n for n in range(len(wanted) + 1) if tuple(wanted[:n]) in known), default=0)
    found = walk(index, salt, wanted)
    assert [node.ids for node in found] == wanted[:expected]


@settings(max_examples=200)
@given(st.lists(letters.filter(bool), min_size=1, max_size=6), st.randoms(use_true_random=False))
def test_a_tree_without_blocks_and_pins_is_empty(paths: list[list[bytes]], random: object) -> None:
    index = PrefixIndex(2)
    held: list[tuple[int, int]] = []
    pinned: list[Node] = []
    next_block = 1
    for blocks in paths:
        nodes = insert(index, b"", blocks)
        for node in nodes:
            for group in range(2):
                if index.fill(node, group, next_block):
                    held.append((group, next_block))
                    next_block += 1
        index.pin(nodes[-1])
        pinned.append(nodes[-1])
    random.shuffle(held)  # type: ignore[attr-defined]
    for group, block in held:
        index.evict(group, block)
    for blocks in paths:
        assert len(walk(index, b"", blocks)) == len(blocks), "a pinned node and its parents stay"
    for node in pinned:
        index.unpin(node)
    assert len(index) == 0


def test_ids_are_compared_not_only_keys() -> None:
    index = PrefixIndex(1, secret=b"k")
    key = index.key(index.root_key(b""), b"one")
    assert index.insert(None, key, b"one") is not None
    assert index.insert(None, key, b"two") is None, "another block with the same key"
    assert index.find(None, key, b"two") is None
    parent = index.insert(None, index.key(key, b"p"), b"p")
    assert index.find(parent, key, b"one") is None, "the same key under another parent"


def test_keys_depend_on_the_process_secret_the_salt_and_the_parent() -> None:
    one, other = PrefixIndex(1), PrefixIndex(1)
    assert one.root_key(b"") != other.root_key(b"")
    root = one.root_key(b"a")
    assert root != one.root_key(b"b")
    assert one.key(root, b"ids") != one.key(one.root_key(b"b"), b"ids")
    assert len(root) == len(one.key(root, b"ids")) == 16


def test_the_first_producer_keeps_its_claim_and_abandoning_prunes() -> None:
    index = PrefixIndex(1)
    first, second = Producer(), Producer()
    nodes = insert(index, b"", [b"a", b"b", b"c"])
    for node in nodes:
        index.claim(node, first)
        index.claim(node, second)
        assert node.producer is first
    assert index.fill(nodes[0], 0, 5)
    index.settle(nodes[0])
    index.abandon(second)
    assert [node.producer for node in nodes] == [None, first, first]
    index.abandon(first)
    assert walk(index, b"", [b"a", b"b"]) == nodes[:1]
    index.evict(0, 5)
    assert len(index) == 0


def test_block_ids_are_the_exact_ids() -> None:
    ids = list(range(70000, 70064))
    assert block_ids(ids, 0) != block_ids(ids, 1)
    assert len(block_ids(ids, 1)) == 128
    assert block_ids([i % 256 for i in ids], 0) != block_ids(ids, 0)
