"""The probe-and-park rule, by its constants."""

from __future__ import annotations

from typing import Any

import pytest

from surefoot.engine.speculation.contract import Capabilities, Draft
from surefoot.engine.speculation.governor.contract import Offer, Outcome, Progress, Situation, StepRecord
from surefoot.engine.speculation.governor.off import OffGovernor
from surefoot.engine.speculation.governor.probe import ProbeGovernor

CAPABILITIES = Capabilities("test", 8, (0.5,))
HERE = Situation(1, 100)
PROGRESS = Progress(0, 10, 100)


class Rig:
    """Takes the steps that the governor asks for."""

    def __init__(self, plain: float = 1.0, spec: float = 1.0, gain: int = 2) -> None:
        self.governor = ProbeGovernor()
        self.plain, self.spec, self.gain = plain, spec, gain
        self.new_request()

    def new_request(self) -> None:
        self.ticket: Any = self.governor.open(CAPABILITIES, "r")

    def step(self) -> bool:
        asked = self.governor.plan(self.ticket, HERE, 8, PROGRESS) > 0
        tokens = self.gain if asked else 1
        seconds = self.spec * tokens if asked else self.plain
        outcome = Outcome(self.ticket, asked, Draft([1] * 8), 8 if tokens > 1 else 0, tokens - 1)
        self.governor.record(StepRecord(seconds, 1, 9 if asked else 1, 100, tokens, [outcome]))
        return asked

    def steps(self, count: int) -> str:
        return "".join("S" if self.step() else "." for _ in range(count))

    @property
    def state(self) -> dict[str, object]:
        return self.governor.snapshot()


def test_a_winning_round_is_nine_speculative_and_four_plain_steps_then_a_hold_of_64() -> None:
    rig = Rig(plain=1.0, spec=0.5)
    assert rig.steps(13) == "S" * 9 + "." * 4  # the first of each is thrown away
    assert rig.state["wins"] == 1
    assert rig.steps(64) == "S" * 64
    assert rig.steps(13) == "S" * 9 + "." * 4


def test_the_margin_is_15_percent() -> None:
    for spec, wins in ((1.14, 1), (1.16, 0)):
        rig = Rig(plain=1.0, spec=spec)
        rig.steps(13)
        assert rig.state["wins"] == wins


def test_parks_grow_to_256_and_re_probes_are_short() -> None:
    rig = Rig(plain=1.0, spec=2.0)
    rig.steps(13)
    for park in (32, 64, 128, 256, 256, 256):
        assert rig.steps(park) == "." * park
        assert rig.steps(4 + 4) == "S" * 4 + "." * 4
    assert rig.state["losses"] == 7


def test_four_zero_accept_steps_are_a_loss_at_once_in_a_full_probe_only() -> None:
    rig = Rig(plain=1.0, spec=3.0, gain=1)
    assert rig.steps(5) == "S" * 5
    assert rig.state["losses"] == 1 and rig.state["park_left"] == 32
    rig.steps(32)
    assert rig.steps(8) == "SSSS....", "a re-probe of three takes its calibration"


def test_a_matchless_step_is_a_speculative_sample() -> None:
    rig = Rig()
    for _ in range(5):
        outcome = Outcome(rig.ticket, asked=True, draft=Draft([], reason="no match"))
        assert rig.governor.plan(rig.ticket, HERE, 8, PROGRESS) == 8
        rig.governor.record(StepRecord(1.0, 1, 1, 100, 1, [outcome]))
    assert rig.state["state"] == "parked"


def test_a_wrong_win_ends_after_eight_losing_steps() -> None:
    rig = Rig(plain=1.0, spec=0.5)
    rig.steps(13)
    rig.spec = 1.5
    assert rig.steps(9) == "S" * 8 + "."
    assert rig.state["losses"] == 1 and rig.state["park_left"] == 31


def test_one_bad_sample_does_not_park() -> None:
    rig = Rig(plain=1.0, spec=0.9)
    rig.steps(4)
    rig.spec = 30.0
    rig.steps(1)
    rig.spec = 0.9
    rig.steps(8)
    assert rig.state["wins"] == 1


def test_a_new_request_shortens_the_park_and_its_own_loss_parks_32() -> None:
    rig = Rig(plain=1.0, spec=2.0)
    rig.steps(13 + 32 + 8 + 64 + 8)  # three losses: parked for 128
    assert rig.state["park_left"] == 128
    rig.new_request()
    assert rig.state["park_left"] == 32
    rig.steps(32)
    assert rig.steps(8) == "SSSS....", "one loss is remembered, so the probe is the short one"
    assert rig.state["park_left"] == 32


def test_a_new_request_keeps_a_hold() -> None:
    rig = Rig(plain=1.0, spec=0.5)
    rig.steps(13)
    rig.new_request()
    assert rig.steps(64) == "S" * 64


def test_parked_steps_renew_the_baseline_except_the_first() -> None:
    rig = Rig(plain=1.0, spec=2.0)
    rig.steps(13)
    rig.plain = 9.0
    rig.steps(1)
    rig.plain = 3.0
    rig.steps(31)
    assert rig.state["plain_seconds_per_token"] == pytest.approx(3.0)


def test_steps_of_a_batch_pass_the_park_and_then_the_hold() -> None:
    rig = Rig(plain=1.0, spec=2.0)
    rig.steps(13)
    rig.governor.served_elsewhere(40)
    assert rig.state["park_left"] == 0
    rig = Rig(plain=1.0, spec=0.5)
    rig.steps(13)
    rig.governor.served_elsewhere(40)
    assert rig.state["hold_left"] == 24


@pytest.mark.parametrize("governor", [OffGovernor(), ProbeGovernor()])
def test_windows_are_exact_and_one_per_request(governor: Any) -> None:
    first, second = governor.open(CAPABILITIES, "a"), governor.open(CAPABILITIES, "b")
    offers = [
        Offer(first, Draft([]), 8),
        Offer(first, Draft([1, 2, 3]), 2),
        Offer(first, Draft([4]), 8),
        Offer(second, Draft([5, 6]), 8),
    ]
    assert governor.choose(offers, HERE) == [0, 2, 0, 2]
    assert governor.keep_going(first, 3, 0)
