"""Key/value metadata: typed reads that name the key at fault and remember which keys were read."""

from __future__ import annotations

import builtins
import math
import struct
from collections.abc import Iterator, Mapping, Sized
from dataclasses import dataclass
from typing import NoReturn, TypeAlias, TypeVar, cast, overload

import numpy as np
from numpy.typing import NDArray

from ...kernels.errors import ModelFileError
from .cursor import Cursor
from .strings import OutOfBoundsError, StringArray, find_strings

MAX_KEYS = 1 << 16
MAX_KEY_BYTES = 1 << 10
MAX_STRINGS = 1 << 22  # of one array; the largest vocabularies and merge lists have half a million
MAX_STRING_BYTES = 1 << 28  # of one array or one value

_SCALARS: dict[builtins.int, struct.Struct] = {
    0: struct.Struct("<B"),
    1: struct.Struct("<b"),
    2: struct.Struct("<H"),
    3: struct.Struct("<h"),
    4: struct.Struct("<I"),
    5: struct.Struct("<i"),
    6: struct.Struct("<f"),
    7: struct.Struct("<?"),
    10: struct.Struct("<Q"),
    11: struct.Struct("<q"),
    12: struct.Struct("<d"),
}
_DTYPES = {0: "u1", 1: "i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 7: "?", 10: "<u8", 11: "<i8", 12: "<f8"}
_BOOL, _STRING, _ARRAY = 7, 8, 9


@dataclass(frozen=True, slots=True)
class _Text:
    """A string value in the mapped file."""

    raw: NDArray[np.uint8]


Scalar: TypeAlias = int | float | bool | str
Value: TypeAlias = "Scalar | _Text | StringArray | list[str] | NDArray[np.generic]"
T = TypeVar("T")


class _Required:
    """The default of a read without a default."""


_REQUIRED = _Required()


class Metadata:
    """The keys of one file, or those under a prefix. Reads raise ModelFileError naming file and key.

    A read without a default is of a key that must be there. Every key asked for counts as read, whether there or not.
    """

    def __init__(self, path: builtins.str, values: Mapping[builtins.str, Value], prefix: builtins.str = "") -> None:
        self.path = path
        self._values = values
        self._prefix = prefix
        self._read: set[builtins.str] = set()

    def section(self, prefix: builtins.str) -> Metadata:
        """The keys that start with `prefix`, asked for without it. Shares the record of what was read."""
        section = Metadata(self.path, self._values, self._prefix + prefix)
        section._read = self._read
        return section

    def __contains__(self, key: object) -> builtins.bool:
        return isinstance(key, str) and self._prefix + key in self._values

    def __iter__(self) -> Iterator[builtins.str]:
        return (key[len(self._prefix) :] for key in self._values if key.startswith(self._prefix))

    def unread(self) -> list[builtins.str]:
        """Keys that nobody has asked for, in full."""
        return [key for key in self._values if key.startswith(self._prefix) and key not in self._read]

    def mark_read(self, key: builtins.str) -> None:
        """Declares that a key needs no reading."""
        self._read.add(self._prefix + key)

    def error(self, key: builtins.str, message: builtins.str) -> ModelFileError:
        """The error for a key of this section."""
        return ModelFileError(self.path, message, self._prefix + key)

    def fail(self, key: builtins.str, message: builtins.str) -> NoReturn:
        """Raises `error`, where a statement reads better."""
        raise self.error(key, message)

    @overload
    def str(self, key: builtins.str) -> builtins.str: ...
    @overload
    def str(self, key: builtins.str, default: T) -> builtins.str | T: ...
    def str(self, key: builtins.str, default: object = _REQUIRED) -> object:
        """A string."""
        value = self._get(key, default)
        if isinstance(value, _Text):
            try:
                return value.raw.tobytes().decode("utf-8")
            except UnicodeDecodeError:
                raise self.error(key, "not valid UTF-8") from None
        if value is default or isinstance(value, str):
            return value
        raise self._type_error(key, "a string", value)

    @overload
    def int(self, key: builtins.str, *, low: builtins.int = ..., high: builtins.int = ...) -> builtins.int: ...
    @overload
    def int(
        self, key: builtins.str, default: T, *, low: builtins.int = ..., high: builtins.int = ...
    ) -> builtins.int | T: ...
    def int(
        self,
        key: builtins.str,
        default: object = _REQUIRED,
        *,
        low: builtins.int = -(1 << 63),
        high: builtins.int = (1 << 64) - 1,
    ) -> object:
        """An integer of any width, from `low` to `high`."""
        value = self._get(key, default)
        if value is default:
            return value
        if isinstance(value, bool) or not isinstance(value, int):
            raise self._type_error(key, "an integer", value)
        if not low <= value <= high:
            raise self.error(key, f"is {value}, must be from {low} to {high}")
        return value

    @overload
    def float(self, key: builtins.str) -> builtins.float: ...
    @overload
    def float(self, key: builtins.str, default: T) -> builtins.float | T: ...
    def float(self, key: builtins.str, default: object = _REQUIRED) -> object:
        """A finite number."""
        value = self._get(key, default)
        if value is default:
            return value
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._type_error(key, "a number", value)
        if not math.isfinite(value):
            raise self.error(key, f"is {value}, must be finite")
        return float(value)

    @overload
    def bool(self, key: builtins.str) -> builtins.bool: ...
    @overload
    def bool(self, key: builtins.str, default: T) -> builtins.bool | T: ...
    def bool(self, key: builtins.str, default: object = _REQUIRED) -> object:
        """A truth value."""
        value = self._get(key, default)
        if value is default or isinstance(value, bool):
            return value
        raise self._type_error(key, "a truth value", value)

    @overload
    def strings(self, key: builtins.str) -> list[builtins.str]: ...
    @overload
    def strings(self, key: builtins.str, default: T) -> list[builtins.str] | T: ...
    def strings(self, key: builtins.str, default: object = _REQUIRED) -> object:
        """An array of strings; a few tens of milliseconds for 262,144 of them."""
        value = self._get(key, default)
        if value is default:
            return value
        if isinstance(value, StringArray):
            try:
                return value.decode()
            except UnicodeDecodeError as error:
                raise self.error(key, f"entry {error.start} is not valid UTF-8") from None
        if isinstance(value, list):
            return cast("list[builtins.str]", value).copy()
        if isinstance(value, np.ndarray) and not len(cast("Sized", value)):
            return []  # an empty array's element type says nothing
        raise self._type_error(key, "an array of strings", cast("object", value))

    @overload
    def array(self, key: builtins.str) -> NDArray[np.generic]: ...
    @overload
    def array(self, key: builtins.str, default: T) -> NDArray[np.generic] | T: ...
    def array(self, key: builtins.str, default: object = _REQUIRED) -> object:
        """A one-dimensional array of numbers or truth values in the type that the file stores, copied."""
        value = self._get(key, default)
        if value is default:
            return value
        if isinstance(value, np.ndarray):
            return cast("NDArray[np.generic]", value).copy()
        raise self._type_error(key, "an array of numbers", value)

    def length(self, key: builtins.str) -> builtins.int:
        """Entries of an array that must be there, without decoding it."""
        value = self._get(key, _REQUIRED)
        if isinstance(value, StringArray | list | np.ndarray):
            return len(cast("Sized", value))
        raise self._type_error(key, "an array", value)

    def per_layer(
        self,
        key: builtins.str,
        layers: builtins.int,
        default: builtins.int | None = None,
        *,
        low: builtins.int = 0,
        high: builtins.int = 1 << 31,
    ) -> tuple[builtins.int, ...]:
        """An integer for every layer, stored as one for all or as an array; booleans count as 0 and 1."""
        if not self.is_array(key):
            one = self.int(key, low=low, high=high) if default is None else self.int(key, default, low=low, high=high)
            return (one,) * layers
        values = self.array(key)
        if values.dtype.kind not in "iub":
            raise self.error(key, f"must be integers, not {values.dtype.name}")
        if values.size != layers:
            raise self.error(key, f"has {values.size} entries for {layers} layers")
        numbers = tuple(int(value) for value in values)
        for layer, number in enumerate(numbers):
            if not low <= number <= high:
                raise self.error(key, f"is {number} in layer {layer}, must be from {low} to {high}")
        return numbers

    def is_array(self, key: builtins.str) -> builtins.bool:
        """Whether the key is there and holds an array."""
        return isinstance(self._values.get(self._prefix + key), StringArray | list | np.ndarray)

    def _get(self, key: builtins.str, default: object) -> object:
        full = self._prefix + key
        self._read.add(full)
        value = self._values.get(full, default)
        if isinstance(value, _Required):
            raise self.error(key, "the key is missing")
        return value

    def _type_error(self, key: builtins.str, wanted: builtins.str, value: object) -> ModelFileError:
        return self.error(key, f"must be {wanted}, not {_describe(value)}")


def _describe(value: object) -> str:
    match value:
        case _Text() | str():
            return "a string"
        case bool():
            return "a truth value"
        case int():
            return "an integer"
        case float():
            return "a number"
        case StringArray() | list():
            return "an array of strings"
        case _:
            return "an array of numbers"


def read_values(cursor: Cursor, count: int) -> dict[str, Value]:
    """Reads `count` keys and their values; large ones stay in the file until somebody asks."""
    values: dict[str, Value] = {}
    for index in range(count):
        key = cursor.name(f"key {index}", MAX_KEY_BYTES)
        cursor.subject = key
        if key in values:
            cursor.fail("the key is there twice")
        values[key] = _read_value(cursor)
    return values


def _read_value(cursor: Cursor) -> Value:
    kind = cursor.u32()
    if kind == _STRING:
        length = cursor.u64()
        if length > MAX_STRING_BYTES:
            cursor.fail(f"a string of {length:,} bytes ({MAX_STRING_BYTES:,} are allowed)")
        start = cursor.skip(length)
        return _Text(cursor.data[start : start + length])
    if kind == _ARRAY:
        return _read_array(cursor)
    if kind not in _SCALARS:
        cursor.fail(f"unknown value type {kind}")
    raw = cursor.bytes(_SCALARS[kind].size)
    if kind == _BOOL and raw[0] > 1:
        cursor.fail(f"a truth value is stored as {raw[0]}")
    return _SCALARS[kind].unpack(raw)[0]


def _read_array(cursor: Cursor) -> Value:
    kind, count = cursor.u32(), cursor.u64()
    if kind == _ARRAY:
        cursor.fail("arrays of arrays are not supported")
    if kind == _STRING:
        return _read_strings(cursor, count)
    if kind not in _DTYPES:
        cursor.fail(f"unknown array element type {kind}")
    dtype = np.dtype(_DTYPES[kind])
    start = cursor.skip(count * dtype.itemsize)
    raw = cursor.data[start : cursor.position]
    if kind == _BOOL and raw.size and raw.max() > 1:
        cursor.fail("a truth value is stored as neither 0 nor 1")
    return raw.view(dtype)


def _read_strings(cursor: Cursor, count: int) -> Value:
    if count > MAX_STRINGS or count * 8 > cursor.remaining:
        cursor.fail(f"an array of {count:,} strings (at most {min(MAX_STRINGS, cursor.remaining // 8):,} are possible)")
    try:
        heads = find_strings(cursor.data, cursor.position, count)
    except OutOfBoundsError as error:
        cursor.fail(f"entry {error.index} reaches beyond the end of the file")
    size = int(heads[-1]) - cursor.position
    if size > MAX_STRING_BYTES:
        cursor.fail(f"an array of {size:,} bytes of strings ({MAX_STRING_BYTES:,} are allowed)")
    cursor.skip(size)
    return StringArray(cursor.data, heads)
