"""Are verifies the same computation as plain decoding? Teacher-forces plain ids through windows on the real executor.

A prompt is continued one row a step. Then the same positions are computed again as rows of verify
steps, right drafts up to somewhere and wrong ones after it, and each row whose prefix is right is compared with what
it was alone. The rejected rows stay in the cache until they are overwritten, as they do while serving.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ...kernels.errors import ConfigError
from .opened import OpenedModel
from .scratch import Scratch

WINDOWS = tuple(range(1, 17))


@dataclass(frozen=True, slots=True)
class Flip:
    """An argmax that a verify got differently. `margin` is by how much the plain row preferred its own token."""

    position: int
    rows: int
    plain: int
    verify: int
    margin: float


@dataclass(slots=True)
class RowClass:
    """All verify steps of so many rows. `largest_error` is in logits, NaN where a row was not a number."""

    rows: int
    compared: int = 0
    different: int = 0  # rows of which any bit differs
    largest_error: float = 0.0
    flips: list[Flip] = field(default_factory=list[Flip])


@dataclass(frozen=True, slots=True)
class ParityReport:
    """What was compared, by rows of a step. `exact`: the backend promises that nothing differs."""

    model: str
    backend: str
    exact: bool
    positions: int
    classes: list[RowClass]

    @property
    def num_different(self) -> int:
        """Rows that are not the same bits."""
        return sum(row_class.different for row_class in self.classes)

    @property
    def promise_broken(self) -> bool:
        """The backend says that rows are exact, and one is not."""
        return self.exact and self.num_different > 0


def measure(
    opened: OpenedModel,
    prompt_ids: Sequence[int],
    positions: int,
    *,
    windows: Sequence[int] = WINDOWS,
    seed: int = 0,
) -> ParityReport:
    """Continues the prompt greedily by `positions` tokens, one row a step, and computes all of them again in verifies.
    Raises ConfigError for an empty prompt and where memory does not suffice."""
    if not prompt_ids or positions < 1:
        raise ConfigError("parity needs a prompt of at least one token, and at least one position to compare")
    scratch = Scratch(opened, prompt_ids, spare=positions + max(windows))
    first = len(prompt_ids) - 1  # of the positions compared: the one whose row draws the first token
    scratch.prefill(first)
    plain = _continue(scratch, first, positions)
    pick = random.Random(seed)
    classes = [RowClass(1 + window) for window in windows]
    for window, row_class in zip(windows, classes, strict=True):
        _verify_all(scratch, first, window, pick, plain, row_class)
    return ParityReport(opened.model.config.name, opened.backend.name, opened.backend.rows_exact, positions, classes)


def _continue(scratch: Scratch, first: int, positions: int) -> NDArray[np.float32]:
    """Logits [positions, vocabulary] of a plain greedy run, whose tokens it appends to the sequence."""
    rows: list[NDArray[np.float32]] = []
    for position in range(first, first + positions):
        rows.append(scratch.step(position, 1, logits=1)[0].copy())
        scratch.sequence.tokens.append(int(rows[-1].argmax()))
    return np.stack(rows)


def _verify_all(
    scratch: Scratch,
    first: int,
    window: int,
    pick: random.Random,
    plain: NDArray[np.float32],
    row_class: RowClass,
) -> None:
    """The whole text in steps of one window, as if all right drafts were accepted: every second time all drafts are
    right, else a random number of them is."""
    token_ids, end = scratch.sequence.tokens, first + len(plain)
    position, number = first, 0
    while position < end:
        right = window if number % 2 == 0 else pick.randrange(window)
        drafts = token_ids[position + 1 : min(position + 1 + right, end)]
        right = len(drafts)
        drafts += _wrong(token_ids, position + 1 + right, window - right, plain.shape[1], pick)
        rows = scratch.step(position, 1, logits=1, drafts=drafts)
        for row in range(right + 1):
            compare(plain[position - first + row], rows[row], position + row, row_class)
        position += right + 1
        number += 1


def _wrong(token_ids: Sequence[int], position: int, count: int, vocab: int, pick: random.Random) -> list[int]:
    """Random ids, the first of which is not the token at `position`."""
    ids = [pick.randrange(vocab) for _ in range(count)]
    if ids and position < len(token_ids) and ids[0] == token_ids[position]:
        ids[0] = (ids[0] + 1) % vocab
    return ids


def compare(plain: NDArray[np.float32], verify: NDArray[np.float32], position: int, row_class: RowClass) -> None:
    """Adds one pair of logits rows, [vocabulary] each, to their class."""
    row_class.compared += 1
    if bool((plain.view(np.uint32) == verify.view(np.uint32)).all()):
        return
    row_class.different += 1
    error = float(np.abs(plain.astype(np.float64) - verify).max())
    row_class.largest_error = float(np.maximum(row_class.largest_error, error))  # NaN stays
    ours, theirs = int(plain.argmax()), int(verify.argmax())
    if ours != theirs:
        margin = float(plain[ours]) - float(plain[theirs])
        row_class.flips.append(Flip(position, row_class.rows, ours, theirs, margin))
