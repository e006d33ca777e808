"""A grammar while it is used, as protocols: what the core, the sampler and the speculative loop see. Knows no library.

Grammars are compiled elsewhere (`compiler`), before a request is submitted, and cross to the engine in its parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from .constraint import Constraint


class Matcher(Protocol):
    """How far one answer has come in its grammar. Used by the engine thread.

    Methods may raise RequestError, which ends the request: the grammar turned out too complex for this answer.
    """

    def masks_for(self, drafts: Sequence[int] = ()) -> NDArray[np.uint32]:
        """The allowed tokens of a draw window: [rows, ceil(vocabulary / 32)], bit set = allowed.

        Row j is the mask after drafts[:j]. There are as many rows as drafts that may be verified, plus one: the window
        ends before a draft that the grammar forbids (no draw can equal it) and before one that ends the answer (the row
        before it draws that token by itself). The state is left as it was. Valid until the next call.
        """
        ...

    def mask_after(self, drafts: Sequence[int]) -> NDArray[np.uint32] | None:
        """The allowed tokens behind a draft, [ceil(vocabulary / 32)], for a drafter that draws under them. None:
        nothing may follow, or the draft has left the grammar. The state is left as it was. Valid until the next call.
        """
        ...

    def forced_drafts(self, limit: int) -> list[int]:
        """Tokens, at most `limit`, that the grammar prescribes next: drafts that cost no proposal. May be empty.

        They are to be verified like any draft, which cannot fail while the masks of `masks_for` hold: each of their
        rows allows one token only.
        """
        ...

    def commit(self, token_ids: Sequence[int]) -> None:
        """Advances over drawn tokens, up to one that ends the answer."""
        ...

    @property
    def complete(self) -> bool:
        """Nothing may follow: the answer ends here, without an end-of-generation token."""
        ...


class Grammar(Protocol):
    """A compiled constraint. Immutable; any thread may start answers from it."""

    @property
    def constraint(self) -> Constraint: ...

    def start(self, *, may_end: bool = True) -> Matcher:
        """The state of a new answer. `may_end` is false under `ignore_eos`: only a complete answer ends."""
        ...
