"""What the process logs, as lines for people or as one JSON object a line. Knows nothing of what is logged.

An object has `time`, `level`, `logger` and `message`; the fields that its line was given (`extra=fields(...)`); the
`request_id` of the request that is being answered where it is written; and `exception`, if there was one. It is ASCII,
and valid whatever a message holds.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import sys
import threading
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, cast

from .visit import current_visit

TEXT, JSON = "text", "json"
FLAG, VARIABLE = "--log-format", "SUREFOOT_LOG_FORMAT"

_CONTROLS = {code: repr(chr(code))[1:-1] for code in (*range(9), *range(10, 32), *range(127, 160), 0x2028, 0x2029)}
_log = logging.getLogger("surefoot.server")


def asked_format(arguments: Sequence[str], environment: Mapping[str, str]) -> str:
    """What the command line says, before anybody has checked it: what is wrong with it is said in that format too."""
    asked = environment.get(VARIABLE) or TEXT
    for number, argument in enumerate(arguments):
        name, given, value = argument.partition("=")
        if name == FLAG:
            asked = value if given else "".join(arguments[number + 1 : number + 2])
    return asked


def begin_logs(log_format: str) -> None:
    """Everything that is logged from now on goes to stderr in this format."""
    if log_format == JSON:
        logging.basicConfig(level=logging.INFO, handlers=[JsonLines()], force=True)
        logging.captureWarnings(True)
        sys.excepthook = _log_crash
        threading.excepthook = _log_thread_crash
    else:
        handler = logging.StreamHandler()
        handler.setFormatter(LineFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        logging.basicConfig(level=logging.INFO, handlers=[handler])


def writes_json() -> bool:
    """Whether stderr is JSON, so that nothing else may be written there."""
    return any(isinstance(handler, JsonLines) for handler in logging.getLogger().handlers)


class LineFormatter(logging.Formatter):
    """A record as a line, behind which its trace may follow. What a message holds cannot pass for another line, nor
    tell a terminal what to do."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        return super().formatMessage(record).translate(_CONTROLS)


class JsonLines(logging.StreamHandler[Any]):
    """One object a line, on stderr."""

    def __init__(self, stream: Any = None) -> None:
        super().__init__(stream)
        self.setFormatter(JsonFormatter())

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        """A line that could not be written as it was meant: its format does not fit its values, or nobody reads."""
        fault = sys.exc_info()[1]
        if isinstance(fault, OSError):
            return
        words = record.msg if isinstance(record.msg, str) else type(record.msg).__name__
        text = f"a line could not be logged ({type(fault).__name__}): {words}"
        with contextlib.suppress(OSError):
            self.stream.write(_line(record, {"message": text}) + self.terminator)
            self.flush()


class JsonFormatter(logging.Formatter):
    """A record as JSON."""

    def format(self, record: logging.LogRecord) -> str:
        given = getattr(record, "fields", {})
        visit = current_visit()
        values = {"message": record.getMessage(), **given}
        if visit is not None:
            values.setdefault("request_id", visit.request_id)
        if record.exc_info:
            values["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            values["stack"] = self.formatStack(record.stack_info)
        return _line(record, values)


def _line(record: logging.LogRecord, values: Mapping[str, object]) -> str:
    at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    head = {"time": at, "level": record.levelname, "logger": record.name}
    return json.dumps(_plain({**head, **values}), allow_nan=False)


def _plain(value: object) -> object:
    """What JSON can hold, everywhere: no lone surrogates, which some readers refuse, and no NaN."""
    if isinstance(value, bool | int | None):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {str(_plain(str(key))): _plain(item) for key, item in cast("Mapping[object, object]", value).items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in cast("Sequence[object]", value)]
    return str(value).encode("utf-8", "backslashreplace").decode()


def _log_crash(kind: type[BaseException], fault: BaseException, trace: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):
        return
    _log.critical("the process ends: %s", kind.__name__, exc_info=(kind, fault, trace))


def _log_thread_crash(crash: threading.ExceptHookArgs) -> None:
    name = "?" if crash.thread is None else crash.thread.name
    value = crash.exc_value or crash.exc_type()
    _log.critical("the thread %s has ended: %s", name, crash.exc_type.__name__, exc_info=value)
