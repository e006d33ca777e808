"""One HTTP request while it is answered: its id, whose key it carries, and who traces it.

The outermost layer makes it, the gate and the bridge add to it. A context variable carries it, so that no route has to
hand it on, and a route that is added is covered by limits, logs and traces without naming any of them.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Protocol

from ..engine.request import Finish
from .limits import Allowance

NOBODY = "-"  # what logs call who sends no key


class Trace(Protocol):
    """Watches what a request's choices do in the engine."""

    def submitted(self) -> None:
        """The request's choices go to the engine now."""
        ...

    def ended(self, index: int, finish: Finish) -> None:
        """A choice has ended."""
        ...


class Visit:
    """See the module."""

    __slots__ = ("_allowance", "_counted", "request_id", "response_id", "tenant", "trace")

    def __init__(self, request_id: str) -> None:
        self.request_id = request_id
        self.response_id: str | None = None  # by which the engine's lines name it, once it is there
        self.tenant = NOBODY  # what logs call the holder of its key, once that is known
        self.trace: Trace | None = None
        self._allowance: Allowance | None = None
        self._counted = False

    def identify(self, tenant: str, allowance: Allowance, counts: bool) -> None:
        """Whose request it is. If it `counts`, it is held against the key's limits, once: RequestError 429."""
        self.tenant, self._allowance = tenant, allowance
        if counts and not self._counted:
            allowance.enter()
            self._counted = True

    @property
    def allowance(self) -> Allowance | None:
        """The key's, once that is known."""
        return self._allowance

    def leave(self) -> None:
        """The request is over."""
        if self._allowance is not None and self._counted:
            self._counted = False
            self._allowance.leave()

    def headers(self) -> list[tuple[bytes, bytes]]:
        """What its answer's head says besides the answer's own."""
        limits = [] if self._allowance is None else self._allowance.headers()
        return [(b"x-request-id", self.request_id.encode()), *limits]


_current: ContextVar[Visit | None] = ContextVar("visit", default=None)


def begin_visit(visit: Visit) -> None:
    """Makes it the current one of this task and of those it starts."""
    _current.set(visit)


def current_visit() -> Visit | None:
    """The request that is being answered here; None outside of any."""
    return _current.get()
