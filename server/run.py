"""`surefoot serve`: from settings to a listening process, and its orderly end."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import FrameType

import uvicorn

from ..engine.settling import settle
from ..kernels.errors import StartError
from .app import create_app
from .connection import BoundedConnection
from .console import say
from .default_model import default_model
from .key_reload import KeyReload
from .launch import launch
from .service import Service
from .settings import HttpSettings, Settings

# After a native step the engine waits so long for a GIL that others hold, and not Python's 5 ms; before one, the rest
# of its turn fits in, so that those whom its outputs woke do not cut it in two.
_SWITCH_INTERVAL_S = 2e-4
_BACKLOG = 2048
LAST_WORDS_S = 5  # after the drain, for clients that are slow to read their stream's end


def run(settings: Settings) -> None:
    """Serves until a signal. The port is taken before the model is loaded, so that a busy one fails at once."""
    started = time.perf_counter()
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    reload = KeyReload(settings.http.key_source)
    with _bound(settings.http) as listener, reload.on_hangup():
        with _ended_by_sigterm():
            service, banner = launch(settings, settings.model or default_model(say))
        if service.gate.is_open and not settings.http.is_loopback:
            say(f"no --api-key: whoever reaches {settings.http.host} may use and administrate it", logging.WARNING)
        address = f"http://{_printable(settings.http.host)}:{listener.getsockname()[1]}"

        def announce() -> None:
            say("\n".join([*banner, f"listening on {address} ({time.perf_counter() - started:.1f} s)"]))

        server = DrainingServer(_config(service), service, announce, reload)
        settle()
        server.run(sockets=[listener])


def _config(service: Service) -> uvicorn.Config:
    return uvicorn.Config(
        create_app(service),
        loop="uvloop" if sys.platform != "win32" else "asyncio",
        http=BoundedConnection,
        ws="none",
        lifespan="on",
        access_log=False,
        log_config=None,
        log_level="warning",
        server_header=False,
        date_header=False,
        backlog=_BACKLOG,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=LAST_WORDS_S,
    )


def _printable(host: str) -> str:
    return f"[{host}]" if ":" in host else host


@contextmanager
def _ended_by_sigterm() -> Generator[None]:
    """SIGTERM ends the block, also where this is process 1 of a container, for which the system does nothing."""

    def end(sig: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + sig)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _bound(http: HttpSettings) -> socket.socket:
    if not http.host:
        raise StartError("--host is empty; every address of this machine is 0.0.0.0")
    family = socket.AF_INET6 if ":" in http.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setsockopt(
        socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1
    )  # of every connection: a machine that is gone is seen
    for option, value in (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 4)):
        if hasattr(socket, option):
            listener.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
    try:
        listener.bind((http.host, http.port))
    except OSError as error:
        listener.close()
        raise StartError(f"cannot listen on {http.host}:{http.port}: {error.strerror or error}") from None
    listener.set_inheritable(True)
    return listener


class DrainingServer(uvicorn.Server):
    """Uvicorn's server, ended in steps: the first signal drains while new requests get 503, the second cuts what still
    runs, the third does not wait for anything."""

    def __init__(
        self, config: uvicorn.Config, service: Service, on_ready: Callable[[], None], reload: KeyReload
    ) -> None:
        super().__init__(config)
        self._service = service
        self._on_ready = on_ready
        self._reload = reload
        self._loop: asyncio.AbstractEventLoop | None = None
        self._num_signals = 0

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)
        if self.started:
            self._on_ready()
            self._reload.attach(self._service)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Signal handler of SIGINT and SIGTERM."""
        self._num_signals += 1
        if self._num_signals > 2 or self._loop is None:
            os._exit(128 + sig)
        self._loop.call_soon_threadsafe(self._drain if self._num_signals == 1 else self._cut, signal.Signals(sig).name)

    def _drain(self, name: str) -> None:
        running, deadline_s = self._service.bridge.num_running, self._service.settings.drain_s
        say(f"{name}: finishing {running} requests, at most {deadline_s:g} s; signal again to stop now")
        self._service.start_drain(deadline_s).add_done_callback(lambda _: setattr(self, "should_exit", True))

    def _cut(self, name: str) -> None:
        say(f"{name}: stopping now")
        self._service.bridge.cut()
        self.config.timeout_graceful_shutdown = 1
        self.should_exit = True
