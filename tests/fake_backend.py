"""A backend whose numbers are hashes: every logit depends on every cache cell its row may see, and on nothing else.

Cells are written and read through the block tables the engine fills, in two layers, so that a cell depends on all that
is before it. A wrong block, a stale row, a wrong position or a freed block changes the tokens (a poisoned cell faults).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from surefoot.kernels.backend import DrawRequest, Executor, KvPool, Limits, NativeTime, StepBatch
from surefoot.kernels.bell import ring
from surefoot.kernels.errors import StepCancelled, StepError
from surefoot.kernels.formats import KvType
from surefoot.kernels.program import BLOCK, Buffer, KvGroup, Program, Rows
from surefoot.kernels.sampling import Draw, DrawFault, SamplingSpec

POISON = np.uint64(0xDEAD)
VOCAB = 96


def mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """splitmix64's finaliser."""
    with np.errstate(over="ignore"):
        z = values + np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


def fake_program(windows: Sequence[int | None] = (None,)) -> Program:
    groups = tuple(KvGroup(f"group{i}", 2, 1, 1, 1, window) for i, window in enumerate(windows))
    return Program("fake", (), Buffer("logits", VOCAB, Rows.LOGITS), groups)


class FakePool:
    def __init__(self, num_blocks: int, slots: int, max_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.block_bytes = 1024
        self.block_table: NDArray[np.int32] = np.zeros((slots, max_blocks), np.int32)
        self.cells = np.full((2, num_blocks, BLOCK), POISON, np.uint64)  # [layer, block, position]

    def fill(self, block: int, value: float) -> None:
        self.cells[:, block] = POISON if np.isnan(value) else np.uint64(value)


@dataclass
class FakeExecutor:
    program: Program
    pools: list[FakePool]
    limits: Limits
    before_step: Callable[[StepBatch], None] | None = None  # may raise, or wait for `cancelled`
    steps: list[int] = field(default_factory=list)  # rows of each step
    num_rows: int = 0
    cancelled: bool = False

    def __post_init__(self) -> None:
        self._logits = np.zeros((0, self.program.vocab_size), np.float32)

    def step(self, batch: StepBatch) -> None:
        rows = len(batch.token_ids)
        assert 0 < rows <= self.limits.max_rows
        assert len(batch.logits_rows) <= self.limits.max_logits_rows
        assert len(batch.slots) <= self.limits.max_sequences
        assert batch.row_offsets[0] == 0 and batch.row_offsets[-1] == rows
        assert len(set(batch.slots)) == len(batch.slots)
        self.cancelled = False
        if self.before_step is not None:
            self.before_step(batch)
        if self.cancelled:
            raise StepCancelled("cancelled")
        states = np.zeros(rows, np.uint64)
        token_ids, positions = np.array(batch.token_ids, np.int32), np.array(batch.positions, np.int32)
        for number, slot in enumerate(batch.slots):
            begin, end = batch.row_offsets[number], batch.row_offsets[number + 1]
            states[begin:end] = self._run_sequence(slot, positions[begin:end], token_ids[begin:end])
        wanted = states[np.array(batch.logits_rows, np.int32)]
        columns = np.arange(1, self.program.vocab_size + 1, dtype=np.uint64)
        with np.errstate(over="ignore"):
            raw = mix(wanted[:, None] * columns[None, :])
        logits = (raw >> np.uint64(40)).astype(np.float32) / np.float32(1 << 22)
        logits[wanted == POISON] = np.nan
        self._logits = logits
        self.steps.append(rows)
        self.num_rows += rows

    def _run_sequence(self, slot: int, positions: NDArray[np.int32], tokens: NDArray[np.int32]) -> NDArray[np.uint64]:
        assert np.array_equal(positions, np.arange(positions[0], positions[0] + len(positions)))
        states = mix(tokens.astype(np.uint64) * np.uint64(1009) + positions.astype(np.uint64))
        for layer in range(2):
            mixed = np.zeros(len(positions), np.uint64)
            for number, (group, pool) in enumerate(zip(self.program.kv_groups, self.pools, strict=True)):
                blocks = pool.block_table[slot]
                assert np.all(blocks[positions // BLOCK] > 0), "a row without a block"
                pool.cells[layer, blocks[positions // BLOCK], positions % BLOCK] = states
                mixed = mix(mixed + np.uint64(number) + self._attend(pool, layer, slot, positions, group.window))
            poisoned = states == POISON
            states = mix(states + mixed)
            states[poisoned | (mixed == POISON)] = POISON
        return states

    @staticmethod
    def _attend(
        pool: FakePool, layer: int, slot: int, positions: NDArray[np.int32], window: int | None
    ) -> NDArray[np.uint64]:
        length = int(positions[-1]) + 1
        first = 0 if window is None else max(0, int(positions[0]) - window + 1)
        seen = np.arange(first, length)
        cells = pool.cells[layer, pool.block_table[slot, seen // BLOCK], seen % BLOCK]
        with np.errstate(over="ignore"):
            keyed = mix(cells * np.uint64(2654435761) + seen.astype(np.uint64))
            bad = cells == POISON
            sums = np.concatenate([[np.uint64(0)], np.cumsum(keyed, dtype=np.uint64)])
            bads = np.concatenate([[0], np.cumsum(bad)])
            upper = positions - first + 1
            lower = np.zeros_like(upper) if window is None else np.maximum(upper - window, 0)
            result = mix(sums[upper] - sums[lower])
        result[bads[upper] > bads[lower]] = POISON
        return result

    def logits(self) -> NDArray[np.float32]:
        return self._logits

    def output(self, name: str) -> NDArray[np.float32]:
        raise AssertionError(name)

    def cancel(self) -> None:
        self.cancelled = True


class FakeSampler:
    def __init__(self, spec: SamplingSpec, prompt_ids: Sequence[int]) -> None:
        self.spec = spec
        self.history: list[int] = []
        self.prompt = list(prompt_ids)

    reads_output = True

    def commit(self, token_ids: Sequence[int]) -> None:
        self.history += token_ids


class FakeBackend:
    """`forced[token]` makes that token follow whenever it is given: a script for stop tests."""

    name = "fake"
    rows_exact = True
    arithmetic = "fake-1"

    def __init__(self) -> None:
        self.native_time = NativeTime()
        self.executor: FakeExecutor | None = None
        self.pools: list[FakePool] = []
        self.script: Callable[[FakeSampler, int], int | None] | None = None  # (sampler, output position) -> token
        self.fault: Callable[[FakeSampler, int], str | None] | None = None

    def block_bytes(self, group: KvGroup, kv_type: KvType) -> int:
        return 1024

    def allocate_kv(self, group: KvGroup, kv_type: KvType, num_blocks: int, slots: int, max_blocks: int) -> FakePool:
        self.pools.append(FakePool(num_blocks, slots, max_blocks))
        return self.pools[-1]

    def load(self, program: Program, pools: Mapping[KvGroup, KvPool], limits: Limits) -> FakeExecutor:
        self.executor = FakeExecutor(program, [pools[group] for group in program.kv_groups], limits)  # type: ignore[misc]
        return self.executor

    def sampler(self, spec: SamplingSpec, prompt_ids: Sequence[int], vocab_size: int) -> FakeSampler:
        return FakeSampler(spec, prompt_ids)

    def step(
        self, executor: Executor, batch: StepBatch, requests: list[DrawRequest], bell: int
    ) -> list[list[Draw] | DrawFault]:
        ring(bell)
        executor.step(batch)
        return self.draw(executor, requests)

    def draw(self, executor: Executor, requests: Sequence[DrawRequest]) -> list[list[Draw] | DrawFault]:
        return [self._draw_window(executor.logits(), request) for request in requests]

    def _draw_window(self, logits: NDArray[np.float32], request: DrawRequest) -> list[Draw] | DrawFault:
        sampler = request.sampler
        assert isinstance(sampler, FakeSampler)
        draws: list[Draw] = []
        history = list(sampler.history)
        assert len(history) == request.position
        for number in range(len(request.drafts) + 1):
            position = request.position + number
            if self.fault is not None and (reason := self.fault(sampler, position)):
                return DrawFault(reason)
            row = logits[request.first_row + number]
            if np.isnan(row).any():
                return DrawFault("the logits are not numbers")
            token = self.script(sampler, position) if self.script is not None else None
            if token is None:
                mask = None if request.masks is None else request.masks[number]
                token = self._choose(row, sampler.spec, position, history, mask)
                if token is None:
                    return draws or DrawFault("no token is allowed at this position")
            draws.append(scored(row, token, sampler.spec.num_logprobs))
            if number < len(request.drafts) and token != request.drafts[number]:
                break
            history.append(token)
        return draws

    @staticmethod
    def _choose(
        row: NDArray[np.float32],
        spec: SamplingSpec,
        position: int,
        history: list[int],
        mask: NDArray[np.uint32] | None,
    ) -> int | None:
        scores = row.astype(np.float64)
        for token in set(history):
            scores[token] -= spec.presence_penalty + spec.frequency_penalty * history.count(token)
        if position < spec.suppress_until:
            scores[list(spec.suppress_ids)] = -np.inf
        if mask is not None:
            scores[np.unpackbits(mask.view(np.uint8), count=len(row), bitorder="little") == 0] = -np.inf
        if np.isneginf(scores).all():
            return None
        if spec.temperature > 0:
            columns = np.arange(len(row), dtype=np.uint64)
            seeds = np.array([spec.seed & (2**64 - 1), position], np.uint64)
            with np.errstate(over="ignore"):
                noise = mix(mix(seeds[:1] * np.uint64(31) + seeds[1:]) + columns)
            uniform = ((noise >> np.uint64(11)).astype(np.float64) + 0.5) / (1 << 53)
            scores = scores / spec.temperature - np.log(-np.log(uniform))
        return int(scores.argmax())

    def logprobs(self, executor: Executor, row: int, token_id: int, num_top: int) -> Draw:
        return scored(executor.logits()[row], token_id, num_top)


def scored(row: NDArray[np.float32], token: int, num_top: int | None) -> Draw:
    if num_top is None:
        return Draw(token)
    logprobs = row - np.log(np.exp(row - row.max()).sum()) - row.max()
    best = np.argsort(-logprobs, kind="stable")[:num_top]
    return Draw(token, float(logprobs[token]), tuple((int(i), float(logprobs[i])) for i in best))


class FakeTokenizer:
    """Tokens 0 .. 94 are the printable characters; `pieces` gives a token other bytes."""

    def __init__(self, ends: frozenset[int], pieces: Mapping[int, bytes]) -> None:
        self.end_of_generation_ids = ends
        self.special_ids = ends
        self.vocab_size = VOCAB
        self.pieces = pieces

    def encode_inside(self, text: str) -> list[int]:
        return [ord(character) - 32 for character in text]

    def token_bytes(self, token_id: int, *, special: bool = False) -> bytes:
        return self.pieces.get(token_id, bytes([32 + token_id]))

    def prefixed_token(self, ids: Sequence[int]) -> int | None:
        return 0


@dataclass
class FakeConfig:
    name: str
    context_length: int
    architecture: str = "fake"
    hidden_size: int = 1


class FakeModel:
    """What the engine uses of a LoadedModel."""

    def __init__(
        self,
        windows: Sequence[int | None] = (None,),
        context_length: int = 512,
        ends: frozenset[int] = frozenset(),
        pieces: Mapping[int, bytes] | None = None,
    ) -> None:
        self.config = FakeConfig("fake", context_length)
        self.program = fake_program(windows)
        self.tokenizer = FakeTokenizer(ends, pieces or {})
        self.fingerprint = "none"

    def release_pages(self) -> None:
        pass


def fail_when(token: int, times: int = 1 << 30) -> Callable[[StepBatch], None]:
    """Fails every step (the first `times`) that feeds the token."""
    left = [times]

    def hook(batch: StepBatch) -> None:
        if left[0] and token in batch.token_ids:
            left[0] -= 1
            raise StepError(f"token {token}")

    return hook
