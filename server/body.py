"""Request bodies: read within limits, parsed strictly, sifted by the field table, validated into a schema."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TypeVar, cast

from fastapi import Request
from pydantic import ValidationError
from pydantic_core import from_json

from ..kernels.errors import RequestError
from .errors import validation_error
from .http_metrics import HttpMetrics
from .schema.fields import sift
from .schema.sampling import Strict

SchemaT = TypeVar("SchemaT", bound=Strict)

_READ_TIMEOUT_S = 60.0  # between two pieces of a body; also how far it may fall behind the slowest rate
_SLOWEST = 16 * 1024  # bytes per second: a client that drips a body holds its memory for a bounded time


class BodyBudget:
    """Bytes of all bodies that have arrived and are not parsed yet. However many clients send, memory has a bound."""

    def __init__(self, num_bytes: int) -> None:
        self._free = num_bytes

    @property
    def free(self) -> int:
        """Bytes that are left."""
        return self._free

    def take(self, num_bytes: int) -> None:
        """RequestError 503 if that is more than there is."""
        if num_bytes > self._free:
            raise RequestError(
                "Too many large bodies arrive at once; try again",
                code="overloaded",
                status=503,
                kind="service_unavailable_error",
                retry_after=1,
            )
        self._free -= num_bytes

    def give_back(self, num_bytes: int) -> None:
        """The other half of `take`."""
        self._free += num_bytes


async def read_json(request: Request, max_bytes: int, budget: BodyBudget | None = None) -> dict[str, object]:
    """The body as a JSON object. RequestError 400, 408, 413, 415 or, beyond the budget, 503.

    The parser refuses NaN, broken UTF-8, lone surrogates, deep nesting and integers of thousands of digits.
    """
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json" and not media_type.endswith("+json"):
        raise RequestError(
            f"Content-Type must be application/json, not '{media_type[:80]}'", code="unsupported_media_type", status=415
        )
    coding = request.headers.get("content-encoding", "identity").strip().lower()
    if coding not in ("identity", ""):
        raise RequestError(
            f"Content-Encoding '{coding[:80]}' is not supported; send the body as it is",
            code="unsupported_media_type",
            status=415,
        )
    pieces: list[bytes] = []
    try:
        await _read(request, max_bytes, budget, pieces)
        value: object = from_json(b"".join(pieces), allow_inf_nan=False, cache_strings="keys")
    except ValueError as error:
        raise RequestError(f"The body is not valid JSON: {error}", code="invalid_json") from None
    finally:
        if budget is not None:
            budget.give_back(sum(map(len, pieces)))
    if not isinstance(value, dict):
        raise RequestError("The body must be a JSON object", code="invalid_json")
    return cast(dict[str, object], value)


async def _read(request: Request, max_bytes: int, budget: BodyBudget | None, pieces: list[bytes]) -> None:
    too_large = RequestError(f"The body is larger than {max_bytes} bytes", code="body_too_large", status=413)
    declared = request.headers.get("content-length", "0")
    if declared.isdecimal() and int(declared) > max_bytes:
        raise too_large
    size = 0
    stream = aiter(request.stream())
    clock = asyncio.get_running_loop().time
    latest = clock() + _READ_TIMEOUT_S
    while True:
        try:
            async with asyncio.timeout_at(min(clock() + _READ_TIMEOUT_S, latest + size / _SLOWEST)):
                piece = await anext(stream, None)
        except TimeoutError:
            raise RequestError(
                "The body did not arrive in time", code="timeout", status=408, kind="timeout_error"
            ) from None
        if piece is None:
            return
        size += len(piece)
        if size > max_bytes:
            raise too_large
        if budget is not None:
            budget.take(len(piece))
        pieces.append(piece)


def validated(schema: type[SchemaT], body: Mapping[str, object], metrics: HttpMetrics) -> SchemaT:
    """The body as a schema. RequestError 400 names what is refused or wrong; unknown names are counted."""
    for name in sift(body, schema.model_fields, schema.other_defaults):
        metrics.count_ignored(name)
    try:
        return schema.model_validate(body)
    except ValidationError as error:
        faults = error.errors(include_url=False, include_input=False)
        raise validation_error(faults, body=body) from None


def validated_exactly(schema: type[SchemaT], body: Mapping[str, object]) -> SchemaT:
    """The body of an administration call: unknown keys and wrong values are 422 and change nothing."""
    unknown = sorted(set(body) - set(schema.model_fields))
    if unknown:
        known = ", ".join(schema.model_fields)
        raise RequestError(
            f"Unknown key '{unknown[0][:80]}'; known: {known}",
            param=unknown[0][:80],
            code="unknown_parameter",
            status=422,
        )
    try:
        return schema.model_validate(body)
    except ValidationError as error:
        faults = error.errors(include_url=False, include_input=False)
        raise validation_error(faults, status=422, body=body) from None
