"""Stored weights as float32, exactly as the GGUF format defines them: one small function per format.

Each format is a structured dtype of one block, in file order, and a function from blocks to values [blocks, values per
block]. Operations and their order are those of the format's definition, so results are the same to the last bit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..formats import WeightType
from ..program import Weight

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]
Blocks = NDArray[np.void]  # [blocks] of one of the dtypes below

_CHUNK = 1 << 14  # blocks expanded at a time

_Q4_0 = np.dtype([("d", "<f2", (1,)), ("qs", "u1", (16,))])
_Q4_1 = np.dtype([("d", "<f2", (1,)), ("m", "<f2", (1,)), ("qs", "u1", (16,))])
_Q5_0 = np.dtype([("d", "<f2", (1,)), ("qh", "u1", (4,)), ("qs", "u1", (16,))])
_Q5_1 = np.dtype([("d", "<f2", (1,)), ("m", "<f2", (1,)), ("qh", "u1", (4,)), ("qs", "u1", (16,))])
_Q8_0 = np.dtype([("d", "<f2", (1,)), ("qs", "i1", (32,))])
_Q2_K = np.dtype([("scales", "u1", (16,)), ("qs", "u1", (64,)), ("d", "<f2", (1,)), ("dmin", "<f2", (1,))])
_Q3_K = np.dtype([("hmask", "u1", (32,)), ("qs", "u1", (64,)), ("scales", "u1", (12,)), ("d", "<f2", (1,))])
_Q4_K = np.dtype([("d", "<f2", (1,)), ("dmin", "<f2", (1,)), ("scales", "u1", (12,)), ("qs", "u1", (128,))])
_Q5_K = np.dtype(
    [("d", "<f2", (1,)), ("dmin", "<f2", (1,)), ("scales", "u1", (12,)), ("qh", "u1", (32,)), ("qs", "u1", (128,))]
)
_Q6_K = np.dtype([("ql", "u1", (128,)), ("qh", "u1", (64,)), ("scales", "i1", (16,)), ("d", "<f2", (1,))])
_IQ4_XS = np.dtype([("d", "<f2", (1,)), ("scales_h", "u1", (2,)), ("scales_l", "u1", (4,)), ("qs", "u1", (128,))])
_MXFP4 = np.dtype([("e", "u1", (1,)), ("qs", "u1", (16,))])

# The 16 levels of IQ4_NL and IQ4_XS, and those of MXFP4 (doubled E2M1).
_IQ4_LEVELS = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32)
_MXFP4_LEVELS = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.float32)


def dequantise(fmt: WeightType, data: Bytes) -> Floats:
    """The values of whole blocks, flat. `data` is their bytes, 1-D; its length is a multiple of the block's."""
    dtype, values = _FORMATS[fmt]
    blocks = np.frombuffer(np.ascontiguousarray(data).data, dtype)
    out = np.empty((len(blocks), fmt.block), np.float32)
    with np.errstate(over="ignore", invalid="ignore"):  # a file's scales may be infinite or NaN
        for start in range(0, len(blocks), _CHUNK):  # keeps the temporaries small beside the result
            out[start : start + _CHUNK] = values(blocks[start : start + _CHUNK]).reshape(-1, fmt.block)
    return out.reshape(-1)


def dequantise_weight(weight: Weight) -> Floats:
    """A weight's values in its own shape."""
    return dequantise(weight.type, weight.data).reshape(weight.shape)


def _fields(packed: Bytes, bits: int, run: int) -> Bytes:
    """Unpacks `bits`-bit fields. Each `run` bytes hold their lowest fields first, then the next: [blocks, values]."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]  # [fields, 1]
    groups = packed.reshape(len(packed), -1, 1, run)
    return ((groups >> shifts) & np.uint8((1 << bits) - 1)).reshape(len(packed), -1)


def _bits(packed: Bytes) -> Bytes:
    """Bit i of a little-endian number belongs to value i."""
    return np.unpackbits(packed, axis=-1, bitorder="little")


def _f32(x: NDArray[Any]) -> Floats:
    return x.astype(np.float32)


def _grouped(scales: Floats, values: Floats) -> Floats:
    """`values` [blocks, n] as [blocks, groups, n / groups] beside `scales` [blocks, groups, 1]."""
    return values.reshape(*scales.shape[:2], -1)


def _q4_0(b: Blocks) -> Floats:
    return _f32(b["d"]) * _f32(_fields(b["qs"], 4, 16).astype(np.int8) - np.int8(8))


def _q4_1(b: Blocks) -> Floats:
    return np.add(_f32(b["d"]) * _f32(_fields(b["qs"], 4, 16)), _f32(b["m"]))


def _five_bits(b: Blocks) -> Bytes:
    return _fields(b["qs"], 4, 16) | _bits(b["qh"]) << np.uint8(4)


def _q5_0(b: Blocks) -> Floats:
    return _f32(b["d"]) * _f32(_five_bits(b).astype(np.int8) - np.int8(16))


def _q5_1(b: Blocks) -> Floats:
    return np.add(_f32(b["d"]) * _f32(_five_bits(b)), _f32(b["m"]))


def _q8_0(b: Blocks) -> Floats:
    return _f32(b["qs"]) * _f32(b["d"])


def _q2_k(b: Blocks) -> Floats:
    """16 groups of 16: low nibble of the scale byte scales, high nibble is the minimum."""
    scale = (_f32(b["d"]) * _f32(b["scales"] & 15))[..., None]
    minimum = (_f32(b["dmin"]) * _f32(b["scales"] >> 4))[..., None]
    return np.subtract(scale * _grouped(scale, _f32(_fields(b["qs"], 2, 32))), minimum)


def _q3_k(b: Blocks) -> Floats:
    """16 groups of 16. Six-bit scales: four low bits in bytes 0..7, two high bits in bytes 8..11. A clear high bit
    of a value means minus 4."""
    scales = _fields(b["scales"][:, :8], 4, 8) | _fields(b["scales"][:, 8:], 2, 4) << np.uint8(4)
    scale = (_f32(b["d"]) * _f32(scales.astype(np.int8) - np.int8(32)))[..., None]
    high = _fields(b["hmask"], 1, 32)
    values = (_fields(b["qs"], 2, 32) | high << np.uint8(2)).astype(np.int8) - np.int8(4)
    return scale * _grouped(scale, _f32(values))


def _k_scales(b: Blocks) -> tuple[Floats, Floats]:
    """Scales and minimums [blocks, 8, 1] of Q4_K and Q5_K. Of 12 bytes, 0..3 and 4..7 hold the first four of each in
    their low six bits; 8..11 hold the low nibbles of the last four, whose two top bits are those of bytes 0..7."""
    first, second, third = np.split(b["scales"], 3, axis=-1)
    scales = np.concatenate([first & 63, third & 15 | first >> 2 & 48], axis=-1)
    minimums = np.concatenate([second & 63, third >> 4 | second >> 2 & 48], axis=-1)
    return (_f32(b["d"]) * _f32(scales))[..., None], (_f32(b["dmin"]) * _f32(minimums))[..., None]


def _q4_k(b: Blocks) -> Floats:
    scale, minimum = _k_scales(b)
    return np.subtract(scale * _grouped(scale, _f32(_fields(b["qs"], 4, 32))), minimum)


def _q5_k(b: Blocks) -> Floats:
    scale, minimum = _k_scales(b)
    values = _fields(b["qs"], 4, 32) | _fields(b["qh"], 1, 32) << np.uint8(4)
    return np.subtract(scale * _grouped(scale, _f32(values)), minimum)


def _q6_k(b: Blocks) -> Floats:
    """16 groups of 16. Each half of the block: 64 bytes of low nibbles, 32 bytes of four two-bit high parts."""
    scale = (_f32(b["d"]) * _f32(b["scales"]))[..., None]
    values = _fields(b["ql"], 4, 64) | _fields(b["qh"], 2, 32) << np.uint8(4)
    return scale * _grouped(scale, _f32(values.astype(np.int8) - np.int8(32)))


def _iq4_nl(b: Blocks) -> Floats:
    return _f32(b["d"]) * _IQ4_LEVELS[_fields(b["qs"], 4, 16)]


def _iq4_xs(b: Blocks) -> Floats:
    """8 groups of 32. Six-bit scales: nibbles of scales_l below two-bit fields of scales_h."""
    scales = _fields(b["scales_l"], 4, 1) | _fields(b["scales_h"], 2, 1) << np.uint8(4)
    scale = (_f32(b["d"]) * _f32(scales.astype(np.int8) - np.int8(32)))[..., None]
    return scale * _grouped(scale, _IQ4_LEVELS[_fields(b["qs"], 4, 16)])


def _mxfp4(b: Blocks) -> Floats:
    """The scale is half of 2^(e - 127), because the levels are doubled; below e = 2 it is a subnormal number."""
    e = b["e"].astype(np.uint32)
    bits = np.where(e < 2, np.uint32(0x00200000) << e, (e - np.uint32(1)) << np.uint32(23))
    return bits.view(np.float32) * _MXFP4_LEVELS[_fields(b["qs"], 4, 16)]


def _bf16(b: NDArray[np.uint16]) -> Floats:
    return (b.astype(np.uint32) << np.uint32(16)).view(np.float32)


_FORMATS: dict[WeightType, tuple[np.dtype[Any], Callable[[Any], Floats]]] = {
    WeightType.F32: (np.dtype("<f4"), _f32),
    WeightType.F16: (np.dtype("<f2"), _f32),
    WeightType.BF16: (np.dtype("<u2"), _bf16),
    WeightType.Q4_0: (_Q4_0, _q4_0),
    WeightType.Q4_1: (_Q4_1, _q4_1),
    WeightType.Q5_0: (_Q5_0, _q5_0),
    WeightType.Q5_1: (_Q5_1, _q5_1),
    WeightType.Q8_0: (_Q8_0, _q8_0),
    WeightType.Q2_K: (_Q2_K, _q2_k),
    WeightType.Q3_K: (_Q3_K, _q3_k),
    WeightType.Q4_K: (_Q4_K, _q4_k),
    WeightType.Q5_K: (_Q5_K, _q5_k),
    WeightType.Q6_K: (_Q6_K, _q6_k),
    WeightType.IQ4_NL: (_Q4_0, _iq4_nl),
    WeightType.IQ4_XS: (_IQ4_XS, _iq4_xs),
    WeightType.MXFP4: (_MXFP4, _mxfp4),
}
