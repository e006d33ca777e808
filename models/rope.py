"""Rotary position tables from a file's settings: plain, linear, YaRN, and per-pair divisors (Llama 3)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ..kernels.program import RopeTable
from .checkpoint import Checkpoint, float_values


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """How positions beyond the trained context are reached. `factor` 1 is plain rope.

    YaRN (arXiv 2309.00071, section 3.2): pairs that turn often keep their speed, slow ones are slowed down by `factor`,
    with a linear ramp between the pairs that turn `beta_fast` and `beta_slow` times in `original_context` positions.
    """

    factor: float = 1.0
    yarn: bool = False
    original_context: int = 0
    ext_factor: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    magnitude: float = 1.0


def read_rope_scaling(checkpoint: Checkpoint) -> RopeScaling:
    """The file's `rope.scaling.*` settings. Raises ModelFileError for a kind that is not implemented."""
    settings = checkpoint.settings
    factor = settings.float("rope.scaling.factor", settings.float("rope.scale_linear", 0.0))
    kind = settings.str("rope.scaling.type", "linear" if factor else "none")
    attn_factor = settings.float("rope.scaling.attn_factor", 1.0)
    original = settings.int("rope.scaling.original_context_length", 0, low=0, high=(1 << 31) - 1)
    if factor < 0 or (factor == 0 and kind != "none"):
        raise settings.error("rope.scaling.factor", f"is {factor}, must be greater than 0")
    match kind:
        case "none":
            return RopeScaling()
        case "linear":
            return RopeScaling(factor=factor, magnitude=attn_factor)
        case "yarn":
            attn_factor *= settings.float("rope.scaling.yarn_attn_factor", 1.0)
            return RopeScaling(
                factor=factor,
                yarn=True,
                original_context=original or settings.int("context_length", low=1),
                ext_factor=settings.float("rope.scaling.yarn_ext_factor", 1.0),
                beta_fast=_positive(checkpoint, "rope.scaling.yarn_beta_fast", 32.0),
                beta_slow=_positive(checkpoint, "rope.scaling.yarn_beta_slow", 1.0),
                magnitude=attn_factor * (1.0 + 0.1 * math.log(max(factor, 1.0))),
            )
        case _:
            raise settings.error("rope.scaling.type", f"{kind!r} is not implemented (none, linear and yarn are)")


def read_rope_table(
    checkpoint: Checkpoint, name: str, key_dim: int, base: float, scaling: RopeScaling, *, divisors: bool = False
) -> RopeTable:
    """The table of heads of `key_dim` values, of which `rope.dimension_count` rotate (default: all).

    With `divisors`, the optional tensor rope_freqs.weight divides the speed of each pair.
    """
    rotated = checkpoint.settings.int("rope.dimension_count", key_dim, low=2, high=key_dim)
    if rotated % 2:
        raise checkpoint.settings.error("rope.dimension_count", f"is {rotated}, must be even")
    if base <= 1.0:
        raise checkpoint.settings.error("rope.freq_base", f"is {base}, must be greater than 1")
    speeds = base ** (-np.arange(0, rotated, 2, dtype=np.float64) / rotated)  # [rotated / 2]
    if divisors and checkpoint.has("rope_freqs.weight"):
        factors = float_values(checkpoint.vector("rope_freqs.weight", rotated // 2)).astype(np.float64)
        if not np.all(factors > 0):
            raise checkpoint.file.error("rope_freqs.weight", "has a divisor that is not greater than 0")
        speeds = speeds / factors
    kept = _yarn_share(scaling, rotated, base) if scaling.yarn else 0.0
    speeds = speeds * kept + speeds / scaling.factor * (1.0 - kept)
    return RopeTable(name, tuple(speeds.tolist()), scaling.magnitude)


def _yarn_share(scaling: RopeScaling, rotated: int, base: float) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """The share of each pair's own speed, 1 for pairs that turn often to 0: [rotated / 2]."""

    def pair_that_turns(times: float) -> float:
        return rotated * math.log(scaling.original_context / (times * 2 * math.pi)) / (2 * math.log(base))

    low = max(0, math.floor(pair_that_turns(scaling.beta_fast)))
    high = min(rotated - 1, math.ceil(pair_that_turns(scaling.beta_slow)))
    ramp = (np.arange(rotated // 2, dtype=np.float64) - low) / max(0.001, high - low)
    return (1.0 - np.clip(ramp, 0.0, 1.0)) * scaling.ext_factor


def _positive(checkpoint: Checkpoint, key: str, default: float) -> float:
    value = checkpoint.settings.float(key, default)
    if value <= 0:
        raise checkpoint.settings.error(key, f"is {value}, must be greater than 0")
    return value
