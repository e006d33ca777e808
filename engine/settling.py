"""After loading and before serving: what was loaded stays, so it is taken out of Python's way.

Two things slow a turn of the engine down that have nothing to do with what it does. A full garbage collection walks
the vocabulary, 30 ms and more, while every stream waits. And between two native steps, which read all weights, no
cache holds anything of the interpreter's, nor any translation of its addresses: small pages make it wait twice for
whatever it touches (measured: a sixth of its time).
"""

from __future__ import annotations

import ctypes
import gc
import logging
import re
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

_log = logging.getLogger("surefoot.engine")

_PAGE = 4096
_HUGE = 2 << 20
_MOSTLY = 0.75  # of a huge page that must be in use: merging makes the rest resident
_MADV_COLLAPSE = 25  # Linux 6.1
_HEAP = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) rw-p \S+ \S+ 0 *(?:\[heap\])?$(.*?)^VmFlags:(.*?)$", re.M | re.S)


def settle() -> threading.Thread:
    """Call once everything is loaded. The thread that it returns ends within a second and needs no waiting for."""
    gc.collect()
    gc.freeze()
    merging = threading.Thread(target=_merge, name="surefoot-settling", daemon=True)
    merging.start()
    return merging


def _merge() -> None:
    if sys.platform == "linux":
        _log.info("%d MiB of small objects are in huge pages", merge_pages() * _HUGE >> 20)


def merge_pages() -> int:
    """Asks for huge pages where Python keeps its objects, as far as they are full. Returns how many it got."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]
    resident = ctypes.create_string_buffer(_HUGE // _PAGE)
    merged = 0
    for begin, end in small_pages():
        for address in range(-(-begin // _HUGE) * _HUGE, end - _HUGE + 1, _HUGE):
            in_use = libc.mincore(address, _HUGE, resident) == 0 and resident.raw.count(1) >= _MOSTLY * len(resident)
            if in_use and libc.madvise(address, _HUGE, _MADV_COLLAPSE) == 0:  # an older system: all works, slower
                merged += 1
    return merged


def small_pages() -> Iterator[tuple[int, int]]:
    """The heap, and what allocators map beside it. Weights and caches have asked for huge pages on their own (hg)."""
    for found in _HEAP.finditer(Path("/proc/self/smaps").read_text()):
        if " hg" not in found[4]:
            yield int(found[1], 16), int(found[2], 16)
