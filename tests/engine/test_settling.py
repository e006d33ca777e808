"""Once everything is loaded: a garbage collector with nothing to walk, and huge pages where memory is full."""

import gc
import mmap
import sys
from pathlib import Path

import pytest

from surefoot.engine.settling import merge_pages, settle, small_pages

linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def test_what_is_loaded_is_not_walked_again() -> None:
    try:
        before = gc.get_freeze_count()
        settle().join(20)
        assert gc.get_freeze_count() > before + 1000
    finally:
        gc.unfreeze()


@linux
def test_the_heap_is_found_and_files_are_not() -> None:
    found = list(small_pages())
    names = {int(line.split("-")[0], 16): line.split()[5:] for line in Path("/proc/self/maps").read_text().splitlines()}
    assert found
    assert all(begin < end and names.get(begin, []) in ([], ["[heap]"]) for begin, end in found)
    object_address = id(found)
    assert any(begin <= object_address < end for begin, end in found)


@linux
def test_merging_leaves_memory_as_it_is() -> None:
    size = 16 << 20
    with mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        pattern = bytes(range(256)) * (size // 2 // 256)
        memory[: size // 2] = pattern  # the other half is not in use
        assert merge_pages() >= 0
        assert memory[: size // 2] == pattern
        assert memory[size // 2 :] == bytes(size // 2)
