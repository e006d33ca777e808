"""What the operator, and a request, ask of speculation. Values only; what comes of them is decided elsewhere.

A policy is replaced as a whole, between steps; `generation` counts the replacements.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

from ...kernels.errors import ConfigError, RequestError
from .contract import MAX_WINDOW, Capabilities, Verdict

DEFAULT_WINDOW = 8  # the exact window of governors that do not choose one themselves


@dataclass(frozen=True, slots=True)
class SpeculationPolicy:
    """The process's policy. draft_tokens: a ceiling where the governor chooses windows, the exact window elsewhere,
    0 plain decoding, None automatic. min_confidence None: the algorithm's own default."""

    enabled: bool = True
    type: str = "auto"
    draft_tokens: int | None = None
    min_confidence: float | None = None
    governor: str = "cost"
    max_batch: int = 1  # requests that may run, and speculate, at the same time
    generation: int = 0

    def as_dict(self) -> dict[str, object]:
        """The body of GET /admin/speculation's policy."""
        return {
            "enabled": self.enabled,
            "type": self.type,
            "draft_tokens": self.draft_tokens,
            "min_confidence": self.min_confidence,
            "governor": self.governor,
            "max_batch": self.max_batch,
            "generation": self.generation,
        }


DEFAULT_POLICY = SpeculationPolicy()


@dataclass(frozen=True, slots=True)
class RequestSpeculation:
    """A request's own wishes: it can only narrow what the operator allows. `report`: return what speculation did."""

    enabled: bool = True
    draft_tokens: int | None = None
    report: bool = False


NO_WISHES = RequestSpeculation()


def patched(
    policy: SpeculationPolicy, body: object, types: Collection[str], governors: Collection[str]
) -> SpeculationPolicy:
    """The policy after PATCH /admin/speculation. Raises RequestError 422 for anything unknown or malformed; then
    nothing has changed. An empty body changes nothing and is not an error."""
    changes = _fields(body, _POLICY_CHECKS, status=422, where="")
    for key, known in (("type", types), ("governor", governors)):
        if key in changes and changes[key] not in known:
            raise _refusal(key, f"unknown {key} {changes[key]!r}; known: {', '.join(known)}", 422)
    return replace(policy, **changes, generation=policy.generation + 1) if changes else policy


def check_policy(policy: SpeculationPolicy, types: Collection[str], governors: Collection[str]) -> None:
    """Raises ConfigError, naming what is known, for a policy that could not be put in force."""
    for key, value, known in (("type", policy.type, types), ("governor", policy.governor, governors)):
        if value not in known:
            raise ConfigError(f"unknown speculation {key} {value!r}; known: {', '.join(known)}")
    for key, (check, expected) in _POLICY_CHECKS.items():
        if not check(getattr(policy, key)):
            raise ConfigError(f"speculation: {key} must be {expected}, not {getattr(policy, key)!r}")


def request_speculation(body: object) -> RequestSpeculation:
    """The `speculation` field of a request. Raises RequestError 400."""
    if body is None:
        return NO_WISHES
    return RequestSpeculation(**_fields(body, _REQUEST_CHECKS, status=400, where="speculation"))


def window(
    policy: SpeculationPolicy,
    wishes: RequestSpeculation,
    capabilities: Capabilities,
    verdict: Verdict,
    adaptive: bool,
) -> int:
    """How many tokens may be drafted in a step. A target's preference narrows the default, never an explicit number."""
    tokens = policy.draft_tokens
    if tokens is None:
        tokens = capabilities.max_draft_tokens if adaptive else DEFAULT_WINDOW
        if verdict.preferred_window is not None:
            tokens = min(tokens, verdict.preferred_window)
        if wishes.draft_tokens is not None:
            tokens = wishes.draft_tokens
    elif wishes.draft_tokens is not None:
        tokens = min(tokens, wishes.draft_tokens)
    return min(tokens, capabilities.max_draft_tokens)


def min_confidence(policy: SpeculationPolicy, capabilities: Capabilities) -> float:
    """The gate of an algorithm under this policy."""
    return capabilities.default_min_confidence if policy.min_confidence is None else policy.min_confidence


def _is_bool(value: Any) -> bool:
    return isinstance(value, bool)


def _is_string(value: Any) -> bool:
    return isinstance(value, str)


def _is_window(value: Any) -> bool:
    return value is None or (isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_WINDOW)


def _is_share(value: Any) -> bool:
    return value is None or (isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= 1)


def _is_batch(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


_TRUTH = (_is_bool, "true or false")
_WINDOW = (_is_window, f"an integer from 0 to {MAX_WINDOW}, or null")
_POLICY_CHECKS = {
    "enabled": _TRUTH,
    "type": (_is_string, "a string"),
    "draft_tokens": _WINDOW,
    "min_confidence": (_is_share, "a number from 0 to 1, or null"),
    "governor": (_is_string, "a string"),
    "max_batch": (_is_batch, "an integer of at least 1"),
}
_REQUEST_CHECKS = {"enabled": _TRUTH, "draft_tokens": _WINDOW, "report": _TRUTH}


def _fields(body: object, checks: Mapping[str, tuple[Any, str]], status: int, where: str) -> dict[str, Any]:
    """The body's fields, all of them known and well formed."""
    if not isinstance(body, Mapping):
        raise _refusal(where or None, "an object is expected", status)
    fields = cast("Mapping[Any, Any]", body)
    for key, value in fields.items():
        name = f"{where}.{key}" if where else str(key)
        if key not in checks:
            raise _refusal(name, f"unknown setting {name!r}; known: {', '.join(checks)}", status)
        check, expected = checks[key]
        if not check(value):
            raise _refusal(name, f"{name} must be {expected}", status)
    return dict(fields)


def _refusal(param: str | None, message: str, status: int) -> RequestError:
    return RequestError(message, param=param, code="invalid_setting", status=status)
