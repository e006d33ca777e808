"""What a bias means, bans and exclusive tokens included, on the numpy oracle and every native instruction set alike."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from sampling_cases import GREEDY, ORDER, PROBABILITIES, Face, chi_square, one, pack_mask, row, token

from surefoot.kernels.backend import DrawRequest
from surefoot.kernels.sampling import DrawFault, SamplingSpec

HOT = 1e6  # of any finite bias nothing is left at this temperature


def test_logit_bias(sampling: Face) -> None:
    x = row(3, 2, 1, 0)
    assert token(sampling, x, replace(GREEDY, logit_bias=((0, -100.0),))) == 1
    assert token(sampling, x, replace(GREEDY, logit_bias=((3, 100.0),))) == 3
    banned = SamplingSpec(seed=1, logit_bias=((0, -np.inf), (1, -np.inf), (2, -np.inf)))
    assert {token(sampling, x, banned, p) for p in range(50)} == {3}
    halves = replace(GREEDY, logit_bias=((0, -0.75), (0, -0.75)))  # given twice: both count
    assert token(sampling, x, halves) == 1


def test_a_ban_holds_at_any_temperature(sampling: Face) -> None:
    x = row(50, 1, 0, -3)
    for settings in ({}, {"temperature": HOT}, {"temperature": 0.0}, {"temperature": HOT, "top_k": 2}, {"top_p": 0.1}):
        spec = SamplingSpec(seed=3, logit_bias=((0, -np.inf), (2, -np.inf)), **settings)  # type: ignore[arg-type]
        assert {token(sampling, x, spec, p) for p in range(60)} <= {1, 3}, settings
    finite = SamplingSpec(seed=3, temperature=HOT, logit_bias=((0, -100.0),))
    assert 0 in {token(sampling, x, finite, p) for p in range(60)}


def test_an_exclusive_token_is_drawn_at_any_temperature(sampling: Face) -> None:
    x = row(50, 1, 0, -3)
    for settings in ({}, {"temperature": HOT}, {"temperature": 0.0}, {"top_k": 1}, {"top_p": 0.0}, {"min_p": 1.0}):
        spec = SamplingSpec(seed=3, logit_bias=((3, np.inf), (1, 90.0)), **settings)  # type: ignore[arg-type]
        assert {token(sampling, x, spec, p) for p in range(30)} == {3}, settings


@pytest.mark.parametrize(
    ("bias", "kept"),
    [
        ({1: np.inf, 3: np.inf, 4: np.inf}, [1, 3, 4]),  # several exclusive ones keep their odds
        ({0: -np.inf, 5: -np.inf}, [1, 2, 3, 4, 6]),
        ({0: -np.inf, 2: np.inf, 6: np.inf}, [2, 6]),
        (dict.fromkeys(range(7), -np.inf), list(range(7))),  # all banned: none is less so than another
        (dict.fromkeys(range(7), np.inf), list(range(7))),
    ],
)
def test_draws_follow_the_softmax_of_what_bans_leave(sampling: Face, bias: dict[int, float], kept: list[int]) -> None:
    place = np.argsort(ORDER)  # id of each entry
    spec = SamplingSpec(seed=12, logit_bias=tuple((int(place[i]), value) for i, value in bias.items()))
    expected = np.where(np.isin(np.arange(len(PROBABILITIES)), kept), PROBABILITIES, 0.0)
    assert chi_square(sampling, spec, expected / expected.sum()) < 25  # at most six degrees of freedom


def test_masks_and_suppressed_ids_come_before_bans_and_exclusive_tokens(sampling: Face) -> None:
    """What must not stand here is out first; the rest is as if it were the vocabulary."""
    x = row(5, 4, 3, 2)

    def drawn(bias: dict[int, float], allowed: list[int], **settings: object) -> set[int]:
        spec = SamplingSpec(seed=5, temperature=HOT, logit_bias=tuple(bias.items()), **settings)  # type: ignore[arg-type]
        mask = pack_mask(np.isin(np.arange(4), allowed)[None])
        results = [
            sampling.draw(x[None], [DrawRequest(sampling.sampler(spec, [], 4), 0, p, masks=mask)])[0] for p in range(40)
        ]
        return {result[0].token_id for result in results if not isinstance(result, DrawFault)}

    everything = [0, 1, 2, 3]
    assert drawn({0: np.inf, 1: np.inf}, [1, 2, 3]) == {1}
    assert drawn({0: np.inf}, [1, 2, 3]) == {1, 2, 3}  # the mask has no exclusive one
    assert drawn({0: np.inf, 1: -np.inf}, [1, 2, 3]) == {2, 3}
    assert drawn({1: -np.inf, 2: -np.inf}, [1, 2]) == {1, 2}  # the mask has banned ones only
    assert drawn({1: -np.inf, 2: -np.inf}, [1]) == {1}  # prescribed
    assert drawn({0: np.inf}, everything, suppress_ids=(0,), suppress_until=99) == {1, 2, 3}
    assert drawn({0: -np.inf}, [0, 1], suppress_ids=(1,), suppress_until=99) == {0}


def test_a_row_without_any_token_stays_a_fault(sampling: Face) -> None:
    spec = SamplingSpec(seed=5, logit_bias=((0, -np.inf), (1, np.inf)))
    nothing = pack_mask(np.zeros((1, 3), np.bool_))
    request = DrawRequest(sampling.sampler(spec, [], 3), 0, 0, masks=nothing)
    assert isinstance(sampling.draw(row(1, 2, 3)[None], [request])[0], DrawFault)
    assert isinstance(one(sampling, row(-np.inf, -np.inf, -np.inf), spec), DrawFault)


def test_penalties_order_exclusive_tokens(sampling: Face) -> None:
    spec = replace(GREEDY, frequency_penalty=1.0, logit_bias=((0, np.inf), (1, np.inf)))
    sampler = sampling.sampler(spec, [], 3)
    found: list[int] = []
    for position in range(6):
        result = sampling.draw(row(2.0, 1.5, 9.0)[None], [DrawRequest(sampler, 0, position)])[0]
        assert not isinstance(result, DrawFault)
        found.append(result[0].token_id)
        sampler.commit(found[-1:])
    assert found == [0, 1, 0, 1, 0, 1]
