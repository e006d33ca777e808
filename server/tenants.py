"""Who sends a request: API keys, and the prefix-cache salt that keeps one key's prompts from being timed by another."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from dataclasses import dataclass

from fastapi import Request

from ..kernels.errors import RequestError

_SALT_BYTES = 16


@dataclass(frozen=True, slots=True)
class Tenant:
    """The holder of an API key. Without keys there is one tenant."""

    salt: bytes

    def cache_salt(self, extra: str | None) -> bytes:
        """The salt of a request's blocks; `extra` is the request's own `cache_salt`."""
        return self.salt if extra is None else _derived(self.salt, extra.encode())


def _derived(key: bytes, message: bytes) -> bytes:
    return hmac.new(key, message, hashlib.sha256).digest()[:_SALT_BYTES]


class Gate:
    """Checks keys. Compares with every key and in constant time, so neither order nor prefix leaks."""

    def __init__(self, api_keys: Sequence[str], admin_key: str | None) -> None:
        self._tenants = {key.encode(): Tenant(_derived(key.encode(), b"prefix cache")) for key in api_keys}
        self._admin_key = None if admin_key is None else admin_key.encode()
        self._anyone = Tenant(_derived(b"", b"prefix cache"))

    def tenant(self, request: Request) -> Tenant:
        """The request's tenant; RequestError 401 without a valid key."""
        if not self._tenants:
            return self._anyone
        sent, found = _bearer(request), None
        for key, tenant in self._tenants.items():
            if hmac.compare_digest(key, sent):
                found = tenant
        if found is None:
            raise _unauthorized(sent, "API")
        return found

    def admin(self, request: Request) -> None:
        """RequestError unless the request may administrate: with the admin key, or on a server without any keys."""
        if self._admin_key is None:
            if self._tenants:
                raise RequestError(
                    "Administration is off: the server was started without --admin-key",
                    code="admin_disabled",
                    status=403,
                    kind="permission_error",
                )
            return
        sent = _bearer(request)
        if not hmac.compare_digest(self._admin_key, sent):
            raise _unauthorized(sent, "admin")


def _bearer(request: Request) -> bytes:
    scheme, _, key = request.headers.get("authorization", "").partition(" ")
    return key.strip().encode("latin-1") if scheme.lower() == "bearer" else b""


def _unauthorized(sent: bytes, name: str) -> RequestError:
    text = (
        f"Incorrect {name} key provided" if sent else f"No {name} key provided; send it as 'Authorization: Bearer KEY'"
    )
    return RequestError(text, code="invalid_api_key", status=401, kind="authentication_error")
