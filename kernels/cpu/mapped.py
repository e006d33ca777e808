"""Pages of a mapped model file, given back as soon as what they hold is packed."""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np
from numpy.typing import NDArray


def release_mapped(data: NDArray[np.uint8]) -> None:
    """Gives the pages that lie wholly within a view of a read-only map back; a later read maps them again. Leaves all
    other memory alone: what is not backed by a file would be lost."""
    owner: Any = data
    while isinstance(owner, np.ndarray):
        owner = owner.base
    if isinstance(owner, memoryview):
        owner = owner.obj
    if not isinstance(owner, mmap.mmap) or data.flags.writeable or not data.flags.c_contiguous:
        return
    start = _address(data) - _address(np.frombuffer(owner, np.uint8))
    first = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE
    length = (start + data.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE - first
    if length > 0:
        owner.madvise(mmap.MADV_DONTNEED, first, length)


def _address(data: NDArray[np.uint8]) -> int:
    return data.__array_interface__["data"][0]
