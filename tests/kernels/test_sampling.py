"""What a draw means, on the numpy oracle and on every native instruction set alike."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from sampling_cases import GREEDY, PROBABILITIES, Face, chi_square, one, pack_mask, random_case, row, token

from surefoot.kernels.backend import DrawRequest
from surefoot.kernels.errors import RequestError
from surefoot.kernels.sampling import Draw, DrawFault, SamplingSpec

# --- greedy and ties ---


def test_greedy_takes_the_lowest_id_of_the_largest(sampling: Face) -> None:
    assert token(sampling, row(1, 5, 5, 2), GREEDY) == 1
    assert token(sampling, row(-0.0, 0.0), GREEDY) == 0
    wide = np.full(1000, -3, np.float32)
    wide[[700, 900]] = 2
    assert token(sampling, wide, GREEDY) == 700


def test_tiny_temperatures_are_greedy(sampling: Face) -> None:
    for temperature in (1e-6, 1e-300):
        assert token(sampling, row(0, 1, 2, 1.5), SamplingSpec(seed=3, temperature=temperature)) == 2


# --- distributions ---


def renormalised(kept: int, power: float = 1.0) -> np.ndarray:
    p = np.where(np.arange(len(PROBABILITIES)) < kept, PROBABILITIES, 0.0) ** power
    p[kept:] = 0
    return p / p.sum()


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, PROBABILITIES),
        ({"temperature": 0.5}, renormalised(7, 2.0)),
        ({"temperature": 2.0}, renormalised(7, 0.5)),
        ({"top_k": 3}, renormalised(3)),
        ({"top_k": 1000}, PROBABILITIES),
        ({"top_p": 0.6}, renormalised(3)),  # 0.3 + 0.2 < 0.6 <= 0.3 + 0.2 + 0.15
        ({"top_p": 0.05}, renormalised(1)),
        ({"top_p": 0.0}, renormalised(1)),
        ({"min_p": 0.35}, renormalised(4)),  # 0.35 * 0.3 = 0.105
        ({"min_p": 1.0}, renormalised(1)),
        ({"top_k": 4, "top_p": 0.7}, renormalised(3)),  # of 0.77: 0.3, 0.5, 0.65 against 0.539
        ({"top_k": 5, "top_p": 0.9, "min_p": 0.6}, renormalised(2)),
        ({"temperature": 2.0, "min_p": 0.6}, renormalised(4, 0.5)),  # after temperature: sqrt(0.12 / 0.3) = 0.63
        ({"temperature": 0.5, "top_p": 0.69}, renormalised(2, 2.0)),  # 0.09 + 0.04 of 0.1859
    ],
)
def test_draws_follow_the_filtered_softmax(sampling: Face, settings: dict[str, float], expected: np.ndarray) -> None:
    spec = SamplingSpec(seed=11, **settings)  # type: ignore[arg-type]
    assert chi_square(sampling, spec, expected) < 25  # six degrees of freedom: p = 0.0003


def test_seeds_and_positions_are_independent(sampling: Face) -> None:
    """Chi-square of pairs (draw at position p with seed s, at p + 1, with s + 1) against independence."""
    flat = np.zeros(4, np.float32)
    table = np.array([[token(sampling, flat, SamplingSpec(seed=s), p) for p in range(40)] for s in range(40)])
    for a, b in [(table[:, :-1], table[:, 1:]), (table[:-1], table[1:])]:
        pairs = np.bincount((4 * a + b).ravel(), minlength=16)
        assert ((pairs - pairs.mean()) ** 2 / pairs.mean()).sum() < 45  # 15 degrees of freedom: p = 0.00008


def test_ties_at_a_cut_go_to_the_lower_ids(sampling: Face) -> None:
    flat = np.zeros(100, np.float32)
    for spec in (SamplingSpec(seed=1, top_k=10), SamplingSpec(seed=1, top_p=0.1)):
        drawn = {token(sampling, flat, spec, position) for position in range(300)}
        assert drawn == set(range(10))


# --- penalties, suppression, masks ---


def test_penalties_have_signs(sampling: Face) -> None:
    x = row(1.0, 1.5, 0.9)
    for name in ("presence_penalty", "frequency_penalty"):
        drawn: list[int] = []
        for value in (-2.0, 0.0, 2.0):
            spec = replace(GREEDY, **{name: value})
            sampler = sampling.sampler(spec, [], 3)
            sampler.commit([0])
            result = sampling.draw(x[None], [DrawRequest(sampler, 0, 1)])[0]
            assert not isinstance(result, DrawFault)
            drawn.append(result[0].token_id)
        assert drawn == [0, 1, 1]
    liked = sampling.sampler(replace(GREEDY, presence_penalty=2.0), [], 3)
    liked.commit([1])
    assert sampling.draw(x[None], [DrawRequest(liked, 0, 1)]) == [[Draw(0)]]


def test_frequency_counts_and_presence_does_not(sampling: Face) -> None:
    x = row(4.0, 3.5)
    for settings, expected in [({"frequency_penalty": 0.2}, [0, 0, 1]), ({"presence_penalty": 0.2}, [0, 0, 0])]:
        sampler = sampling.sampler(replace(GREEDY, **settings), [0, 0, 0, 0, 0], 2)
        drawn: list[int] = []
        for position in range(4):
            result = sampling.draw(x[None], [DrawRequest(sampler, 0, position)])[0]
            assert not isinstance(result, DrawFault)
            drawn.append(result[0].token_id)
            sampler.commit([0])
        assert drawn[:1] + drawn[2:] == expected  # 0, 2 and 3 times in the output; the prompt's do not count


def test_repetition_penalty_reads_prompt_and_output_and_both_signs(sampling: Face) -> None:
    spec = replace(GREEDY, repetition_penalty=2.0)
    assert token(sampling, row(3, 2, 0), spec, prompt=[0, 0]) == 1  # 3 / 2, once however often it occurs
    assert token(sampling, row(-1, -1.5, -3), spec, prompt=[0]) == 1  # -1 * 2
    assert token(sampling, row(3, 2, 0), replace(GREEDY, repetition_penalty=0.5), prompt=[1]) == 1  # 2 / 0.5
    sampler = sampling.sampler(spec, [], 3)
    sampler.commit([0])
    assert sampling.draw(row(3, 2, 0)[None], [DrawRequest(sampler, 0, 1)]) == [[Draw(1)]]


def test_suppressed_ids_come_back_at_their_position(sampling: Face) -> None:
    spec = replace(GREEDY, suppress_ids=(0, 1), suppress_until=3)
    assert [token(sampling, row(9, 8, 1), spec, p) for p in range(5)] == [2, 2, 2, 0, 0]


def test_masks(sampling: Face) -> None:
    vocab = 70  # crosses words and lanes
    x = np.random.default_rng(3).standard_normal((1, vocab)).astype(np.float32)
    for spec in (GREEDY, SamplingSpec(seed=5), SamplingSpec(seed=5, top_p=0.9), SamplingSpec(seed=5, top_k=3)):
        sampler = sampling.sampler(spec, [], vocab)
        for allowed in ([69], [0], [31, 32], [5, 63, 64, 66]):
            bits = np.zeros((1, vocab), np.bool_)
            bits[0, allowed] = True
            drawn: set[int] = set()
            for position in range(100):
                result = sampling.draw(x, [DrawRequest(sampler, 0, position, masks=pack_mask(bits))])[0]
                assert not isinstance(result, DrawFault)
                drawn.add(result[0].token_id)
            assert drawn <= set(allowed)
            assert max(allowed, key=lambda i: float(x[0, i])) in drawn


def test_penalties_come_before_the_temperature_and_bias_before_penalties(sampling: Face) -> None:
    spec = replace(GREEDY, repetition_penalty=2.0, logit_bias=((0, 2.0),))
    assert token(sampling, row(-1, 0.6), spec, prompt=[0]) == 1  # (-1 + 2) / 2 = 0.5; the other order gives -2 + 2 = 0
    assert token(sampling, row(-1, 0.4), spec, prompt=[0]) == 0


# --- log-probabilities ---


def test_log_probabilities_are_those_of_the_raw_row(sampling: Face) -> None:
    x = np.random.default_rng(4).standard_normal(500).astype(np.float32) * 3
    raw = x.astype(np.float64) - np.log(np.exp(x.astype(np.float64)).sum())
    spec = SamplingSpec(
        seed=9, temperature=0.7, top_k=20, logit_bias=((7, 30.0),), repetition_penalty=1.5, num_logprobs=5
    )
    drawn = one(sampling, x, spec, prompt=[1, 2, 3])
    assert isinstance(drawn, Draw) and drawn.logprob is not None
    assert drawn.token_id == 7
    assert abs(drawn.logprob - raw[7]) < 1e-6
    best = np.argsort(-raw, kind="stable")[:5]
    assert [i for i, _ in drawn.top] == best.tolist()
    np.testing.assert_allclose([v for _, v in drawn.top], raw[best], atol=1e-6)


def test_number_of_log_probabilities(sampling: Face) -> None:
    x = row(2, 2, 1, 2, -np.inf)
    assert one(sampling, x, GREEDY) == Draw(0)
    for n, ids in [
        (0, []),
        (2, [0, 1]),
        (4, [0, 1, 3, 2]),
        (9, [0, 1, 3, 2]),
    ]:  # ties by id; the impossible is not listed
        drawn = one(sampling, x, replace(GREEDY, num_logprobs=n))
        assert isinstance(drawn, Draw) and drawn.logprob is not None
        assert [i for i, _ in drawn.top] == ids
        assert not drawn.top or drawn.top[0] == (0, drawn.logprob)


def test_log_probabilities_of_extreme_rows(sampling: Face) -> None:
    spec = replace(GREEDY, num_logprobs=2)
    drawn = one(sampling, row(np.inf, 3, np.inf, -np.inf), spec)
    assert isinstance(drawn, Draw) and drawn.logprob is not None
    assert (drawn.token_id, [i for i, _ in drawn.top]) == (0, [0, 2])
    np.testing.assert_allclose(drawn.logprob, -np.log(2), atol=1e-7)
    drawn = one(sampling, row(3e38, -3e38, 3e38), spec)
    assert isinstance(drawn, Draw) and drawn.logprob is not None
    np.testing.assert_allclose(drawn.logprob, -np.log(2), atol=1e-7)


# --- faults ---


def test_nan_rows_and_empty_masks_fault_their_own_request(sampling: Face) -> None:
    logits = np.zeros((3, 40), np.float32)
    logits[1, 39] = np.nan
    logits[2] = -np.inf
    nothing = np.zeros((1, 2), np.uint32)
    for spec in (GREEDY, SamplingSpec(seed=1), SamplingSpec(seed=1, top_k=4, top_p=0.5, num_logprobs=3)):
        sampler = sampling.sampler(spec, [], 40)
        good, nan, empty, masked = sampling.draw(
            logits, [DrawRequest(sampler, r, 0, masks=m) for r, m in [(0, None), (1, None), (2, None), (0, nothing)]]
        )
        assert isinstance(good, list) and len(good) == 1
        assert isinstance(nan, DrawFault) and "NaN" in nan.reason
        assert isinstance(empty, DrawFault) and "allowed" in empty.reason
        assert masked == empty


def test_infinite_logits_win(sampling: Face) -> None:
    x = row(1, np.inf, 2, np.inf)
    assert token(sampling, x, GREEDY) == 1
    for settings in ({}, {"top_k": 3}, {"top_p": 0.9}, {"min_p": 0.5}, {"temperature": 0.01}):
        drawn = {token(sampling, x, SamplingSpec(seed=2, **settings), p) for p in range(60)}  # type: ignore[arg-type]
        assert drawn == {1, 3}, settings
    assert token(sampling, x, replace(GREEDY, logit_bias=((1, -np.inf),))) == 3


@pytest.mark.parametrize(
    ("settings", "param"),
    [
        ({"temperature": -1.0}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"top_p": 1.5}, "top_p"),
        ({"min_p": -0.1}, "min_p"),
        ({"repetition_penalty": 0.0}, "repetition_penalty"),
        ({"presence_penalty": float("inf")}, "presence_penalty"),
        ({"num_logprobs": -1}, "logprobs"),
        ({"logit_bias": ((10, 1.0),)}, "logit_bias"),
        ({"logit_bias": ((1, float("nan")),)}, "logit_bias"),
        ({"logit_bias": ((1, float("inf")), (1, -float("inf")))}, "logit_bias"),
        ({"suppress_ids": (-1,)}, "stop_token_ids"),
    ],
)
def test_specs_that_cannot_be_sampled_under_are_refused(
    sampling: Face, settings: dict[str, object], param: str
) -> None:
    with pytest.raises(RequestError) as refused:
        sampling.sampler(replace(GREEDY, **settings), [], 10)  # type: ignore[arg-type]
    assert refused.value.param == param


# --- windows, purity ---


@pytest.mark.parametrize("seed", range(15))
def test_a_window_equals_single_draws_one_after_the_other(sampling: Face, seed: int) -> None:
    case = random_case(1000 + seed)
    rows, vocab = case.logits.shape
    single = sampling.sampler(case.spec, case.prompt, vocab)
    single.commit(case.output)
    expected: list[Draw] = []
    drafts: list[int] = []
    for j in range(rows):  # drafts that match up to the middle, found by drawing them
        masks = None if case.masks is None else case.masks[j : j + 1]
        result = sampling.draw(case.logits, [DrawRequest(single, j, case.position + j, masks=masks)])[0]
        if isinstance(result, DrawFault):
            break
        expected += result
        drafts.append(result[0].token_id)
        single.commit(drafts[-1:])
    drafts = drafts[: rows - 1] + [0] * (rows - 1 - len(drafts))
    for wrong in range(rows):
        trial = [*drafts[:wrong], *((d + 1) % vocab for d in drafts[wrong:])]
        got = replace(case, drafts=trial).run(sampling)
        want = expected[: 1 + next((j for j, d in enumerate(trial) if d != drafts[j]), rows)]
        assert got == want if want else isinstance(got, DrawFault)


def test_draws_change_nothing_and_commit_does(sampling: Face) -> None:
    x = np.random.default_rng(8).standard_normal((3, 50)).astype(np.float32)
    spec = SamplingSpec(seed=6, temperature=0.9, presence_penalty=1.0, frequency_penalty=0.5, repetition_penalty=1.3)
    sampler = sampling.sampler(spec, [1, 2], 50)
    request = DrawRequest(sampler, 0, 0, drafts=[3, 4])
    first = sampling.draw(x, [request, request])
    assert first[0] == first[1] == sampling.draw(x, [request])[0]
    sampler.commit([40] * 30)
    fresh = sampling.sampler(spec, [1, 2], 50)
    fresh.commit([40] * 15)
    fresh.commit([40] * 15)
    assert sampling.draw(x, [request]) == sampling.draw(x, [DrawRequest(fresh, 0, 0, drafts=[3, 4])])


def test_uncommitted_history_counts_as_output(sampling: Face) -> None:
    x = np.random.default_rng(12).standard_normal((3, 60)).astype(np.float32)
    spec = SamplingSpec(seed=6, temperature=0.9, presence_penalty=1.5, frequency_penalty=0.5, repetition_penalty=1.3)
    for position in range(20):
        committed, fresh = (sampling.sampler(spec, [1, 2], 60) for _ in range(2))
        committed.commit([7, 7, 9])
        fresh.commit([7])
        got = sampling.draw(x, [DrawRequest(fresh, 0, position, drafts=[3, 4], history=[7, 9])])
        assert got == sampling.draw(x, [DrawRequest(committed, 0, position, drafts=[3, 4])])


def test_neighbours_and_row_numbers_do_not_matter(sampling: Face) -> None:
    cases = [c for c in (random_case(5000 + i) for i in range(400)) if c.logits.shape[1] == 100]
    assert len(cases) > 20
    alone = [case.run(sampling) for case in cases]
    order = np.random.default_rng(1).permutation(len(cases))
    requests: list[DrawRequest] = []
    first_row = 0
    for i in order:
        case = cases[i]
        sampler = sampling.sampler(case.spec, case.prompt, 100)
        sampler.commit(case.output)
        requests.append(DrawRequest(sampler, first_row, case.position, case.drafts, case.masks))
        first_row += len(case.logits)
    together = sampling.draw(np.concatenate([cases[i].logits for i in order]), requests)
    assert together == [alone[i] for i in order]
