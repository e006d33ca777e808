"""The live policy: what a PATCH may say, what becomes of a request's wishes."""

from __future__ import annotations

from typing import Any

import pytest

from surefoot.engine.config import EngineConfig
from surefoot.engine.opening import open_engine
from surefoot.engine.speculation.contract import Capabilities, Verdict
from surefoot.engine.speculation.policy import (
    NO_WISHES,
    RequestSpeculation,
    SpeculationPolicy,
    check_policy,
    min_confidence,
    patched,
    request_speculation,
    window,
)
from surefoot.kernels.errors import ConfigError, RequestError

TYPES = ("auto", "ngram")
GOVERNORS = ("cost", "probe", "off")
POLICY = SpeculationPolicy()


def test_the_defaults() -> None:
    assert POLICY.as_dict() == {
        "enabled": True,
        "type": "auto",
        "draft_tokens": None,
        "min_confidence": None,
        "governor": "cost",
        "max_batch": 1,
        "generation": 0,
    }


def test_a_patch_changes_what_it_names_and_counts() -> None:
    body = {
        "enabled": False,
        "type": "ngram",
        "draft_tokens": 5,
        "min_confidence": 0.5,
        "governor": "probe",
        "max_batch": 4,
    }
    assert patched(POLICY, body, TYPES, GOVERNORS).as_dict() == {**body, "generation": 1}
    again = patched(patched(POLICY, {"draft_tokens": 5}, TYPES, GOVERNORS), {"draft_tokens": None}, TYPES, GOVERNORS)
    assert (again.draft_tokens, again.generation) == (None, 2)
    assert patched(POLICY, {}, TYPES, GOVERNORS) is POLICY


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"spec": True}, "spec"),
        ({"enabled": True, "drafts": 3}, "drafts"),
        ({"enabled": 1}, "enabled"),
        ({"enabled": None}, "enabled"),
        ({"type": "medusa"}, "type"),
        ({"type": 3}, "type"),
        ({"governor": "bandit"}, "governor"),
        ({"draft_tokens": -1}, "draft_tokens"),
        ({"draft_tokens": 65}, "draft_tokens"),
        ({"draft_tokens": 3.0}, "draft_tokens"),
        ({"draft_tokens": True}, "draft_tokens"),
        ({"min_confidence": 1.01}, "min_confidence"),
        ({"min_confidence": float("nan")}, "min_confidence"),
        ({"min_confidence": "0.5"}, "min_confidence"),
        ({"max_batch": 0}, "max_batch"),
        ({"max_batch": None}, "max_batch"),
        ([], None),
        (None, None),
        ("enabled", None),
    ],
)
def test_anything_else_is_422_and_names_the_setting(body: Any, param: str | None) -> None:
    with pytest.raises(RequestError) as caught:
        patched(POLICY, body, TYPES, GOVERNORS)
    assert (caught.value.status, caught.value.param) == (422, param)
    assert caught.value.message


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        (SpeculationPolicy(type="ngrams"), r"type 'ngrams'; known: auto, ngram"),
        (SpeculationPolicy(governor="costs"), r"governor 'costs'; known: cost"),
        (SpeculationPolicy(draft_tokens=65), "draft_tokens must be an integer from 0 to 64"),
        (SpeculationPolicy(min_confidence=1.5), "min_confidence must be"),
        (SpeculationPolicy(max_batch=0), "max_batch must be"),
    ],
)
def test_a_policy_to_start_with_is_checked_as_a_whole(policy: SpeculationPolicy, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_policy(policy, ("auto", "ngram"), ("cost",))
    check_policy(SpeculationPolicy(), ("auto", "ngram"), ("cost",))


def test_it_is_checked_before_a_model_is_loaded() -> None:
    with pytest.raises(ConfigError, match="unknown speculation type"):
        open_engine("there-is-no-such-file.gguf", EngineConfig(speculation=SpeculationPolicy(type="magic")))


def test_a_request_field() -> None:
    assert request_speculation(None) is NO_WISHES
    assert request_speculation({"enabled": False, "draft_tokens": 2, "report": True}) == RequestSpeculation(
        False, 2, True
    )
    for bad in ({"enabled": "no"}, {"k": 1}, {"draft_tokens": 99}, 5, []):
        with pytest.raises(RequestError) as caught:
            request_speculation(bad)
        assert caught.value.status == 400 and (caught.value.param or "").startswith("speculation")


CAPABILITIES = Capabilities("test", 16, (0.5,), default_min_confidence=0.35)


@pytest.mark.parametrize(
    ("policy", "wish", "preferred", "adaptive", "expected"),
    [
        (None, None, None, True, 16),  # the algorithm's most
        (None, None, None, False, 8),  # the exact window of a governor that chooses none
        (None, None, 3, True, 3),  # a target's preference narrows the default
        (None, None, 3, False, 3),
        (12, None, 3, False, 12),  # and not the operator's number
        (40, None, None, True, 16),  # nothing exceeds the algorithm
        (4, 9, None, True, 4),  # a request narrows only
        (4, 2, None, True, 2),
        (None, 9, 3, False, 9),
        (0, 5, None, False, 0),
        (None, 0, None, True, 0),
    ],
)
def test_the_window(policy: int | None, wish: int | None, preferred: int | None, adaptive: bool, expected: int) -> None:
    wishes = RequestSpeculation(draft_tokens=wish)
    verdict = Verdict(preferred_window=preferred)
    assert window(SpeculationPolicy(draft_tokens=policy), wishes, CAPABILITIES, verdict, adaptive) == expected


def test_confidence_has_a_default_per_algorithm() -> None:
    assert min_confidence(POLICY, CAPABILITIES) == 0.35
    assert min_confidence(SpeculationPolicy(min_confidence=0.0), CAPABILITIES) == 0.0
