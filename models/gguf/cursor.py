"""Bounds-checked reads at a moving position. Every fault of an untrusted header ends in `Cursor.fail`."""

from __future__ import annotations

import struct
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from ...kernels.errors import ModelFileError

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")


class Cursor:
    """Reads little-endian values of `data` from `position` on. `subject` names what is being read, for the error."""

    def __init__(self, path: str, data: NDArray[np.uint8]) -> None:
        self.path = path
        self.data = data
        self.position = 0
        self.subject: str | None = None
        self._view = data.data

    @property
    def remaining(self) -> int:
        """Bytes between the position and the end of the file."""
        return self.data.size - self.position

    def fail(self, message: str) -> NoReturn:
        """Raises the ModelFileError for what is being read."""
        raise ModelFileError(self.path, message, self.subject)

    def skip(self, count: int) -> int:
        """Moves on by `count` bytes and returns where they start."""
        if count > self.remaining:
            self.fail(f"the file ends here: {count:,} bytes wanted at byte {self.position:,}, {self.remaining:,} left")
        start = self.position
        self.position += count
        return start

    def u32(self) -> int:
        """The next unsigned 32-bit integer."""
        return _U32.unpack_from(self._view, self.skip(4))[0]

    def u64(self) -> int:
        """The next unsigned 64-bit integer."""
        return _U64.unpack_from(self._view, self.skip(8))[0]

    def bytes(self, count: int) -> bytes:
        """The next `count` bytes, copied."""
        start = self.skip(count)
        return self._view[start : start + count].tobytes()

    def name(self, what: str, limit: int) -> str:
        """The next string, at most `limit` bytes of valid UTF-8: a key or a tensor's name."""
        self.subject = what
        length = self.u64()
        if not 0 < length <= limit:
            self.fail(f"a name of {length:,} bytes (1 to {limit} are allowed)")
        raw = self.bytes(length)
        try:
            text = raw.decode("utf-8")
        except UnicodeDecodeError:
            self.fail(f"the name {raw!r} is not valid UTF-8")
        if not text.isprintable():
            self.fail(f"the name {text!r} has unprintable characters")
        return text
