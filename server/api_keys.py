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


def server_keys(api: Sequence[str], api_file: Path | None, admin: Sequence[str], admin_file: Path | None) -> ServerKeys:
    """Everything the four flags say. ConfigError for files that cannot be used and keys that contradict each other."""
    keys, warnings = [ApiKey(secret) for secret in api], list[str]()
    if api_file is not None:
        found, about = read_keys("--api-key-file", api_file)
        keys, warnings = keys + found, warnings + about
    admin_keys = list(admin)
    if admin_file is not None:
        found, about = read_keys("--admin-key-file", admin_file)
        admin_keys, warnings = admin_keys + [key.secret for key in found], warnings + about
    if len(admin_keys) > 1:
        raise ConfigError("there is one admin key: --admin-key or one line in --admin-key-file")
    secrets = [key.secret for key in keys]
    if len(set(secrets)) < len(secrets):
        raise ConfigError("an API key is given twice")
    if set(admin_keys) & set(secrets):
        raise ConfigError("the admin key is also an API key, so every client could administrate the server")
    return ServerKeys(tuple(keys), next(iter(admin_keys), None), tuple(warnings))


def read_keys(flag: str, path: Path) -> tuple[list[ApiKey], list[str]]:
    """The keys of a file, and warnings about it. ConfigError names file and line, never what the line holds."""
    lines = _read(flag, path).splitlines()
    keys = [
        _parsed(f"{path}, line {number}", line.split())
        for number, line in enumerate(lines, 1)
        if line.strip() and not line.lstrip().startswith("#")
    ]
    if not keys:
        raise ConfigError(f"{flag}: {path} holds no key")
    return keys, [f"{path} can be read by every user of this machine"] if _is_public(path) else []


def _read(flag: str, path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{flag}: cannot read {path}: {error.strerror or error}") from None
    if len(data) > _MAX_BYTES:
        raise ConfigError(f"{flag}: {path} is larger than {_MAX_BYTES} bytes")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise ConfigError(f"{flag}: {path} is not UTF-8 text") from None


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


def _is_public(path: Path) -> bool:
    return sys.platform != "win32" and bool(os.stat(path).st_mode & stat.S_IROTH)
