"""The noise of draws: Philox against its published vectors, the transform, and the native copy by bits."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from sampling_cases import native_sets, needs_native

from surefoot.kernels.reference import noise

SEED = 0x1234567890ABCDEF


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [  # known answers of the Random123 library
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_known_answers(counter: tuple[int, ...], key: tuple[int, int], expected: tuple[int, ...]) -> None:
    c0, c1, c2, c3 = (np.array([c], np.uint32) for c in counter)
    assert tuple(int(w[0]) for w in noise.philox((c0, c1, c2, c3), key)) == expected


def test_words_are_uniform_and_differ_by_id_position_and_seed() -> None:
    ids = np.arange(1 << 16)
    streams = [noise.words(s, p, ids) for s, p in [(1, 0), (1, 1), (2, 0), (1 << 40, 0)]]
    for i, stream in enumerate(streams):
        assert len(np.unique(stream)) > len(ids) - 5  # collisions of 2^16 words in 2^32: expected 0.5
        counts = np.bincount(stream >> np.uint32(24), minlength=256)
        assert ((counts - 256) ** 2 / 256).sum() < 350  # chi-square, 255 degrees of freedom: p = 0.00007
        for other in streams[:i]:
            assert (stream == other).sum() < 3


def test_a_word_depends_on_its_own_id_only() -> None:
    ids = np.random.default_rng(0).permutation(300_000)[:1000]
    np.testing.assert_array_equal(noise.words(SEED, 9, ids), noise.words(SEED, 9, np.arange(300_000))[ids])


def test_log_is_the_natural_logarithm() -> None:
    x = np.exp(np.random.default_rng(1).uniform(-700, 700, 20_000))
    np.testing.assert_allclose(noise.log(x), np.log(x), rtol=1e-15, atol=1e-15)
    near_one = (1 - 2.0 ** -np.arange(1, 53)).astype(np.float64)
    np.testing.assert_allclose(noise.log(near_one), np.log(near_one), rtol=1e-15)


def test_gumbel_values_have_the_distribution_and_the_bounds() -> None:
    g = noise.gumbel(SEED, 3, np.arange(200_000))
    assert abs(g.mean() - 0.5772) < 0.01
    assert abs(g.var() - np.pi**2 / 6) < 0.03
    for q in (-1.0, 0.0, 1.0, 3.0):
        assert abs((g < q).mean() - np.exp(-np.exp(-q))) < 0.005
    extreme = (np.array([0, 2**32 - 1]) + 0.5) * 2.0**-32
    low, high = -noise.log(-noise.log(extreme))
    assert (round(float(low), 3), round(float(high), 3)) == (-3.130, 22.874)


@needs_native
@pytest.mark.parametrize("isa", native_sets())
def test_native_noise_is_the_same_by_bits(isa: str) -> None:
    from surefoot.kernels.cpu import _ops

    rng = np.random.default_rng(2)
    ids = np.concatenate([np.arange(200), rng.integers(0, 1 << 20, 200), [49_151, 262_143, 2**31 - 1]])
    for seed, position in [(0, 0), (SEED, 77), (2**64 - 1, 2**31 - 1)]:
        native = [_ops.noise_word(isa, seed, position, int(i)) for i in ids]
        np.testing.assert_array_equal(native, noise.words(seed, position, ids))
    words = np.concatenate([rng.integers(0, 2**32, 5000), [0, 1, 2, 2**31 - 1, 2**31, 2**32 - 2, 2**32 - 1]])
    u = (words.astype(np.float64) + 0.5) * 2.0**-32
    assert_same_bits(np.array([_ops.gumbel(isa, int(w)) for w in words]), -noise.log(-noise.log(u)))
    x = np.exp(rng.uniform(-700, 700, 5000))
    assert_same_bits(np.array([_ops.log(isa, float(v)) for v in x]), noise.log(x))


def assert_same_bits(a: NDArray[np.float64], b: NDArray[np.float64]) -> None:
    np.testing.assert_array_equal(a.view(np.uint64), b.view(np.uint64))
