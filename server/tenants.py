"""Who sends a request: API keys, their limits, and the prefix-cache salt that keeps one key's prompts from being timed
by another. Keeps digests, not keys."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field

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


class Gate:
    """Checks keys: the digest of what was sent against the digest of every key, each in constant time, so that neither
    order nor length nor prefix leaks."""

    def __init__(self, api_keys: Sequence[str | ApiKey], admin_key: str | None, limits: KeyLimits = UNLIMITED) -> None:
        self._pepper = secrets.token_bytes(32)
        keys = [ApiKey(key) if isinstance(key, str) else key for key in api_keys]
        self._tenants = {self._digest(key.secret.encode()): _tenant(key, limits) for key in keys}
        self._admin = None if admin_key is None else self._digest(admin_key.encode())
        self._anyone = Tenant(NOBODY, _derived(b"", b"prefix cache"), Allowance(limits))

    def _digest(self, key: bytes) -> bytes:
        return hmac.new(self._pepper, key, hashlib.sha256).digest()

    @property
    def is_open(self) -> bool:
        """Whether anybody may use and administrate the server."""
        return not self._tenants and self._admin is None

    def tenant(self, request: Request) -> Tenant:
        """The request's tenant. RequestError 401 without a valid key; 429 for work beyond the key's limits."""
        tenant = self._known(request)
        visit = current_visit()
        if visit is not None:
            visit.identify(tenant.name, tenant.allowance, request.method not in _READING)
        return tenant

    def _known(self, request: Request) -> Tenant:
        if not self._tenants:
            return self._anyone
        sent, found = _bearer(request), None
        digest = self._digest(sent)
        for key, tenant in self._tenants.items():
            if hmac.compare_digest(key, digest):
                found = tenant
        if found is None:
            raise _unauthorized(sent, "API")
        return found

    def admin(self, request: Request) -> None:
        """RequestError unless the request may administrate: with the admin key, or on a server without any keys."""
        if self._admin is None:
            if self._tenants:
                raise RequestError(
                    "Administration is off: the server was started without --admin-key",
                    code="admin_disabled",
                    status=403,
                    kind="permission_error",
                )
            return
        sent = _bearer(request)
        if not hmac.compare_digest(self._admin, self._digest(sent)):
            raise _unauthorized(sent, "admin")


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
