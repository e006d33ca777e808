"""SIGHUP: files of keys are read again. What they hold is in force then, or nothing changes and the log says why."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType

from ..kernels.errors import ConfigError
from .api_keys import KeySource, ServerKeys
from .service import Service
from .tenants import Keyring

_log = logging.getLogger("surefoot.server")


class KeyReload:
    """What becomes of the signals. One that comes before there is a service counts when it is there; those that come
    while files are being read have them read once more."""

    def __init__(self, source: KeySource) -> None:
        self._source = source
        self._is_asked = False
        self._service: Service | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None

    @contextmanager
    def on_hangup(self) -> Generator[None]:
        """SIGHUP asks for it within the block. A server without such files that a terminal has started ends with the
        terminal, as everything does there."""
        if not hasattr(signal, "SIGHUP") or (os.isatty(0) and not self._source.has_files):
            yield
            return
        before = signal.signal(signal.SIGHUP, self._hang_up)
        try:
            yield
        finally:
            signal.signal(signal.SIGHUP, before)

    def attach(self, service: Service) -> None:
        """Called on the running loop, once the service is up."""
        self._service, self._loop = service, asyncio.get_running_loop()
        if self._is_asked:
            self._begin()

    def _hang_up(self, sig: int, frame: FrameType | None) -> None:
        self._is_asked = True
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._begin)

    def _begin(self) -> None:
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._reload())

    async def _reload(self) -> None:
        service = self._service
        assert service is not None, "attached"
        while self._is_asked:
            self._is_asked = False
            if not self._source.has_files:
                _log.warning("SIGHUP: there is nothing to read again without --api-key-file or --admin-key-file")
                continue
            try:
                given, ring = await asyncio.to_thread(self._read, service)
            except ConfigError as error:
                _log.error("SIGHUP: all keys stay as they are: %s", error)
                continue
            for warning in given.warnings:
                _log.warning("SIGHUP: %s", warning)
            _log.info("SIGHUP: keys were read again: %s", service.change_keys(ring))

    def _read(self, service: Service) -> tuple[ServerKeys, Keyring]:
        given = self._source.read(again=True)
        return given, service.gate.ring(given.api, given.admin)
