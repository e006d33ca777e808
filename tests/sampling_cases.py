"""Both samplers behind one face, and random cases for them. Used by the test_sampling files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest
from numpy.typing import NDArray

from surefoot.kernels.backend import DrawRequest, Sampler
from surefoot.kernels.reference.sampling import ReferenceSampler, draw_window
from surefoot.kernels.registry import has_native_module
from surefoot.kernels.sampling import Draw, DrawFault, SamplingSpec

Logits = NDArray[np.float32]  # [rows, vocabulary]
GREEDY = SamplingSpec(seed=0, temperature=0.0)


class ReferenceFace:
    """The numpy oracle."""

    def sampler(self, spec: SamplingSpec, prompt_ids: Sequence[int], vocab_size: int) -> Sampler:
        return ReferenceSampler(spec, prompt_ids, vocab_size)

    def draw(self, logits: Logits, requests: Sequence[DrawRequest]) -> list[list[Draw] | DrawFault]:
        return [draw_window(logits, request) for request in requests]


class NativeFace:
    """The native sampler of one instruction set."""

    def __init__(self, isa: str) -> None:
        from surefoot.kernels.cpu import _ops, sampling

        self.sampler = sampling.sampler
        self.draw = sampling.Drawer(_ops.Runtime(isa, 2)).draw


Face = ReferenceFace | NativeFace


def native_sets() -> list[str]:
    """Instruction sets of this machine that have kernels; none where the native module was not built."""
    if not has_native_module():
        return []
    from surefoot.kernels.cpu import _ops

    return _ops.instruction_sets()


@cache
def face(name: str) -> Face:
    return ReferenceFace() if name == "reference" else NativeFace(name)


FACES = ["reference", *native_sets()]
needs_native = pytest.mark.skipif(not native_sets(), reason="native module not built")


def one(face: Face, row: Logits, spec: SamplingSpec, position: int = 0, prompt: Sequence[int] = ()) -> Draw | DrawFault:
    """A single draw from a row [vocabulary]."""
    sampler = face.sampler(spec, prompt, len(row))
    result = face.draw(row[None], [DrawRequest(sampler, 0, position)])[0]
    return result if isinstance(result, DrawFault) else result[0]


def token(face: Face, row: Logits, spec: SamplingSpec, position: int = 0, prompt: Sequence[int] = ()) -> int:
    drawn = one(face, row, spec, position, prompt)
    assert isinstance(drawn, Draw), drawn
    return drawn.token_id


def pack_mask(allowed: NDArray[np.bool_]) -> NDArray[np.uint32]:
    """[rows, vocabulary] booleans as DrawRequest.masks wants them."""
    words = (allowed.shape[1] + 31) // 32
    padded = np.zeros((len(allowed), words * 32), np.bool_)
    padded[:, : allowed.shape[1]] = allowed
    return np.packbits(padded, axis=1, bitorder="little").view(np.uint32)


@dataclass(frozen=True)
class Case:
    """A window: rows, the request's parameters and history, drafts."""

    logits: Logits
    spec: SamplingSpec
    prompt: list[int]
    output: list[int]
    position: int
    drafts: list[int]
    masks: NDArray[np.uint32] | None

    def run(self, face: Face) -> list[Draw] | DrawFault:
        sampler = face.sampler(self.spec, self.prompt, self.logits.shape[1])
        sampler.commit(self.output)
        return face.draw(self.logits, [DrawRequest(sampler, 0, self.position, self.drafts, self.masks)])[0]


def random_logits(rng: np.random.Generator, rows: int, vocab: int) -> Logits:
    """Smooth, peaked, quantised (full of ties) or partly minus infinite."""
    x = rng.standard_normal((rows, vocab)) * rng.choice([0.5, 2.0, 4.0, 20.0])
    kind = rng.integers(4)
    if kind == 1:
        x[:, rng.integers(vocab)] += 12
    elif kind == 2:
        x = np.round(x)
    elif kind == 3:
        x[rng.random((rows, vocab)) < 0.5] = -np.inf
        x[:, rng.integers(vocab)] = 0
    return x.astype(np.float32)


def random_spec(rng: np.random.Generator, vocab: int) -> SamplingSpec:
    def maybe(value: float, otherwise: float) -> float:
        return value if rng.random() < 0.4 else otherwise

    ids = rng.choice(vocab, min(vocab, 6), replace=False).tolist()
    return SamplingSpec(
        seed=int(rng.integers(0, 2**64, dtype=np.uint64)),
        temperature=float(rng.choice([0.0, 0.3, 0.8, 1.0, 1.7])),
        top_k=int(maybe(float(rng.integers(1, 2 * vocab)), 0)),
        top_p=maybe(float(rng.random()), 1.0),
        min_p=maybe(float(rng.random()) ** 3, 0.0),
        repetition_penalty=maybe(float(rng.uniform(0.7, 1.6)), 1.0),
        presence_penalty=maybe(float(rng.uniform(-2, 2)), 0.0),
        frequency_penalty=maybe(float(rng.uniform(-2, 2)), 0.0),
        logit_bias=tuple((i, float(rng.choice([-100, -1.5, 3, -np.inf, np.inf]))) for i in ids[:3])
        if rng.random() < 0.3
        else (),
        suppress_ids=tuple(ids[3:]) if rng.random() < 0.3 else (),
        suppress_until=4,
        num_logprobs=int(rng.integers(0, 6)) if rng.random() < 0.3 else None,
    )


def random_case(seed: int) -> Case:
    rng = np.random.default_rng(seed)
    vocab = int(
        rng.choice(
            [1, 2, 7, 16, 33, 64, 100, 257, 1000, 3001], p=[0.02, 0.03, 0.1, 0.1, 0.1, 0.1, 0.15, 0.15, 0.15, 0.1]
        )
    )
    window = int(rng.choice([0, 0, 0, 1, 3, 6]))
    allowed = rng.random((window + 1, vocab)) < rng.choice([0.05, 0.5, 0.95])
    return Case(
        logits=random_logits(rng, window + 1, vocab),
        spec=random_spec(rng, vocab),
        prompt=rng.integers(0, vocab, rng.integers(0, 40)).tolist(),
        output=rng.integers(0, vocab, rng.integers(0, 40)).tolist(),
        position=int(rng.integers(0, 8)),
        drafts=rng.integers(0, vocab, window).tolist(),
        masks=pack_mask(allowed) if rng.random() < 0.3 else None,
    )


def row(*values: float) -> Logits:
    return np.array(values, np.float32)


# --- distributions ---

PROBABILITIES = np.array([0.3, 0.2, 0.15, 0.12, 0.1, 0.08, 0.05])  # of the row below at temperature 1
DISTRIBUTION = np.log(PROBABILITIES).astype(np.float32)
ORDER = np.random.default_rng(5).permutation(len(DISTRIBUTION))  # entry of each id: no order of probability


def chi_square(sampling: Face, spec: SamplingSpec, expected: np.ndarray) -> float:
    """Statistic over draws at consecutive positions; infinite if anything impossible was drawn."""
    draws = 1000 if isinstance(sampling, ReferenceFace) else 4000
    sampler = sampling.sampler(spec, [], len(DISTRIBUTION))
    requests = [DrawRequest(sampler, 0, position) for position in range(draws)]
    results = sampling.draw(DISTRIBUTION[ORDER][None], requests)
    drawn = [ORDER[r[0].token_id] for r in results if not isinstance(r, DrawFault)]
    counts = np.bincount(drawn, minlength=len(expected))
    possible = expected > 0
    if len(drawn) != draws or counts[~possible].any():
        return np.inf
    ideal = draws * expected[possible]
    return float(((counts[possible] - ideal) ** 2 / ideal).sum())
