"""Every weight format against the `gguf` package, by bits."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from numpy.typing import NDArray

from surefoot.kernels.formats import WEIGHT_TYPES, WeightType
from surefoot.kernels.program import Weight
from surefoot.kernels.reference.dequantise import dequantise, dequantise_weight

# Byte offsets of the float16 numbers of a block: random bytes there may be NaN, whose payload nobody promises.
F16_OFFSETS = {
    WeightType.F16: (0,),
    WeightType.Q4_0: (0,),
    WeightType.Q4_1: (0, 2),
    WeightType.Q5_0: (0,),
    WeightType.Q5_1: (0, 2),
    WeightType.Q8_0: (0,),
    WeightType.Q2_K: (80, 82),
    WeightType.Q3_K: (108,),
    WeightType.Q4_K: (0, 2),
    WeightType.Q5_K: (0, 2),
    WeightType.Q6_K: (208,),
    WeightType.IQ4_NL: (0,),
    WeightType.IQ4_XS: (0,),
}
EDGE_SCALES = np.array([0.0, -0.0, 1.0, -1.0, 65504.0, -65504.0, 6e-8, -6e-8, 6.1e-5, 0.333], np.float16)
ALL = pytest.mark.parametrize("fmt", list(WeightType), ids=lambda t: t.name)


def put_f16(blocks: NDArray[np.uint8], offset: int, values: NDArray[np.float16]) -> None:
    blocks[:, offset : offset + 2] = values.astype("<f2").view(np.uint8).reshape(-1, 2)


def random_blocks(fmt: WeightType, count: int, rng: np.random.Generator) -> NDArray[np.uint8]:
    """Random bytes with finite scales: [count, block bytes]."""
    blocks = rng.integers(0, 256, (count, fmt.value.bytes), np.uint8)
    for offset in F16_OFFSETS.get(fmt, ()):
        raw = blocks[:, offset : offset + 2].copy().view(np.float16).reshape(-1)
        put_f16(blocks, offset, np.where(np.isfinite(raw), raw, np.float16(0.5)).astype(np.float16))
    if fmt in (WeightType.F32, WeightType.BF16):
        blocks[:, -1] &= 0xBF  # keep the exponent away from infinity and NaN
    return blocks


def expected(fmt: WeightType, blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
    with np.errstate(all="ignore"):
        return gguf.dequantize(blocks.reshape(1, -1).copy(), gguf.GGMLQuantizationType(fmt.type_id)).reshape(-1)


def assert_same_bits(a: NDArray[np.float32], b: NDArray[np.float32]) -> None:
    assert a.dtype == b.dtype == np.float32
    np.testing.assert_array_equal(a.view(np.uint32), b.view(np.uint32))


def test_every_type_has_the_layout_of_the_gguf_package() -> None:
    for type_id, fmt in WEIGHT_TYPES.items():
        block, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(type_id)]
        assert (fmt.name, fmt.block, fmt.row_bytes(block)) == (gguf.GGMLQuantizationType(type_id).name, block, size)


@ALL
def test_random_bytes(fmt: WeightType) -> None:
    blocks = random_blocks(fmt, 1024, np.random.default_rng(fmt.type_id))
    assert_same_bits(dequantise(fmt, blocks.reshape(-1)), expected(fmt, blocks))


@ALL
def test_edge_scales_and_extreme_fields(fmt: WeightType) -> None:
    rng = np.random.default_rng(7)
    count = len(EDGE_SCALES)
    for fill in (0x00, 0xFF, 0x0F, 0xF0, 0x80, 0x7F, None):
        blocks = random_blocks(fmt, count, rng)
        if fill is not None and fmt not in (WeightType.F32, WeightType.F16, WeightType.BF16):
            blocks[:] = fill
        for offset in F16_OFFSETS.get(fmt, ()):
            put_f16(blocks, offset, rng.permutation(EDGE_SCALES))
        assert_same_bits(dequantise(fmt, blocks.reshape(-1)), expected(fmt, blocks))


def test_every_exponent_of_mxfp4() -> None:
    blocks = random_blocks(WeightType.MXFP4, 256, np.random.default_rng(3))
    blocks[:, 0] = np.arange(256)
    assert_same_bits(dequantise(WeightType.MXFP4, blocks.reshape(-1)), expected(WeightType.MXFP4, blocks))


@ALL
def test_infinite_and_nan_scales_warn_nobody(fmt: WeightType) -> None:
    blocks = random_blocks(fmt, 2, np.random.default_rng(5))
    for offset in F16_OFFSETS.get(fmt, ()):
        put_f16(blocks, offset, np.array([np.inf, np.nan], np.float16))
    got = dequantise(fmt, blocks.reshape(-1))
    np.testing.assert_array_equal(np.isnan(got), np.isnan(expected(fmt, blocks)))


@ALL
def test_a_weight_keeps_its_shape_and_may_start_at_any_byte(fmt: WeightType) -> None:
    width = 2 * fmt.block
    blocks = random_blocks(fmt, 2 * 3 * 5, np.random.default_rng(9))
    padded = np.concatenate([np.zeros(1, np.uint8), blocks.reshape(-1)])
    weight = Weight("w", fmt, (3, 5, width), padded[1:])
    assert_same_bits(dequantise_weight(weight), expected(fmt, blocks).reshape(3, 5, width))
