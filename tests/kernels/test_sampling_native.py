"""The native sampler against the numpy oracle on random cases, and its instruction sets against each other."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from sampling_cases import Case, Face, face, native_sets, needs_native, one, random_case

from surefoot.kernels.backend import DrawRequest
from surefoot.kernels.sampling import Draw, DrawFault, SamplingSpec

pytestmark = needs_native
ORACLE = face("reference")
ISA = pytest.mark.parametrize("isa", native_sets())


def same_tokens(case: Case, got: list[Draw] | DrawFault, want: list[Draw] | DrawFault) -> bool:
    if isinstance(got, DrawFault) or isinstance(want, DrawFault):
        return got == want
    return [d.token_id for d in got] == [d.token_id for d in want]


def near_tie(case: Case, got: list[Draw] | DrawFault) -> bool:
    """Whether the oracle draws the same with top-p moved by less than the native float32 masses are exact to."""
    moved = [case.spec.top_p * (1 + e) for e in (-1e-6, 1e-6)]
    return case.spec.top_p < 1 and any(
        same_tokens(case, got, replace(case, spec=replace(case.spec, top_p=min(p, 1.0))).run(ORACLE)) for p in moved
    )


def assert_log_probabilities_agree(got: list[Draw], want: list[Draw]) -> None:
    for g, w in zip(got, want, strict=True):
        assert (g.logprob is None) == (w.logprob is None)
        if g.logprob is None or w.logprob is None:
            continue
        np.testing.assert_allclose(g.logprob, w.logprob, atol=1e-6, rtol=1e-12)
        assert [i for i, _ in g.top] == [i for i, _ in w.top]
        np.testing.assert_allclose([v for _, v in g.top], [v for _, v in w.top], atol=1e-6, rtol=1e-12)


def test_random_cases_agree_with_the_oracle() -> None:
    native = face(native_sets()[0])
    near_ties = windows = faults = 0
    for seed in range(2000):
        case = random_case(seed)
        got, want = case.run(native), case.run(ORACLE)
        if not same_tokens(case, got, want):
            assert near_tie(case, got), f"seed {seed}: {got} instead of {want}"
            near_ties += 1
            continue
        if isinstance(got, DrawFault) or isinstance(want, DrawFault):
            faults += 1
            continue
        windows += len(got) > 1
        assert_log_probabilities_agree(got, want)
    assert near_ties <= 2
    assert windows > 20 and faults > 20, "the cases have lost their variety"


@pytest.mark.parametrize(("vocab", "scales"), [(49_152, (0.0, 1.0, 3.0, 8.0)), (262_144, (3.0,))])
def test_large_rows_agree_with_the_oracle(vocab: int, scales: tuple[float, ...]) -> None:
    native = face(native_sets()[0])
    rng = np.random.default_rng(vocab)
    specs = [
        SamplingSpec(seed=1, temperature=0.0, num_logprobs=20),
        SamplingSpec(seed=2),
        SamplingSpec(seed=3, temperature=1.5),
        SamplingSpec(seed=4, top_k=50),
        SamplingSpec(seed=5, top_k=20_000, top_p=0.9),
        SamplingSpec(seed=6, top_p=0.3),
        SamplingSpec(seed=7, top_p=0.999),
        SamplingSpec(seed=8, min_p=0.02),
        SamplingSpec(seed=9, temperature=0.6, top_k=40, top_p=0.95, min_p=0.05, num_logprobs=0),
    ]
    for scale in scales:
        x = (rng.standard_normal(vocab) * scale).astype(np.float32)
        for spec in specs:
            got, want = one(native, x, spec), one(ORACLE, x, spec)
            assert isinstance(got, Draw) and isinstance(want, Draw)
            assert got.token_id == want.token_id, spec
            assert_log_probabilities_agree([got], [want])


@pytest.mark.skipif(len(native_sets()) < 2, reason="this machine has one instruction set only")
def test_instruction_sets_give_the_same_bits() -> None:
    faces: list[Face] = [face(isa) for isa in native_sets()]
    for seed in range(20_000, 21_000):
        case = random_case(seed)
        first, *others = [case.run(f) for f in faces]
        assert all(first == other for other in others), f"seed {seed}"  # log-probabilities included
    x = (np.random.default_rng(3).standard_normal(100_003) * 2).astype(np.float32)
    for spec in (SamplingSpec(seed=1, num_logprobs=9), SamplingSpec(seed=2, top_p=0.9), SamplingSpec(seed=3, top_k=9)):
        assert len({one(f, x, spec) for f in faces}) == 1


@ISA
def test_every_way_through_top_p(isa: str) -> None:
    """Ties by the thousand, needles, plateaus, and rows whose tail holds the mass."""
    native = face(isa)
    rng = np.random.default_rng(17)
    vocab = 5000
    shapes = {
        "flat": np.zeros(vocab),
        "two plateaus": np.where(np.arange(vocab) % 7 == 0, 1.0, 0.0),
        "steps": np.floor(rng.uniform(0, 4, vocab)),
        "needle": np.where(np.arange(vocab) == 4321, 30.0, 0.0),
        "far tail": np.where(np.arange(vocab) == 17, 20.0, rng.uniform(-1, 1, vocab)),
        "ramp": np.linspace(0, 40, vocab),
        "mostly impossible": np.where(np.arange(vocab) % 100 == 3, rng.uniform(0, 1, vocab), -np.inf),
    }
    for name, shape in shapes.items():
        x = shape.astype(np.float32)
        for top_p in (0.0, 1e-6, 0.1, 0.5, 0.9, 0.999, 0.999999):
            for temperature in (0.2, 1.0, 3.0):
                spec = SamplingSpec(seed=5, temperature=temperature, top_p=top_p)
                for position in range(3):
                    got, want = one(native, x, spec, position), one(ORACLE, x, spec, position)
                    assert got == want, (name, spec)


@ISA
def test_rows_may_lie_apart_in_memory(isa: str) -> None:
    native = face(isa)
    wide = np.random.default_rng(2).standard_normal((4, 96)).astype(np.float32)
    sampler = native.sampler(SamplingSpec(seed=1, num_logprobs=2), [], 64)
    request = [DrawRequest(sampler, 1, 0)]
    assert native.draw(wide[:, :64], request) == native.draw(wide[:, :64].copy(), request)


@ISA
def test_what_would_read_outside_memory_is_refused(isa: str) -> None:
    native = face(isa)
    x = np.zeros((2, 64), np.float32)
    sampler = native.sampler(SamplingSpec(seed=1), [], 64)
    short = np.zeros((1, 1), np.uint32)
    for request in (
        DrawRequest(sampler, 2, 0),
        DrawRequest(sampler, -1, 0),
        DrawRequest(sampler, 0, 0, drafts=[1, 2]),
        DrawRequest(sampler, 0, 0, drafts=[64]),
        DrawRequest(sampler, 0, 0, masks=short),
    ):
        with pytest.raises(ValueError, match=r"row|vocabulary|shape"):
            native.draw(x, [request])
    with pytest.raises(ValueError, match="vocabulary"):
        native.draw(x[:, :63], [DrawRequest(sampler, 0, 0)])
    with pytest.raises(ValueError, match="vocabulary"):
        sampler.commit([64])
