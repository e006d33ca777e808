"""API keys as the operator gives them, and files that hold them, so that no key has to stand on a command line, which
every user of the machine can read.

A file has one key per line; blank lines and lines that begin with # are skipped. After the key may come, in any order,
a name for the logs and the key's own limits:

    sk-4f1c9e...  alice  at-once=4  per-minute=120
"""

from __future__ import annotations

import os
import re
import stat
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..kernels.errors import ConfigError
from .limits import UNLIMITED, KeyLimits

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
_LIMIT = re.compile(r"(at-once|per-minute)=([1-9][0-9]{0,8})")
_MAX_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A key that clients may send. `name` is what logs call it. What `limits` leaves open is the server's."""

    secret: str = field(repr=False)
    name: str | None = None
    limits: KeyLimits = UNLIMITED


@dataclass(frozen=True, slots=True)
class ServerKeys:
    """All keys of a server, and what is to be said about where they were read from."""

    api: tuple[ApiKey, ...] = ()
    admin: str | None = field(default=None, repr=False)
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class KeySource:
    """What the four flags say of keys. Files are read at the start, and again when the operator asks for it."""

    api: Sequence[str] = field(default=(), repr=False)
    api_file: Path | None = None
    admin: Sequence[str] = field(default=(), repr=False)
    admin_file: Path | None = None

    @property
    def has_files(self) -> bool:
        """Whether reading again can give anything else."""
        return self.api_file is not None or self.admin_file is not None

    def read(self, again: bool = False) -> ServerKeys:
        """All keys. ConfigError for files that cannot be used and keys that contradict each other.

        At the start a file may be a pipe; `again`, it has to be one that does not let wait for it.
        """
        keys, warnings = [ApiKey(secret) for secret in self.api], list[str]()
        if self.api_file is not None:
            found, about = read_keys("--api-key-file", self.api_file, again)
            keys, warnings = keys + found, warnings + about
        admin_keys = list(self.admin)
        if self.admin_file is not None:
            found, about = read_keys("--admin-key-file", self.admin_file, again)
            admin_keys, warnings = admin_keys + [key.secret for key in found], warnings + about
        if len(admin_keys) > 1:
            raise ConfigError("there is one admin key: --admin-key or one line in --admin-key-file")
        secrets = [key.secret for key in keys]
        if len(set(secrets)) < len(secrets):
            raise ConfigError("an API key is given twice")
        if set(admin_keys) & set(secrets):
            raise ConfigError("the admin key is also an API key, so every client could administrate the server")
        return ServerKeys(tuple(keys), next(iter(admin_keys), None), tuple(warnings))


def read_keys(flag: str, path: Path, again: bool = False) -> tuple[list[ApiKey], list[str]]:
    """The keys of a file, and warnings about it. ConfigError names file and line, never what the line holds."""
    text, is_public = _read(flag, path, again)
    keys = [
        _parsed(f"{path}, line {number}", line.split())
        for number, line in enumerate(text.splitlines(), 1)
        if line.strip() and not line.lstrip().startswith("#")
    ]
    if not keys:
        raise ConfigError(f"{flag}: {path} holds no key")
    return keys, [f"{path} can be read by every user of this machine"] if is_public else []


def _read(flag: str, path: Path, again: bool) -> tuple[str, bool]:
    """A file's text, and whether everybody may read it."""
    try:
        with open(path, "rb", opener=_without_waiting if again else None) as file:
            mode = os.fstat(file.fileno()).st_mode
            if again and not stat.S_ISREG(mode):
                raise ConfigError(f"{flag}: {path} is not a regular file, so it cannot be read again")
            data = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{flag}: cannot read {path}: {error.strerror or error}") from None
    if len(data) > _MAX_BYTES:
        raise ConfigError(f"{flag}: {path} is larger than {_MAX_BYTES} bytes")
    try:
        return data.decode("utf-8-sig"), sys.platform != "win32" and bool(mode & stat.S_IROTH)
    except UnicodeDecodeError:
        raise ConfigError(f"{flag}: {path} is not UTF-8 text") from None


def _without_waiting(path: str, mode: int) -> int:
    return os.open(path, mode | getattr(os, "O_NONBLOCK", 0))


def _parsed(where: str, words: list[str]) -> ApiKey:
    name: str | None = None
    limits: dict[str, int] = {}
    for word in words[1:]:
        limit = _LIMIT.fullmatch(word)
        if limit is not None and limit[1] not in limits:
            limits[limit[1]] = int(limit[2])
        elif limit is None and name is None and _NAME.fullmatch(word):
            name = word
        else:
            raise ConfigError(f"{where}: expected KEY [NAME] [at-once=N] [per-minute=N]")
    return ApiKey(words[0], name, KeyLimits(limits.get("at-once"), limits.get("per-minute")))
