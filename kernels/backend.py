"""The border between engine and kernels: what a backend offers, and the values that cross in a step.

One folder per backend implements these protocols. A backend that lacks an op raises ConfigError at `load`, naming it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple, Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from .formats import KvType
from .program import KvGroup, Program, RecurrentGroup
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


STATE_SAVES = 2  # checkpoints that one step can take of a sequence
SOURCE, TARGET, POSITION, SAVES = 0, 1, 2, 3  # columns of a state table; from SAVES on pairs of (block, position)
STATE_COLUMNS = SAVES + 2 * STATE_SAVES
NO_POSITION = (1 << 31) - 1


class StatePool(Protocol):
    """States of a recurrent group, in blocks of one state each, and per slot a log of rows that may be taken back.

    The pool owns the table [slots, STATE_COLUMNS], the engine writes it. A step whose rows of a slot begin at p

        takes the state out of block SOURCE, where it is the one before some position h <= p,
        carries it forward by the logged rows h .. p - 1 and then by its own rows;
        the state before position POSITION (p or later) is what block TARGET holds afterwards;
        own rows from POSITION on are logged: the slot's next step may begin at any of them, or after the last;
        of each save, (block, position) with h < position <= POSITION, the block is left holding the state before it.

    Block 0 is the state before position 0: it can be read, and as TARGET or in a save it stands for none. TARGET may be
    SOURCE only if POSITION is p. So a step that failed can be run again, in whatever layer it ended.
    """

    @property
    def num_blocks(self) -> int: ...
    @property
    def log_rows(self) -> int:
        """Rows that a slot's log holds."""
        ...

    @property
    def table(self) -> NDArray[np.int32]: ...

    def open(self, slot: int) -> None:
        """Another sequence has the slot from now on: what is logged is nobody's."""
        ...

    def forget(self, block: int) -> None:
        """The block holds no state until a step stores one."""
        ...

    def fill(self, block: int, value: float) -> None:
        """Overwrites every number in a block, which then holds no state (tests poison freed blocks with NaN)."""
        ...


class Executor(Protocol):
    """A program bound to weights, pools and buffers. Used by one thread; `cancel` may be called from any."""

    @property
    def program(self) -> Program: ...

    def step(self, batch: StepBatch) -> None:
        """Runs all ops over the batch without the GIL. Raises StepError or StepCancelled; then no result is valid, the
        only trace left is KV written at the batch's own positions, and the same rows may be run again."""
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


@runtime_checkable
class RecurrentBackend(Backend, Protocol):
    """A backend that also runs programs with a recurrent group."""

    def state_bytes(self, group: RecurrentGroup) -> int:
        """Bytes of one state, over all layers of the group."""
        ...

    def log_bytes(self, group: RecurrentGroup, log_rows: int) -> int:
        """Bytes of one slot's log."""
        ...

    def allocate_states(self, group: RecurrentGroup, num_blocks: int, slots: int, log_rows: int) -> StatePool:
        """Reserves states (block 0, which takes no memory, included) and logs; pages are touched only when written."""
        ...

    def load(
        self, program: Program, pools: Mapping[KvGroup, KvPool], limits: Limits, states: StatePool | None = None
    ) -> Executor:
        """As Backend.load; `states` for the program's recurrent group."""
        ...
