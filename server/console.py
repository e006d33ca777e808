"""What the process says to people, on streams that may be gone or full: neither stops a server."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import sys

from .logs import writes_json

_PREFIXES = {logging.WARNING: "surefoot: warning: ", logging.ERROR: "surefoot: "}
_log = logging.getLogger("surefoot.server")


def say(text: str, level: int = logging.INFO) -> None:
    """Lines on stderr, or nowhere. Where a log of JSON goes there, they are part of it."""
    if writes_json():
        for line in text.splitlines():
            _log.log(level, "%s", line.strip())
        return
    with contextlib.suppress(OSError):
        print(_PREFIXES.get(level, "") + text, file=sys.stderr, flush=True)


def unwritable(error: OSError) -> str | None:
    """Why a command could not write its output; "" where its reader had enough. None: the error is another one."""
    if error.errno not in (errno.EPIPE, errno.ENOSPC):
        return None
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what is still buffered is written when the process ends
    return "" if error.errno == errno.EPIPE else f"cannot write: {error.strerror}"
