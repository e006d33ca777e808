"""States and logs at the executor: what is resumed, saved in passing, taken back, run again, and what is refused."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np
import pytest
from harness import ProgramRunner
from numpy.typing import NDArray
from tiny_programs import SHAPES, VOCABULARY, tiny_program

from surefoot.kernels.backend import (
    NO_POSITION,
    POSITION,
    SAVES,
    SOURCE,
    STATE_COLUMNS,
    TARGET,
    Executor,
    Limits,
    RecurrentBackend,
    StepBatch,
)
from surefoot.kernels.cpu.backend import CpuBackend
from surefoot.kernels.errors import ConfigError, StepCancelled, StepError
from surefoot.kernels.formats import KvType
from surefoot.kernels.program import GatedDeltaNet, Program, RecurrentGroup, ShortConv
from surefoot.kernels.reference.backend import ReferenceBackend

NAMES = ["recurrent", "odd_recurrent"]
PROGRAMS = {name: tiny_program(SHAPES[name]) for name in NAMES}
IDS = np.random.default_rng(3).integers(0, VOCABULARY, 80).tolist()


class Hand:
    """One sequence in slot 1 of a program with states in five blocks, stepped with the table written by hand."""

    def __init__(self, backend: RecurrentBackend, program: Program, log_rows: int = 6) -> None:
        (group,) = program.kv_groups
        self.group = program.recurrent
        assert self.group is not None
        self.pool = backend.allocate_kv(group, KvType.F32, 9, 2, 4)
        self.pool.block_table[:] = np.arange(1, 9).reshape(2, 4)
        self.states = backend.allocate_states(self.group, 5, 2, log_rows)
        for block in range(1, 5):
            self.states.fill(block, float("nan"))
        self.executor: Executor = backend.load(program, {group: self.pool}, Limits(80, 80, 2), self.states)

    def step(
        self, first: int, ids: Sequence[int], source: int, target: int, position: int, *saves: int
    ) -> NDArray[np.float32]:
        """Logits of all rows."""
        self.states.table[1] = [source, target, position, *saves, *([0] * (STATE_COLUMNS - SAVES - len(saves)))]
        rows = len(ids)
        self.executor.step(
            StepBatch(list(ids), list(range(first, first + rows)), [0, rows], [1], list(range(rows)), ())
        )
        return self.executor.logits().copy()


def alone(backend: RecurrentBackend, program: Program) -> NDArray[np.float32]:
    return ProgramRunner(backend, program).feed(IDS, chunks=[1])


def check(backend: RecurrentBackend, got: NDArray[np.float32], expected: NDArray[np.float32]) -> None:
    if backend.rows_exact:
        assert np.array_equal(got.view(np.uint32), expected.view(np.uint32))
    else:
        np.testing.assert_allclose(got, expected, atol=2e-4)


@pytest.fixture(scope="module", params=[CpuBackend, ReferenceBackend], ids=["cpu", "reference"])
def backend(request: pytest.FixtureRequest) -> RecurrentBackend:
    return request.param(2)


@pytest.mark.parametrize("name", NAMES)
def test_every_way_to_carry_a_state(backend: RecurrentBackend, name: str) -> None:
    """Chunks, single rows, windows that are taken back, saves at every position, and going on from what was saved."""
    expected, hand = alone(backend, PROGRAMS[name]), Hand(backend, PROGRAMS[name])
    check(backend, hand.step(0, IDS[:20], 0, 1, 20, 2, 7, 3, 20), expected[:20])
    check(backend, hand.step(20, IDS[20:21], 1, 1, 20), expected[20:21])
    wrong = [(token + 1) % VOCABULARY for token in IDS[24:26]]
    check(backend, hand.step(21, [*IDS[21:24], *wrong], 1, 1, 21)[:3], expected[21:24])
    check(backend, hand.step(24, IDS[24:30], 1, 1, 24, 4, 23), expected[24:30])  # saves among the logged rows
    check(backend, hand.step(30, IDS[30:50], 1, 2, 50, 3, 50), expected[30:50])  # 2 was the save at 7: of no use now
    for block, position in ((2, 50), (3, 50), (4, 23)):
        check(backend, hand.step(position, IDS[position:60], block, 0, NO_POSITION), expected[position:60])
    check(backend, hand.step(23, IDS[23:25], 4, 1, 23), expected[23:25])  # to a block of its own, then in place
    check(backend, hand.step(25, IDS[25:31], 1, 1, 25), expected[25:31])


@pytest.mark.parametrize("name", NAMES)
def test_a_step_can_be_run_again(backend: RecurrentBackend, name: str) -> None:
    expected, hand = alone(backend, PROGRAMS[name]), Hand(backend, PROGRAMS[name])
    for _ in range(3):
        check(backend, hand.step(0, IDS[:20], 0, 1, 20), expected[:20])
    for _ in range(3):
        check(backend, hand.step(20, IDS[20:24], 1, 1, 20), expected[20:24])
    for _ in range(3):
        check(backend, hand.step(23, IDS[23:28], 1, 1, 23, 3, 22), expected[23:28])
    for _ in range(3):
        check(backend, hand.step(26, IDS[26:40], 1, 2, 40), expected[26:40])
    check(backend, hand.step(22, IDS[22:40], 3, 0, NO_POSITION), expected[22:40])


def test_a_step_that_was_cancelled_between_layers_can_be_run_again() -> None:
    program = tiny_program(SHAPES["recurrent"])
    backend = CpuBackend(2)
    expected, hand = alone(backend, program), Hand(backend, program)
    stop, cancelled = threading.Event(), 0

    def cancel() -> None:
        while not stop.is_set():
            hand.executor.cancel()

    thread = threading.Thread(target=cancel)
    thread.start()
    orders = ((0, IDS[:20], 0, 1, 20), (20, IDS[20:25], 1, 1, 20), (23, IDS[23:27], 1, 1, 23))
    try:
        for turn in range(20_000):
            order = orders[turn % 3]
            if order[0] == 0:
                if cancelled >= 30:
                    break
                hand.states.forget(1)
            got = None
            while got is None:
                try:
                    got = hand.step(*order)
                except StepCancelled:
                    cancelled += 1
                if cancelled > 1000:
                    stop.set()  # or a machine on which nothing gets through would try for ever
            check(backend, got, expected[order[0] : order[0] + len(order[1])])
    finally:
        stop.set()
        thread.join()
    assert cancelled >= 30


FAULTS = {
    "a state after the rows": (20, 1, 1, 2, 20),
    "rows after a gap": (21, 1, 1, 2, 22),
    "an empty block": (20, 1, 3, 2, 21),
    "no such source": (20, 1, 5, 2, 21),
    "no such target": (20, 1, 1, -1, 21),
    "more rows than a log": (20, 7, 1, 1, 20),
    "overwriting what may be needed again": (20, 2, 1, 1, 22),
    "a position before the rows": (20, 2, 1, 2, 19),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_impossible_orders_are_refused_and_leave_no_trace(backend: RecurrentBackend, fault: str) -> None:
    first, rows, source, target, position = FAULTS[fault]
    expected, hand = alone(backend, PROGRAMS["recurrent"]), Hand(backend, PROGRAMS["recurrent"])
    hand.step(0, IDS[:20], 0, 1, 20)
    if fault == "a state after the rows":
        first, position = 19, 20
    with pytest.raises(StepError):
        hand.step(first, IDS[first : first + rows], source, target, position)
    check(backend, hand.step(20, IDS[20:40], 1, 2, 40), expected[20:40])


def test_another_sequence_finds_nothing_logged(backend: RecurrentBackend) -> None:
    hand = Hand(backend, PROGRAMS["recurrent"])
    hand.step(0, IDS[:4], 0, 1, 4)
    hand.step(4, IDS[4:7], 1, 1, 4)
    hand.states.open(1)
    with pytest.raises(StepError):
        hand.step(6, IDS[6:8], 1, 1, 6)


def test_programs_and_states_must_fit(backend: RecurrentBackend) -> None:
    program = PROGRAMS["recurrent"]
    runner = ProgramRunner(backend, program)
    with pytest.raises(ConfigError, match="states"):
        backend.load(program, runner.pools, Limits(8, 8, 1))
    group = RecurrentGroup("other", 2, 4, 2, 6, 24, 80)
    with pytest.raises(ConfigError, match="states"):
        backend.load(program, runner.pools, Limits(8, 8, 1), backend.allocate_states(group, 3, 1, 4))


def test_sizes_that_the_native_code_cannot_run_are_refused() -> None:
    backend, program = CpuBackend(1), PROGRAMS["recurrent"]
    runner = ProgramRunner(backend, program)
    conv = next(op for op in program.ops if isinstance(op, ShortConv))
    delta = next(op for op in program.ops if isinstance(op, GatedDeltaNet))
    for op in (
        ShortConv(conv.src, conv.src, conv.weight, conv.group, 0),
        ShortConv(conv.out, conv.src, conv.weight, conv.group, 2),
        GatedDeltaNet(delta.out, delta.mixed, delta.alpha, delta.mixed, delta.rate, delta.dt, 0.0, delta.group, 0),
        GatedDeltaNet(delta.out, delta.out, delta.alpha, delta.beta, delta.rate, delta.dt, 0.0, delta.group, 0),
    ):
        broken = Program("broken", (op,), program.logits, program.kv_groups, recurrent=program.recurrent)
        with pytest.raises(ConfigError, match="broken: op 0"):
            backend.load(broken, runner.pools, Limits(8, 8, 1), runner.states)


@pytest.mark.parametrize("made", [CpuBackend(1), ReferenceBackend()], ids=["cpu", "reference"])
def test_bytes_are_those_of_the_formula(made: RecurrentBackend) -> None:
    group = RecurrentGroup("r", 3, 4, 2, 4, 16, 32)
    assert group.channels == 2 * 2 * 16 + 4 * 32
    assert made.state_bytes(group) == 3 * 4 * (3 * group.channels + 4 * 16 * 32)
    log = made.log_bytes(group, 5)
    assert 3 * 4 * 5 * (group.channels + 2 * 16 + 4 * 32 + 8) <= log <= 3 * 4 * 5 * (2 * group.channels + 32)
    assert made.allocate_states(group, 1 << 16, 4, 5).table.shape == (4, STATE_COLUMNS)  # gigabytes, none touched
    assert (SOURCE, TARGET, POSITION) == (0, 1, 2)
