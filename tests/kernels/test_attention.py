"""Attention alone against float64: queries, keys and values come straight from tables, so nothing else rounds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from harness import ProgramRunner
from numpy.typing import NDArray

from surefoot.kernels.cpu import _ops
from surefoot.kernels.cpu.backend import CpuBackend
from surefoot.kernels.formats import KvType, WeightType
from surefoot.kernels.program import Attend, Buffer, Embed, KvGroup, KvWrite, Program, Rows, SelectLogitsRows, Weight

TOKENS = 64
BACKENDS = [CpuBackend(2, isa) for isa in _ops.instruction_sets()]
Rows64 = NDArray[np.float64]


@dataclass(frozen=True)
class Case:
    """An attend op, and how large scores get."""

    heads: int
    kv_heads: int
    key_dim: int
    value_dim: int
    window: int | None = None
    softcap: float = 0.0
    sinks: bool = False
    length: int = 150
    spread: float = 1.0


CASES = {
    "one head": Case(1, 1, 32, 32),
    "every head its own": Case(3, 3, 64, 64),
    "pairs": Case(4, 2, 16, 16),
    "groups of seven": Case(14, 2, 128, 64),
    "one KV head, many queries": Case(17, 1, 8, 24),
    "wide": Case(2, 1, 256, 256),
    "odd sizes": Case(2, 1, 40, 72),
    "window": Case(4, 2, 32, 32, window=50),
    "window of one": Case(2, 1, 16, 16, window=1),
    "window of a block": Case(2, 2, 16, 16, window=32),
    "soft-cap": Case(2, 1, 32, 32, softcap=5.0, spread=4.0),
    "sinks": Case(4, 2, 32, 48, sinks=True, window=40),
    "several splits": Case(4, 1, 32, 32, length=900),
    "several splits in a window": Case(2, 1, 32, 32, window=300, length=900, sinks=True),
    "scores far apart": Case(2, 1, 32, 32, spread=30.0),
}


def table(rng: np.random.Generator, width: int, scale: float) -> Weight:
    values = (scale * rng.standard_normal((TOKENS, width))).astype(np.float32)
    return Weight(f"table{width}", WeightType.F32, values.shape, values.view(np.uint8).reshape(-1))


def values_of(weight: Weight) -> NDArray[np.float32]:
    return weight.data.view(np.float32).reshape(weight.shape)


@dataclass
class Attention:
    """A program that is one attend op; its logits are what it computes."""

    case: Case

    def __post_init__(self) -> None:
        c, rng = self.case, np.random.default_rng(1)
        self.tables = [
            table(rng, c.heads * c.key_dim, c.spread),
            table(rng, c.kv_heads * c.key_dim, 1.0),
            table(rng, c.kv_heads * c.value_dim, 1.0),
        ]
        sinks = rng.standard_normal(c.heads).astype(np.float32)
        self.sinks = Weight("sinks", WeightType.F32, sinks.shape, sinks.view(np.uint8)) if c.sinks else None
        query, key, value = (Buffer(name, t.shape[1]) for name, t in zip("qkv", self.tables, strict=True))
        out = Buffer("out", c.heads * c.value_dim)
        logits = Buffer("logits", out.width, Rows.LOGITS)
        group = KvGroup("g", 1, c.kv_heads, c.key_dim, c.value_dim, c.window)
        scale = c.key_dim**-0.5
        embeds = [Embed(b, t) for b, t in zip((query, key, value), self.tables, strict=True)]
        attend = Attend(out, query, group, 0, c.heads, scale, c.window, c.softcap, self.sinks)
        self.program = Program(
            "attention",
            (*embeds, KvWrite(key, value, group, 0), attend, SelectLogitsRows(logits, out)),
            logits,
            (group,),
        )

    def expected(self, ids: NDArray[np.int32]) -> Rows64:
        """[rows, heads * value_dim], in float64."""
        c, n = self.case, len(ids)
        q, k, v = (values_of(t)[ids].astype(np.float64) for t in self.tables)
        q, k, v = q.reshape(n, c.heads, -1), k.reshape(n, c.kv_heads, -1), v.reshape(n, c.kv_heads, -1)
        k, v = (x.repeat(c.heads // c.kv_heads, axis=1) for x in (k, v))
        scores = np.einsum("ihd,jhd->hij", q, k) * c.key_dim**-0.5
        if c.softcap:
            scores = c.softcap * np.tanh(scores / c.softcap)
        age = np.arange(n)[:, None] - np.arange(n)
        scores[:, (age < 0) | (age >= (c.window or n))] = -np.inf
        if self.sinks is not None:
            sinks = np.broadcast_to(values_of(self.sinks)[:, None, None], (c.heads, n, 1))
            scores = np.concatenate([scores, sinks], axis=2)
        weights = np.exp(scores - scores.max(2, keepdims=True))
        weights /= weights.sum(2, keepdims=True)
        return np.einsum("hij,jhd->ihd", weights[:, :, :n], v).reshape(n, -1)


@pytest.mark.parametrize("name", CASES)
def test_against_float64(name: str) -> None:
    """On every instruction set, in rows alone and together, with the same bits."""
    attention = Attention(CASES[name])
    ids = np.random.default_rng(2).integers(0, TOKENS, CASES[name].length).astype(np.int32)
    expected = attention.expected(ids)
    results: list[bytes] = []
    for backend in BACKENDS:
        for chunks in ([500], [1, 7, 64, 3]):
            runner = ProgramRunner(backend, attention.program, positions=960)
            got = runner.feed(ids, chunks=chunks)
            # Scores of size `spread` carry rounding errors of that size into the exponent.
            np.testing.assert_allclose(got, expected, atol=3e-6 * max(1.0, CASES[name].spread))
            results.append(got.tobytes())
    assert len(set(results)) == 1


@pytest.mark.parametrize(
    ("kv_type", "tolerance"), [(KvType.F16, 1e-3), (KvType.BF16, 2e-2), (KvType.Q8_0, 3e-2)], ids=lambda v: str(v)
)
@pytest.mark.parametrize("name", ["groups of seven", "odd sizes", "sinks"])
def test_narrow_caches_are_near(name: str, kv_type: KvType, tolerance: float) -> None:
    attention = Attention(CASES[name])
    ids = np.random.default_rng(3).integers(0, TOKENS, 100).astype(np.int32)
    got = ProgramRunner(BACKENDS[0], attention.program, kv_type=kv_type).feed(ids)
    error = np.abs(got - attention.expected(ids)).max()
    assert 1e-6 < error < tolerance


@pytest.mark.parametrize("kv_type", KvType)
def test_a_nan_stays_with_those_who_see_it(kv_type: KvType) -> None:
    """A NaN in one sequence's visible key poisons that sequence only; behind the window it poisons nobody."""
    attention = Attention(CASES["window"])
    runner = ProgramRunner(BACKENDS[0], attention.program, kv_type=kv_type, sequences=2)
    ids = np.random.default_rng(4).integers(0, TOKENS, 96).tolist()
    for sequence in (0, 1):
        runner.feed(ids, sequence=sequence)
    pool = next(iter(runner.pools.values()))
    pool.fill(int(pool.block_table[0, 2]), float("nan"))
    both = runner.step({0: [1], 1: [1]}, commit=False)
    assert np.isnan(both[0]).all()
    assert np.isfinite(both[1]).all()
    pool.fill(int(pool.block_table[1, 0]), float("nan"))  # positions 0..31; position 97 sees 48 and later
    assert np.isfinite(runner.step({1: [1]}, commit=False)[1]).all()
