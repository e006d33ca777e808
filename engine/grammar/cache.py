"""Least recently used values, bounded by their number and by their estimated size."""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class BoundedCache(Generic[K, V]):
    """Not thread-safe. A value larger than the whole cache is kept alone until the next one comes."""

    def __init__(self, max_count: int, max_bytes: int) -> None:
        self._max_count = max_count
        self._max_bytes = max_bytes
        self._entries: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self.num_bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: K) -> V | None:
        """The value, now the most recently used; None if there is none."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        self._entries.move_to_end(key)
        return entry[0]

    def put(self, key: K, value: V, size: int) -> None:
        """Adds or replaces a value of `size` bytes and drops the oldest ones that have no place any more."""
        self.discard(key)
        self._entries[key] = (value, size)
        self.num_bytes += size
        while len(self._entries) > 1 and (len(self._entries) > self._max_count or self.num_bytes > self._max_bytes):
            _, (_, dropped) = self._entries.popitem(last=False)
            self.num_bytes -= dropped

    def discard(self, key: K) -> None:
        """Forgets a value, if it is there."""
        entry = self._entries.pop(key, None)
        if entry is not None:
            self.num_bytes -= entry[1]
