"""What one API key may do at once and per minute. Knows of HTTP only the names of its headers. Event loop only."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from ..kernels.errors import RequestError


@dataclass(frozen=True, slots=True)
class KeyLimits:
    """None: no limit."""

    at_once: int | None = None  # requests being answered; of those that generate, choices
    per_minute: int | None = None  # requests; as many may come in one burst

    def within(self, others: KeyLimits) -> KeyLimits:
        """These limits, and the others' where there is none."""
        return KeyLimits(
            others.at_once if self.at_once is None else self.at_once,
            others.per_minute if self.per_minute is None else self.per_minute,
        )


UNLIMITED = KeyLimits()

_ROUNDING = 1e-9  # of a request: who waits exactly as long as told is served, whatever the sums' last bits say


class Allowance:
    """What is left of a key's limits: a bucket of requests that refills steadily, and counts of what is open."""

    def __init__(self, limits: KeyLimits, clock: Callable[[], float] = time.monotonic) -> None:
        self.limits = limits
        self._clock = clock
        self._left = float(limits.per_minute or 0)
        self._filled_at = clock()
        self.num_requests = 0
        self.num_choices = 0

    def change(self, limits: KeyLimits) -> None:
        """Other limits from now on. What was used of a rate stays used; what is open stays open."""
        if self.limits.per_minute is not None:
            self._refill(self.limits.per_minute)
        if limits.per_minute is not None:
            full = float(limits.per_minute)
            self._left = full if self.limits.per_minute is None else min(self._left, full)
            self._filled_at = self._clock()
        self.limits = limits

    def enter(self) -> None:
        """Counts a request in, or raises RequestError 429 and counts nothing. Each `enter` needs its `leave`."""
        if self.limits.at_once is not None and self.num_requests >= self.limits.at_once:
            raise self._busy(self.num_requests)
        if self.limits.per_minute is not None:
            self._refill(self.limits.per_minute)
            if self._left < 1 - _ROUNDING:
                wait_s = (1 - self._left) * 60 / self.limits.per_minute
                raise _limited(
                    f"This key may send {self.limits.per_minute} requests per minute; "
                    f"the next one is taken in {wait_s:.1f} s",
                    math.ceil(wait_s),
                )
            self._left -= 1
        self.num_requests += 1

    def leave(self) -> None:
        """The request has its answer, or its client has left."""
        self.num_requests -= 1

    def admit(self, num_choices: int) -> None:
        """RequestError unless this many more choices may run: 400 if they never may, 429 if not now."""
        limit = self.limits.at_once
        if limit is None:
            return
        if num_choices > limit:
            raise RequestError(f"{num_choices} choices are more than this key may run at once ({limit})", param="n")
        if self.num_choices + num_choices > limit:
            raise self._busy(self.num_choices)

    def headers(self) -> list[tuple[bytes, bytes]]:
        """OpenAI's x-ratelimit-* headers, where there is a rate."""
        per_minute = self.limits.per_minute
        if per_minute is None:
            return []
        self._refill(per_minute)
        full_in_s = (per_minute - self._left) * 60 / per_minute
        return [
            (b"x-ratelimit-limit-requests", str(per_minute).encode()),
            (b"x-ratelimit-remaining-requests", str(int(self._left)).encode()),
            (b"x-ratelimit-reset-requests", _duration(full_in_s).encode()),
        ]

    def _refill(self, per_minute: int) -> None:
        now = self._clock()
        self._left = min(self._left + (now - self._filled_at) * per_minute / 60, float(per_minute))
        self._filled_at = now

    def _busy(self, num_open: int) -> RequestError:
        return _limited(
            f"This key may have {self.limits.at_once} requests running at once, every choice counted; "
            f"it has {num_open}",
            1,
        )


def _limited(text: str, retry_after: int) -> RequestError:
    return RequestError(
        text, code="rate_limit_exceeded", status=429, kind="rate_limit_error", retry_after=max(retry_after, 1)
    )


def _duration(seconds: float) -> str:
    """As OpenAI writes it: 1m3.5s, 12ms, 0s."""
    if seconds < 1:
        return f"{math.ceil(seconds * 1000)}ms" if seconds > 0 else "0s"
    minutes, rest = divmod(round(seconds, 1), 60)
    return (f"{int(minutes)}m" if minutes else "") + f"{rest:g}s"
