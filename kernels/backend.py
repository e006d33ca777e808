"""The border between engine and kernels: what a backend offers, and the values that cross in a step.

One folder per backend implements these protocols. A backend that lacks an op raises ConfigError at `load`, naming it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from .formats import KvType
from .program import KvGroup, Program
from .sampling import Draw, DrawFault, SamplingSpec


@dataclass(frozen=True, slots=True)
class Limits:
    """Upper bounds that size an executor's buffers."""

    max_rows: int  # rows of one step
    max_logits_rows: int  # rows of one step that want logits
    max_sequences: int  # sequences of one step, and slots in each block table


class NativeTime(NamedTuple):
    """Seconds that steps and draws have spent in native code without the GIL, and have then waited for it."""

    running: float = 0.0
    waiting: float = 0.0


@dataclass(frozen=True, slots=True)
class RowHandle:
    """Rows [start, start + count) of output `name` of an executor's last step, valid until its next one."""

    executor: Executor
    name: str
    start: int
    count: int


NO_INPUTS: Mapping[str, RowHandle] = MappingProxyType({})
Ints: TypeAlias = list[int] | NDArray[np.int32]  # the engine's steps are lists: small, and made by Python


@dataclass(slots=True)
class StepBatch:
    """One ragged batch of rows. Rows of one sequence stand together, in ascending, gapless positions.

    Sequence s owns rows row_offsets[s]:row_offsets[s+1]; row slots[s] of each group's block table names its blocks.
    """

    token_ids: Ints  # [rows]
    positions: Ints  # [rows]
    row_offsets: Ints  # [sequences + 1], ascending, from 0 to rows
    slots: Ints  # [sequences]
    logits_rows: Ints  # [logits rows], ascending row indices
    taps: tuple[str, ...] = ()
    inputs: Mapping[str, RowHandle] = field(default_factory=lambda: NO_INPUTS)


class KvPool(Protocol):
    """Storage of one KV group: `num_blocks` blocks of 32 positions, addressed through a block table.

    `block_table[slot, position // 32]` is the block that holds a sequence's position. The pool owns the table,
    the engine writes it; entries of freed blocks are never read.
    """

    @property
    def num_blocks(self) -> int: ...
    @property
    def block_bytes(self) -> int: ...
    @property
    def block_table(
        self,
    ) -> NDArray[np.int32]: ...  # [slots, max blocks per sequence]

    def fill(self, block: int, value: float) -> None:
        """Overwrites every number in a block (tests poison freed blocks with NaN; q8_0 poisons the scales)."""
        ...


class Executor(Protocol):
    """A program bound to weights, pools and buffers. Used by one thread; `cancel` may be called from any."""

    @property
    def program(self) -> Program: ...

    def step(self, batch: StepBatch) -> None:
        """Runs all ops over the batch without the GIL. Raises StepError or StepCancelled; then no result is valid, and
        the only trace left is KV written at the batch's own positions."""
        ...

    def logits(self) -> NDArray[np.float32]:
        """[logits rows, vocabulary] of the last step. A view: valid until the next step."""
        ...

    def output(self, name: str) -> NDArray[np.float32]:
        """[rows, width] of a tap that the last step asked for. A view: valid until the next step."""
        ...

    def cancel(self) -> None:
        """Makes the running step (or, if none runs, nothing) end within one layer with StepCancelled."""
        ...


class Sampler(Protocol):
    """Per-request sampling state: the spec and the counts that penalties read. Only `commit` changes it."""

    @property
    def reads_output(self) -> bool:
        """Whether draws depend on what is committed: if not, `commit` need not be called."""
        ...

    def commit(self, token_ids: Sequence[int]) -> None:
        """Appends emitted tokens to the history that penalties read."""
        ...


@dataclass(slots=True)
class DrawRequest:
    """Draw from logits rows first_row, first_row+1, ... of the last step, one per entry of `drafts` plus one.

    Row j is drawn at output position `position + j`, with penalties as if `history` and drafts[:j] were committed
    output, and under `masks[j]` if given. Drawing stops after the first row whose draw differs from its draft, so the
    result has 1 to len(drafts) + 1 entries; all but the last equal the drafts. A row that cannot be drawn from also
    ends the result; only where it is the first is the result its fault (else it comes first in the next window).
    """

    sampler: Sampler
    first_row: int
    position: int  # of row first_row's draw among the request's output tokens, from 0
    drafts: Sequence[int] = ()
    masks: NDArray[np.uint32] | None = None  # [len(drafts) + 1, ceil(vocab / 32)], bit set = allowed
    history: Sequence[int] = ()  # output that is not committed: what a drafter has proposed before this row


class Backend(Protocol):
    """A way to run programs."""

    @property
    def name(self) -> str: ...
    @property
    def rows_exact(self) -> bool:
        """A row's bits do not depend on the other rows of its step, nor on threads."""
        ...

    @property
    def arithmetic(self) -> str:
        """Version of the arithmetic; part of the fingerprint. Changes whenever results change in any bit."""
        ...

    @property
    def native_time(self) -> NativeTime:
        """So far, over all executors. Zeros where nothing is native: all of a step then counts as Python."""
        ...

    def block_bytes(self, group: KvGroup, kv_type: KvType) -> int:
        """Bytes of one block of 32 positions over all layers of the group."""
        ...

    def allocate_kv(self, group: KvGroup, kv_type: KvType, num_blocks: int, slots: int, max_blocks: int) -> KvPool:
        """Reserves a pool (pages are touched only when written) and its block table [slots, max_blocks]."""
        ...

    def load(self, program: Program, pools: Mapping[KvGroup, KvPool], limits: Limits) -> Executor:
        """Packs the weights not yet packed and binds the program. The Weights' own bytes are not read after."""
        ...

    def sampler(self, spec: SamplingSpec, prompt_ids: Sequence[int], vocab_size: int) -> Sampler:
        """A request's sampling state; `prompt_ids` count for the repetition penalty."""
        ...

    def step(
        self, executor: Executor, batch: StepBatch, requests: list[DrawRequest], bell: int
    ) -> list[list[Draw] | DrawFault]:
        """Rings the bell (see bell.py), then `executor.step`, then `draw` from its logits, in one call without the GIL:
        after a pass over the weights no cache holds anything of Python's, so a step comes back to it once. Raises as
        `executor.step`."""
        ...

    def draw(self, executor: Executor, requests: Sequence[DrawRequest]) -> list[list[Draw] | DrawFault]:
        """Draws for all requests in one call, without the GIL. A fault (NaN row, empty mask) stays with its request."""
        ...

    def logprobs(self, executor: Executor, row: int, token_id: int, num_top: int) -> Draw:
        """Log-probabilities of `token_id` and the `num_top` best of a logits row, as `draw` would report them."""
        ...
