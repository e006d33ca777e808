"""A GGUF file or a set of split files, mapped read-only: metadata, tensor records, fingerprint.

    magic version counts | keys and values | tensor records | padding | tensor data, each tensor aligned

Files are untrusted: whatever is wrong with one ends in a ModelFileError of one line. Nothing is copied out of the map
except what a reader asks for.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ...kernels.errors import ModelFileError
from ...kernels.formats import WEIGHT_TYPES, WeightType
from .cursor import Cursor
from .metadata import MAX_KEYS, Metadata, Value, read_values

_MAX_TENSORS = 1 << 18
_MAX_NAME_BYTES = 256
_MAX_DIMS = 4
_MAX_PARTS = 4096
_KEY_BYTES, _RECORD_BYTES = 13, 33  # the smallest that a key with its value, or a tensor record, can be
_SAMPLE_BYTES = 4096  # of a tensor, in the fingerprint
_MAX_SAMPLES = 1024
_PART_NAME = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf")

# Types that exist but are not implemented, so that the error can name them.
_OTHER_TYPES = {
    9: "Q8_1", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 21: "IQ3_S", 22: "IQ2_S", 24: "I8",
    25: "I16", 26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M", 34: "TQ1_0", 35: "TQ2_0", 40: "NVFP4", 41: "Q1_0",
    42: "Q2_0",
}  # fmt: skip


@dataclass(frozen=True, eq=False, slots=True)
class Tensor:
    """A stored tensor. `shape` is numpy order, slowest first: (out, in) for a matrix."""

    name: str
    type: WeightType
    shape: tuple[int, ...]
    data: NDArray[np.uint8]  # [bytes], a view of the map

    @property
    def num_values(self) -> int:
        """Product of the shape."""
        count = 1
        for dim in self.shape:
            count *= dim
        return count


@dataclass(frozen=True, eq=False, slots=True)
class _Part:
    path: str
    map: mmap.mmap
    header: NDArray[np.uint8]  # everything before the tensor data
    values: dict[str, Value]
    tensors: dict[str, Tensor]


class GgufFile:
    """An opened model file. Views of its tensors stay valid as long as anyone holds them.

    As with every memory map, a file that is cut short in place while it is mapped kills the process that reads it:
    replace model files by renaming.
    """

    def __init__(self, parts: list[_Part]) -> None:
        self._parts = parts
        self.path = parts[0].path
        self.metadata = Metadata(self.path, parts[0].values)
        self.tensors: dict[str, Tensor] = {}
        for part in parts:
            for name, tensor in part.tensors.items():
                if name in self.tensors:
                    raise ModelFileError(part.path, "the tensor is in more than one part", name)
                self.tensors[name] = tensor

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> GgufFile:
        """Opens a file, or all parts of a split file when given any of them. Raises ModelFileError."""
        name = os.fspath(path)
        match = _PART_NAME.fullmatch(name)
        first = _open_part(name)
        count = Metadata(name, first.values).int("split.count", 1, low=0, high=_MAX_PARTS)
        if count <= 1:
            return cls([first])
        if match is None or int(match[3]) != count:
            raise ModelFileError(
                name, f"one of {count} parts, but it is not named ...-00001-of-{count:05d}.gguf", "split.count"
            )
        names = [f"{match[1]}-{number:05d}-of-{count:05d}.gguf" for number in range(1, count + 1)]
        parts = [first if part == name else _open_part(part) for part in names]
        file = cls(parts)
        _check_split(parts, len(file.tensors))
        return file

    @property
    def paths(self) -> tuple[str, ...]:
        """All parts, in order."""
        return tuple(part.path for part in self._parts)

    @property
    def num_bytes(self) -> int:
        """Size of all parts together."""
        return sum(len(part.map) for part in self._parts)

    @property
    def tensor_bytes(self) -> int:
        """Bytes of weights, without headers and padding."""
        return sum(tensor.data.size for tensor in self.tensors.values())

    def error(self, name: str, message: str) -> ModelFileError:
        """The error for a tensor, naming the part it is in (the first part if it is in none)."""
        path = next((part.path for part in self._parts if name in part.tensors), self.path)
        return ModelFileError(path, message, name)

    def fingerprint(self) -> str:
        """Identifies the weights: 32 hex digits of BLAKE2b over sizes, headers and 4 KiB from amid every tensor
        (of at most 1,024 tensors, evenly spread). Milliseconds; reading all of a large file would take minutes."""
        digest = hashlib.blake2b(digest_size=16)
        for part in self._parts:
            digest.update(len(part.map).to_bytes(8, "little"))
            digest.update(part.header.data)
        tensors = list(self.tensors.values())
        for tensor in tensors[:: -(-len(tensors) // _MAX_SAMPLES) or 1]:
            start = max((tensor.data.size - _SAMPLE_BYTES) // 2, 0)
            digest.update(tensor.data[start : start + _SAMPLE_BYTES].data)
        return digest.hexdigest()

    def release_pages(self) -> None:
        """Gives the pages of the map back to the system once weights are packed; a later read maps them again."""
        for part in self._parts:
            part.map.madvise(mmap.MADV_DONTNEED)


def _open_part(path: str) -> _Part:
    mapped = _map(path)
    data = np.frombuffer(mapped, np.uint8)
    cursor = Cursor(path, data)
    num_tensors, num_keys = _read_prologue(cursor)
    values = read_values(cursor, num_keys)
    alignment = Metadata(path, values).int("general.alignment", 32, low=8, high=1 << 20)
    if alignment & (alignment - 1):
        raise ModelFileError(path, f"is {alignment}, must be a power of two", "general.alignment")
    records = _read_records(cursor, num_tensors)
    start = -(-cursor.position // alignment) * alignment
    tensors = _place(path, data, records, start, alignment)
    return _Part(path, mapped, data[: cursor.position], values, tensors)


def _map(path: str) -> mmap.mmap:
    try:
        mode = os.stat(path).st_mode
        if stat.S_ISDIR(mode):
            raise ModelFileError(path, "a folder; name the GGUF file in it (of a split model, its first part)")
        if not stat.S_ISREG(mode):  # opening a pipe would wait for a writer
            raise ModelFileError(path, "not a regular file")
        with Path(path).open("rb") as file:
            if os.fstat(file.fileno()).st_size < 24:
                raise ModelFileError(path, "too short to be a GGUF file")
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        if isinstance(error, FileNotFoundError) and not path.endswith(".gguf"):
            reason += "; a model is named by the path of its GGUF file"
        raise ModelFileError(path, reason) from None


def _read_prologue(cursor: Cursor) -> tuple[int, int]:
    """Checks magic and version and returns the numbers of tensors and keys."""
    magic = cursor.bytes(4)
    if magic != b"GGUF":
        cursor.fail(f"not a GGUF file: it starts with {magic!r}")
    version = cursor.u32()
    if version & 0xFFFF == 0:
        cursor.fail("a big-endian file, or a damaged one")
    if version not in (2, 3):
        cursor.fail(f"GGUF version {version} is not supported (2 and 3 are)")
    num_tensors, num_keys = cursor.u64(), cursor.u64()
    _check_count(cursor, "keys", num_keys, MAX_KEYS, _KEY_BYTES)
    _check_count(cursor, "tensors", num_tensors, _MAX_TENSORS, _RECORD_BYTES)
    return num_tensors, num_keys


def _check_count(cursor: Cursor, what: str, count: int, limit: int, least_bytes: int) -> None:
    if count > limit:
        cursor.fail(f"claims {count:,} {what} (at most {limit:,} are allowed)")
    if count * least_bytes > cursor.remaining:
        cursor.fail(f"claims {count:,} {what}, more than {cursor.remaining:,} bytes can hold: is the file cut off?")


@dataclass(frozen=True, slots=True)
class _Record:
    name: str
    type: WeightType
    shape: tuple[int, ...]
    offset: int
    num_bytes: int


def _read_records(cursor: Cursor, count: int) -> dict[str, _Record]:
    records: dict[str, _Record] = {}
    for index in range(count):
        name = cursor.name(f"tensor {index}", _MAX_NAME_BYTES)
        cursor.subject = name
        if name in records:
            cursor.fail("the tensor is there twice")
        records[name] = _read_record(cursor, name)
    return records


def _read_record(cursor: Cursor, name: str) -> _Record:
    num_dims = cursor.u32()
    if not 1 <= num_dims <= _MAX_DIMS:
        cursor.fail(f"has {num_dims} dimensions")
    dims = [cursor.u64() for _ in range(num_dims)]  # fastest first
    type_id = cursor.u32()
    offset = cursor.u64()
    if type_id not in WEIGHT_TYPES:
        named = f"{_OTHER_TYPES[type_id]} (type {type_id})" if type_id in _OTHER_TYPES else f"type {type_id}"
        cursor.fail(f"stored as {named}, which is not supported")
    kind = WEIGHT_TYPES[type_id]
    if min(dims) == 0:
        cursor.fail(f"has an empty dimension: {dims}")
    if dims[0] % kind.block:
        cursor.fail(f"rows of {dims[0]} values do not divide into {kind.name} blocks of {kind.block}")
    num_bytes = kind.row_bytes(dims[0])
    for dim in dims[1:]:
        num_bytes *= dim
    return _Record(name, kind, tuple(reversed(dims)), offset, num_bytes)


def _place(
    path: str, data: NDArray[np.uint8], records: dict[str, _Record], start: int, alignment: int
) -> dict[str, Tensor]:
    """Checks where tensors lie: aligned, inside the file, none over another."""
    available = data.size - start
    end = 0
    for record in sorted(records.values(), key=lambda record: record.offset):
        if record.offset % alignment:
            raise ModelFileError(path, f"offset {record.offset} is not a multiple of {alignment}", record.name)
        if record.offset < end:
            raise ModelFileError(path, f"at offset {record.offset} it overlaps the tensor before it", record.name)
        end = record.offset + record.num_bytes
        if end > available:
            raise ModelFileError(
                path,
                f"needs bytes {record.offset:,} to {end:,} of {max(available, 0):,}: is the file cut off?",
                record.name,
            )
    return {
        record.name: Tensor(
            record.name,
            record.type,
            record.shape,
            data[start + record.offset : start + record.offset + record.num_bytes],
        )
        for record in records.values()
    }


def _check_split(parts: list[_Part], num_tensors: int) -> None:
    for number, part in enumerate(parts):
        metadata = Metadata(part.path, part.values)
        if metadata.int("split.count") != len(parts):
            raise metadata.error("split.count", f"is {metadata.int('split.count')} in one of {len(parts)} parts")
        if metadata.int("split.no") != number:
            raise metadata.error(
                "split.no", f"is {metadata.int('split.no')}, but the file is named as part {number + 1}"
            )
    first = Metadata(parts[0].path, parts[0].values)
    promised = first.int("split.tensors.count", num_tensors)
    if promised != num_tensors:
        raise first.error("split.tensors.count", f"is {promised}, but the parts hold {num_tensors} tensors")
