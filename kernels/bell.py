"""A bell wakes an event loop: an eventfd that it listens to. A step rings it once the GIL is free. Who is woken earlier
only waits for the GIL, and a thread that gives it to one who waits pays for waking that one a second time."""

from __future__ import annotations

import os

NO_BELL = -1
_ONE = (1).to_bytes(8, "little")  # what an eventfd takes, on the machines that have them


def ring(bell: int) -> None:
    """Wakes whoever listens, if anybody does."""
    if bell != NO_BELL:
        os.write(bell, _ONE)
