"""The CPU backend's matrix products: right against the `gguf` package, and the same bits however they are cut."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import gguf
import numpy as np
import pytest
from numpy.typing import NDArray

from surefoot.kernels.cpu import _ops
from surefoot.kernels.formats import WeightType

FLOATS = (WeightType.F32, WeightType.F16, WeightType.BF16)
QUANTISED = tuple(t for t in WeightType if t not in FLOATS)
SETS = _ops.instruction_sets()
BEST = SETS[0]
WIDTH = 512

# Byte offsets of the float16 numbers in a block of the file.
HALVES = {
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


def random_scales(rng: np.random.Generator, count: int, extreme: bool) -> NDArray[np.float16]:
    """Finite float16 numbers: around 0.01, or anything from subnormal to the largest, with zeros."""
    if not extreme:
        return (rng.standard_normal(count) * 0.01).astype(np.float16)
    values = rng.integers(0, 1 << 16, count, dtype=np.uint16)
    values[(values & 0x7C00) == 0x7C00] &= 0x83FF  # infinities and NaN become subnormal
    values[rng.random(count) < 0.1] = 0
    return values.view(np.float16)


def random_weights(t: WeightType, out: int, width: int, seed: int = 0, extreme: bool = False) -> NDArray[np.uint8]:
    """Valid rows of the file's layout, [out, row bytes]: all codes random, scales as `random_scales`."""
    rng = np.random.default_rng(seed)
    if t in FLOATS:
        values = rng.standard_normal((out, width)).astype(np.float32)
        if t is WeightType.F16:
            return values.astype(np.float16).view(np.uint8)
        bits = values.view(np.uint32)
        return (bits if t is WeightType.F32 else (bits >> 16).astype(np.uint16)).view(np.uint8)
    blocks = rng.integers(0, 256, (out * width // t.block, t.value.bytes), dtype=np.uint8)
    for offset in HALVES.get(t, ()):
        blocks[:, offset : offset + 2] = random_scales(rng, len(blocks), extreme).view(np.uint8).reshape(-1, 2)
    if t is WeightType.MXFP4:  # exponents; 0 and 1 are subnormal scales
        low, high = (0, 220) if extreme else (110, 125)
        blocks[:, 0] = rng.integers(low, high, len(blocks))
    return blocks.reshape(out, t.row_bytes(width))


def dequantised(t: WeightType, rows: NDArray[np.uint8]) -> NDArray[np.float32]:
    return gguf.dequantize(rows, gguf.GGMLQuantizationType(t.type_id)).astype(np.float32, copy=False)


def pack(t: WeightType, rows: NDArray[np.uint8], width: int) -> _ops.PackedMatrix:
    return _ops.pack(t.type_id, rows.reshape(-1), len(rows), width)


@dataclass(frozen=True)
class Product:
    """A packed matrix and activations, multiplied by rectangles."""

    type: WeightType
    weight: _ops.PackedMatrix
    x: NDArray[np.float32]

    @classmethod
    def random(cls, t: WeightType, out: int = 40, width: int = WIDTH, rows: int = 17, extreme: bool = False) -> Product:
        x = np.random.default_rng(7).standard_normal((rows, width)).astype(np.float32)
        return cls(t, pack(t, random_weights(t, out, width, extreme=extreme), width), x)

    def run(
        self,
        isa: str = BEST,
        rows: tuple[int, int] | None = None,
        tiles: tuple[int, int] | None = None,
        into: NDArray[np.float32] | None = None,
        **epilogue: Any,
    ) -> NDArray[np.float32]:
        """The product's rectangle, written into `into` or into an array that is NaN elsewhere."""
        out = np.full((len(self.x), self.weight.out), np.nan, np.float32) if into is None else into
        first, last = rows or (0, len(self.x))
        inputs: dict[str, Any] = {"x": self.x}
        if self.type in QUANTISED:
            inputs = dict(zip(("q", "d", "sums"), _ops.quantise_rows(isa, self.x), strict=True))
        begin, end = tiles or (0, self.weight.tiles)
        _ops.matmul(
            isa, self.weight, out, row_begin=first, row_end=last, tile_begin=begin, tile_end=end, **inputs, **epilogue
        )
        return out


def same_bits(a: NDArray[np.floating[Any]], b: NDArray[np.floating[Any]]) -> bool:
    assert a.dtype == b.dtype == np.float32
    return bool(np.array_equal(a.view(np.uint32), b.view(np.uint32)))


# --- right -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("isa", SETS)
@pytest.mark.parametrize("extreme", [False, True], ids=["usual", "extreme"])
@pytest.mark.parametrize("t", QUANTISED, ids=lambda t: t.name)
def test_quantised_product_equals_float64_product_of_dequantised_weights(
    t: WeightType, extreme: bool, isa: str
) -> None:
    rows, out = 5, 37
    weights = random_weights(t, out, WIDTH, seed=3, extreme=extreme)
    product = Product(t, pack(t, weights, WIDTH), np.random.default_rng(4).standard_normal((rows, WIDTH), np.float32))
    q, d, _ = _ops.quantise_rows(isa, product.x)
    x = q.astype(np.float64) * np.repeat(d.astype(np.float64), 32, axis=1)
    w = dequantised(t, weights).astype(np.float64)
    # a block's terms cancel only against its own minimum: bound the error by the sum of magnitudes
    magnitude = np.abs(x) @ (np.abs(w) + np.abs(w).reshape(out, -1, t.block).max(-1).repeat(t.block, 1)).T
    error = np.abs(product.run(isa).astype(np.float64) - x @ w.T)
    assert np.all(error <= magnitude * 1e-6)


@pytest.mark.parametrize("isa", SETS)
@pytest.mark.parametrize("byte", [0x00, 0x0F, 0x55, 0x7F, 0x80, 0xF0, 0xFF])
@pytest.mark.parametrize("t", QUANTISED, ids=lambda t: t.name)
def test_the_largest_integer_sums_do_not_saturate(t: WeightType, byte: int, isa: str) -> None:
    """Every code at a bound of its range, every activation 127 in size: sums that 16 bits might not hold."""
    blocks = np.full((WIDTH // t.block, t.value.bytes), byte, np.uint8)
    for offset in HALVES.get(t, ()):
        blocks[:, offset : offset + 2] = np.array([1.0], np.float16).view(np.uint8)
    if t is WeightType.MXFP4:
        blocks[:, 0] = 127
    weights = blocks.reshape(1, -1)
    signs = np.array([[1] * 32, [-1] * 32, [1, -1] * 16, [1] * 16 + [-1] * 16], np.float32)
    product = Product(t, pack(t, weights, WIDTH), np.tile(signs, WIDTH // 32))
    w = dequantised(t, weights).astype(np.float64)
    exact = product.x.astype(np.float64) @ w.T
    assert np.all(np.abs(product.run(isa) - exact) <= np.abs(w).sum() * 1e-6)


@pytest.mark.parametrize("isa", SETS)
@pytest.mark.parametrize("width", [1, 33, 96])
@pytest.mark.parametrize("t", FLOATS, ids=lambda t: t.name)
def test_float_product_equals_float64_product(t: WeightType, width: int, isa: str) -> None:
    weights = random_weights(t, 70, width)
    product = Product(t, pack(t, weights, width), np.random.default_rng(5).standard_normal((9, width), np.float32))
    w = dequantised(t, weights).astype(np.float64)
    expected = product.x.astype(np.float64) @ w.T
    magnitude = np.abs(product.x.astype(np.float64)) @ np.abs(w).T
    assert np.all(np.abs(product.run(isa) - expected) <= magnitude * 1e-6)


@pytest.mark.parametrize("isa", SETS)
@pytest.mark.parametrize("extreme", [False, True], ids=["usual", "extreme"])
@pytest.mark.parametrize("t", list(WeightType), ids=lambda t: t.name)
def test_expand_row_is_gguf_dequantize_by_bits(t: WeightType, extreme: bool, isa: str) -> None:
    weights = random_weights(t, 19, WIDTH, seed=11, extreme=extreme)
    packed = pack(t, weights, WIDTH)
    expected = dequantised(t, weights)
    for row in range(len(expected)):
        assert same_bits(_ops.expand_row(isa, packed, row), expected[row])
        assert same_bits(_ops.expand_row(isa, packed, row, 3.3), expected[row] * np.float32(3.3))


@pytest.mark.parametrize("t", list(WeightType), ids=lambda t: t.name)
def test_packed_size_is_within_six_percent_of_the_file(t: WeightType) -> None:
    weights = random_weights(t, 64, 1536)
    assert pack(t, weights, 1536).nbytes <= 1.06 * weights.nbytes


@pytest.mark.parametrize("isa", SETS)
def test_bias_is_added_before_the_residual(isa: str) -> None:
    product = Product.random(WeightType.Q4_1, out=23, rows=3)
    rng = np.random.default_rng(1)
    bias = rng.standard_normal(23, np.float32) * 1e3
    residual = rng.standard_normal((3, 23), np.float32) * 1e6
    plain = product.run(isa)
    assert same_bits(product.run(isa, bias=bias), plain + bias)
    assert same_bits(product.run(isa, bias=bias, residual=residual), (plain + bias) + residual)
    into = residual.copy()
    product.run(isa, into=into, residual=into)  # the residual may be the output itself
    assert same_bits(into, plain + residual)


# --- activations -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("isa", SETS)
def test_quantise_row_rounds_half_to_even_and_sums_sixteens(isa: str) -> None:
    x = np.zeros((1, 64), np.float32)
    x[0, :6] = [127.0, 0.5, 1.5, -2.5, -127.0, 126.4]
    q, d, sums = _ops.quantise_rows(isa, x)
    assert q[0, :6].tolist() == [127, 0, 2, -2, -127, 126]
    assert d.tolist() == [[1.0, 0.0]]  # a block of zeros has scale 0
    assert not q[0, 6:].any()
    assert sums.tolist() == [[126, 0, 0, 0]]


@pytest.mark.parametrize("isa", SETS)
def test_quantise_row_follows_its_formula_at_every_magnitude(isa: str) -> None:
    rng = np.random.default_rng(2)
    x = (rng.standard_normal((64, 96)) * 10.0 ** rng.uniform(-28, 37, (64, 1))).astype(np.float32)
    q, d, sums = _ops.quantise_rows(isa, x)
    blocks = x.reshape(64, 3, 32)
    largest = np.abs(blocks).max(-1)
    expected = np.rint(blocks * (np.float32(127) / largest)[..., None])
    assert np.array_equal(q.reshape(64, 3, 32), expected)
    assert same_bits(d, largest / np.float32(127))
    assert np.array_equal(sums, q.astype(np.int32).reshape(64, 6, 16).sum(-1))


@pytest.mark.parametrize("isa", SETS)
@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("t", list(WeightType), ids=lambda t: t.name)
def test_a_row_that_is_not_finite_spoils_only_itself(t: WeightType, poison: float, isa: str) -> None:
    product = Product.random(t, rows=9)
    clean = product.run(isa)
    product.x[4, 77] = poison
    spoilt = product.run(isa)
    assert not np.isfinite(spoilt[4]).any()
    if t in QUANTISED:
        assert np.isnan(spoilt[4]).all()
    others = [0, 1, 2, 3, 5, 6, 7, 8]
    assert same_bits(spoilt[others], clean[others])


@pytest.mark.parametrize("isa", SETS)
def test_tiny_activations_count_as_zero(isa: str) -> None:
    q, d, sums = _ops.quantise_rows(isa, np.full((1, 32), 1e-40, np.float32))
    assert not q.any()
    assert not d.any()
    assert not sums.any()


# --- the same bits, however it is cut --------------------------------------------------------------------------------


@pytest.mark.parametrize("isa", SETS)
@pytest.mark.parametrize("t", list(WeightType), ids=lambda t: t.name)
def test_a_row_alone_has_the_bits_it_has_in_any_batch(t: WeightType, isa: str) -> None:
    product = Product.random(t)
    alone = np.concatenate([product.run(isa, rows=(r, r + 1))[r : r + 1] for r in range(len(product.x))])
    for count in range(2, len(product.x) + 1):
        batch = product.run(isa, rows=(0, count))[:count]
        assert same_bits(batch, alone[:count]), count


@pytest.mark.parametrize("t", list(WeightType), ids=lambda t: t.name)
def test_many_rows_have_the_bits_of_few(t: WeightType) -> None:
    product = Product.random(t, out=24, width=2048, rows=203)  # more than one block of panels
    few = product.run()
    for start in (0, 5, 194):
        assert same_bits(product.run(rows=(start, start + 9))[start : start + 9], few[start : start + 9])


@pytest.mark.parametrize("isa", SETS)
@pytest.mark.parametrize("t", list(WeightType), ids=lambda t: t.name)
def test_rectangles_tile_the_whole_by_bits(t: WeightType, isa: str) -> None:
    product = Product.random(t, out=100)
    whole = product.run(isa)
    parts = np.full_like(whole, np.nan)
    for rows in pairwise((0, 1, 4, 17)):
        for tiles in pairwise((0, 1, 3, 7)):
            product.run(isa, rows, tiles, into=parts)
    assert same_bits(whole, parts)


@pytest.mark.parametrize("t", list(WeightType), ids=lambda t: t.name)
@pytest.mark.parametrize("out", [1, 16, 31])
def test_columns_do_not_depend_on_their_neighbours(t: WeightType, out: int) -> None:
    weights = random_weights(t, 31, WIDTH)
    x = np.random.default_rng(7).standard_normal((3, WIDTH), np.float32)
    whole = Product(t, pack(t, weights, WIDTH), x).run()
    part = Product(t, pack(t, weights[31 - out :], WIDTH), x).run()
    assert same_bits(np.ascontiguousarray(whole[:, 31 - out :]), part)


@pytest.mark.parametrize("t", [WeightType.Q4_K, WeightType.Q6_K, WeightType.F32], ids=lambda t: t.name)
def test_rows_arranged_once_serve_every_call_of_their_version(t: WeightType) -> None:
    product = Product.random(t, out=64, rows=20)
    expected = product.run()
    quantised: dict[str, Any] = dict(zip(("q", "d", "sums"), _ops.quantise_rows(BEST, product.x), strict=True))
    inputs: dict[str, Any] = quantised if t in QUANTISED else {"x": product.x}
    out = np.zeros_like(expected)

    def run(version: int, rows: tuple[int, int], tiles: tuple[int, int]) -> None:
        begin, end = tiles
        first, last = rows
        _ops.matmul(
            BEST,
            product.weight,
            out,
            row_begin=first,
            row_end=last,
            tile_begin=begin,
            tile_end=end,
            version=version,
            **inputs,
        )

    for tiles in ((0, 1), (1, 4)):
        for rows in ((0, 8), (8, 19), (19, 20)):
            run(1, rows, tiles)
    assert same_bits(out, expected)
    for array in inputs.values():
        array[:8] = 0
    run(1, (0, 8), (0, 4))
    assert same_bits(out, expected)  # the promise was that they are the same
    run(2, (0, 8), (0, 4))
    assert not out[:8].any()
    run(0, (8, 19), (0, 4))
    assert same_bits(out[8:], expected[8:])


@pytest.mark.parametrize("isa", SETS[1:])
@pytest.mark.parametrize("extreme", [False, True], ids=["usual", "extreme"])
@pytest.mark.parametrize("t", list(WeightType), ids=lambda t: t.name)
def test_every_instruction_set_gives_the_same_bits(t: WeightType, extreme: bool, isa: str) -> None:
    product = Product.random(t, extreme=extreme)
    for mine, best in zip(_ops.quantise_rows(isa, product.x), _ops.quantise_rows(BEST, product.x), strict=True):
        assert np.array_equal(mine, best)
    assert same_bits(product.run(isa), product.run(BEST))


@pytest.mark.parametrize("isa", SETS[1:])
@pytest.mark.parametrize("rows", [13, 29, 40, 150])
@pytest.mark.parametrize("t", QUANTISED, ids=lambda t: t.name)
def test_many_rows_and_any_width_give_the_same_bits(t: WeightType, rows: int, isa: str) -> None:
    """What tile registers do in groups of 16 rows and chunks of 1,024 inputs, ends of both included."""
    for blocks in (1, 2, 3, 4, 33, 70) if t.block == 32 else (1, 4, 5, 9):
        product = Product.random(t, out=20, width=blocks * t.block, rows=rows)
        assert same_bits(product.run(isa), product.run(BEST)), blocks


def test_an_unknown_instruction_set_is_refused() -> None:
    with pytest.raises(ValueError, match="mmx"):
        _ops.quantise_rows("mmx", np.zeros((1, 32), np.float32))


@pytest.mark.parametrize(
    ("rows", "tiles", "what"), [((0, 18), (0, 3), "out"), ((-1, 2), (0, 3), "rectangle"), ((0, 2), (0, 4), "rectangle")]
)
def test_a_rectangle_outside_the_product_is_refused(rows: tuple[int, int], tiles: tuple[int, int], what: str) -> None:
    with pytest.raises(ValueError, match=what):
        Product.random(WeightType.Q4_0).run(BEST, rows, tiles)


def test_operands_of_another_width_are_refused() -> None:
    product = Product.random(WeightType.Q4_0)
    other = Product(WeightType.Q4_0, product.weight, product.x[:, :256].copy())
    with pytest.raises(ValueError, match="width"):
        other.run()
    with pytest.raises(ValueError, match="bias"):
        product.run(bias=np.zeros(41, np.float32))
    with pytest.raises(ValueError, match="residual"):
        product.run(residual=np.zeros((17, 39), np.float32))
    with pytest.raises(ValueError, match="out rows"):
        _ops.pack(WeightType.Q4_0.type_id, np.zeros(100, np.uint8), 1, 32)
