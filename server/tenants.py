"""Who sends a request: API keys, their limits, and the prefix-cache salt that keeps one key's prompts from being timed
by another. Keeps digests, not keys."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from fastapi import Request

from ..kernels.errors import RequestError
from .api_keys import ApiKey
from .limits import UNLIMITED, Allowance, KeyLimits
from .visit import NOBODY, current_visit

_SALT_BYTES = 16
_READING = ("GET", "HEAD", "OPTIONS", "DELETE")  # cost nothing worth a limit


@dataclass(frozen=True, slots=True)
class Tenant:
    """The holder of an API key. Without keys there is one tenant."""

    name: str
    salt: bytes = field(repr=False)
    allowance: Allowance = field(default_factory=lambda: Allowance(UNLIMITED), repr=False, compare=False)

    def cache_salt(self, extra: str | None) -> bytes:
        """The salt of a request's blocks; `extra` is the request's own `cache_salt`."""
        return self.salt if extra is None else _derived(self.salt, extra.encode())


def _derived(key: bytes, message: bytes) -> bytes:
    return hmac.new(key, message, hashlib.sha256).digest()[:_SALT_BYTES]


@dataclass(frozen=True, slots=True)
class Keyring:
    """Whom a gate lets in, by digests."""

    tenants: Mapping[bytes, Tenant] = field(repr=False)
    admin: bytes | None = field(repr=False)


class Gate:
    """Checks keys: the digest of what was sent against the digest of every key, each in constant time, so that neither
    order nor length nor prefix leaks."""

    def __init__(self, api_keys: Sequence[str | ApiKey], admin_key: str | None, limits: KeyLimits = UNLIMITED) -> None:
        self._pepper = secrets.token_bytes(32)
        self._limits = limits
        self._ring = self.ring(api_keys, admin_key)
        self._anyone = Tenant(NOBODY, _derived(b"", b"prefix cache"), Allowance(limits))

    def _digest(self, key: bytes) -> bytes:
        return hmac.new(self._pepper, key, hashlib.sha256).digest()

    def ring(self, api_keys: Sequence[str | ApiKey], admin_key: str | None) -> Keyring:
        """These keys, for `change`. Any thread may make it, and thousands of keys take a while."""
        keys = [ApiKey(key) if isinstance(key, str) else key for key in api_keys]
        tenants = {self._digest(key.secret.encode()): _tenant(key, self._limits) for key in keys}
        return Keyring(tenants, None if admin_key is None else self._digest(admin_key.encode()))

    def change(self, ring: Keyring) -> str:
        """Other keys from now on. Says what is different.

        A key that stays keeps what it has used of its limits, also where these have changed. Requests of one that is
        gone have been let in and are finished.
        """
        before, self._ring = self._ring, Keyring(_continued(self._ring.tenants, ring.tenants), ring.admin)
        added, removed = ring.tenants.keys() - before.tenants.keys(), before.tenants.keys() - ring.tenants.keys()
        admin = "as before" if ring.admin == before.admin else "changed"
        return f"API keys: {len(ring.tenants)} ({len(added)} new, {len(removed)} removed); admin key: {admin}"

    @property
    def salts(self) -> Collection[bytes]:
        """Of all tenants."""
        return frozenset(tenant.salt for tenant in self._ring.tenants.values()) or (self._anyone.salt,)

    @property
    def is_open(self) -> bool:
        """Whether anybody may use and administrate the server."""
        return not self._ring.tenants and self._ring.admin is None

    def tenant(self, request: Request) -> Tenant:
        """The request's tenant. RequestError 401 without a valid key; 429 for work beyond the key's limits."""
        tenant = self._known(request)
        visit = current_visit()
        if visit is not None:
            visit.identify(tenant.name, tenant.allowance, request.method not in _READING)
        return tenant

    def _known(self, request: Request) -> Tenant:
        if not self._ring.tenants:
            return self._anyone
        sent, found = _bearer(request), None
        digest = self._digest(sent)
        for key, tenant in self._ring.tenants.items():
            if hmac.compare_digest(key, digest):
                found = tenant
        if found is None:
            raise _unauthorized(sent, "API")
        return found

    def admin(self, request: Request) -> None:
        """RequestError unless the request may administrate: with the admin key, or on a server without any keys."""
        if self._ring.admin is None:
            if self._ring.tenants:
                raise RequestError(
                    "Administration is off: the server was started without --admin-key",
                    code="admin_disabled",
                    status=403,
                    kind="permission_error",
                )
            return
        sent = _bearer(request)
        if not hmac.compare_digest(self._ring.admin, self._digest(sent)):
            raise _unauthorized(sent, "admin")


def _continued(before: Mapping[bytes, Tenant], now: Mapping[bytes, Tenant]) -> dict[bytes, Tenant]:
    """The tenants of now, with the allowances that they had before."""
    tenants = dict(now)
    for digest in before.keys() & now.keys():
        allowance = before[digest].allowance
        allowance.change(now[digest].allowance.limits)
        tenants[digest] = replace(now[digest], allowance=allowance)
    return tenants


def _tenant(key: ApiKey, limits: KeyLimits) -> Tenant:
    secret = key.secret.encode()
    name = key.name or f"key-{_derived(secret, b'name').hex()[:8]}"
    return Tenant(name, _derived(secret, b"prefix cache"), Allowance(key.limits.within(limits)))


def _bearer(request: Request) -> bytes:
    scheme, _, key = request.headers.get("authorization", "").partition(" ")
    return key.strip().encode("latin-1") if scheme.lower() == "bearer" else b""


def _unauthorized(sent: bytes, name: str) -> RequestError:
    text = (
        f"Incorrect {name} key provided" if sent else f"No {name} key provided; send it as 'Authorization: Bearer KEY'"
    )
    return RequestError(text, code="invalid_api_key", status=401, kind="authentication_error")
