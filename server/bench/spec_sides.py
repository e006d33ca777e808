"""The sides of a comparison of speculation: one server with it off and on, and perhaps another server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

from .client import Target, Timing

OFF, ON = "off", "on"
Message = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Side:
    """A server in one state. `policy` None: another server, whose speculation is its own business."""

    label: str
    target: Target
    admin: Target | None = None
    policy: Mapping[str, Any] | None = None
    fields: Mapping[str, Any] = field(default_factory=dict[str, Any])  # of every request

    async def prepare(self, max_batch: int) -> None:
        """Puts the server into this state. Running streams would go on; raises BenchError where it refuses."""
        if self.admin is not None and self.policy is not None:
            body = dict(self.policy)
            if body.get("enabled"):
                body["max_batch"] = max_batch
            await self.admin.post_json("/admin/speculation", body, method="PATCH")

    async def ask(self, messages: Sequence[Message], max_tokens: int, salt: str) -> Timing:
        """Streams one answer. Requests of different salts share no cached prefix."""
        ours = self.policy is not None
        body: dict[str, Any] = {
            "messages": list(messages) if ours else salted(messages, salt),
            "max_tokens": max_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
            **self.fields,
        }
        if self.target.model is not None:
            body["model"] = self.target.model
        if ours:
            body |= {"return_token_ids": True, "speculation": {"report": True}, "cache_salt": salt, "min_tokens": 2}
        return await self.target.stream("/v1/chat/completions", body)


def salted(messages: Sequence[Message], salt: str) -> list[Message]:
    """For servers whose prefix cache knows no salts: a mark of its own before the first message."""
    first, *rest = messages
    return [{**first, "content": f"({crc32(salt.encode()) % 10_000}) {first['content']}"}, *rest]


async def served_model(target: Target) -> tuple[str | None, int | None]:
    """The first model that a server names, and its context if it says so."""
    models: list[dict[str, Any]] = (await target.get_json("/v1/models")).get("data") or [{}]
    return models[0].get("id"), models[0].get("max_model_len")


async def prefill_steps(side: Side) -> float | None:
    """Steps with prompt rows so far, by the server's own metrics; None where it has none."""
    if side.policy is None:
        return None
    return sum(
        sample.value
        for sample in await side.target.metrics()
        if sample.name == "surefoot_step_seconds_count" and sample.labels["kind"] in ("prefill", "mixed")
    )
