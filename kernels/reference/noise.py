"""Counter-based noise: a draw's Gumbel values as a function of (seed, output position, token id), and nothing else.

Words come from Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011). A run of 64 token
ids takes 16 counters: lane i of word w belongs to token 64 * block + 16 * w + i, so that 16 lanes read adjacent logits.

    key     = (seed low, seed high)
    counter = (16 * (id // 64) + id % 16, output position, 0, 0)        word (id // 16) % 4 of its output

kernels/cpu/sampler_noise.h computes the same bits. So `log` is our own: additions, multiplications and divisions in
float64, which IEEE 754 fixes, in one order.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint32]
Doubles = NDArray[np.float64]

_LOW = np.uint64(0xFFFFFFFF)
_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_LN2 = 0.6931471805599453
_SQRT_HALF = 0.7071067811865476


def philox(counter: tuple[Words, Words, Words, Words], key: tuple[int, int]) -> tuple[Words, Words, Words, Words]:
    """Philox4x32-10 of arrays of counters under one key."""
    c0, c1, c2, c3 = (c.astype(np.uint64) for c in counter)
    for i in range(10):
        k0, k1 = (np.uint64((key[j] + i * _KEY_STEPS[j]) & 0xFFFFFFFF) for j in range(2))
        p0, p1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1, c2, c3 = (p1 >> np.uint64(32)) ^ c1 ^ k0, p1 & _LOW, (p0 >> np.uint64(32)) ^ c3 ^ k1, p0 & _LOW
    return c0.astype(np.uint32), c1.astype(np.uint32), c2.astype(np.uint32), c3.astype(np.uint32)


def words(seed: int, position: int, token_ids: NDArray[np.int64]) -> Words:
    """One 32-bit word per token id."""
    lane = (token_ids // 64 * 16 + token_ids % 16).astype(np.uint32)
    zeros = np.zeros_like(lane)
    out = philox((lane, zeros + np.uint32(position), zeros, zeros), (seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF))
    return np.choose(token_ids // 16 % 4, out)


def log(x: Doubles) -> Doubles:
    """Natural logarithm of positive normal numbers: x = m * 2^e, m near 1, and ln m = 2 artanh((m - 1) / (m + 1))."""
    m, e = np.frexp(x)
    low = m < _SQRT_HALF
    m, e = np.where(low, 2 * m, m), np.where(low, e - 1, e)
    s = (m - 1) / (m + 1)
    square = s * s
    series = np.full_like(s, 1 / 21)
    for denominator in range(19, 0, -2):
        series = series * square + 1 / denominator
    return e * _LN2 + 2 * s * series


def gumbel(seed: int, position: int, token_ids: NDArray[np.int64]) -> Doubles:
    """-log(-log(u)) with u = (word + 1/2) / 2^32; so between -3.13 and 22.88."""
    u = (words(seed, position, token_ids).astype(np.float64) + 0.5) * 2.0**-32
    return -log(-log(u))
