"""From generated text to the deltas of a chat message. A dialect of tool calls or reasoning is another parser beside
this one, in a file of its own; any split of the text into steps must give the same message.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

Delta = dict[str, object]


class DeltaParser(Protocol):
    """Reads the text of one choice as it grows."""

    def feed(self, text: str) -> list[Delta]:
        """Deltas that the new text completes; what may still become something else is held back."""
        ...

    def end(self, finish_reason: str) -> tuple[list[Delta], str]:
        """What was held back, now that nothing follows, and the reason to report ('tool_calls' after a call)."""
        ...


class PlainText:
    """All text is content."""

    def feed(self, text: str) -> list[Delta]:
        """See DeltaParser."""
        return [{"content": text}] if text else []

    def end(self, finish_reason: str) -> tuple[list[Delta], str]:
        """See DeltaParser."""
        return [], finish_reason


def merge_delta(message: dict[str, Any], delta: Mapping[str, Any]) -> None:
    """Adds a delta to the message that a whole answer carries."""
    for name, value in delta.items():
        if name == "tool_calls":
            calls = message.setdefault(name, [])
            for part in value:
                _merge_call(calls, part)
        elif name != "role" and value is not None:
            message[name] = (message.get(name) or "") + value


def _merge_call(calls: list[dict[str, Any]], part: Mapping[str, Any]) -> None:
    """A call's first part has its id and name, the others only more of its arguments."""
    if part["index"] == len(calls):
        function = dict(part["function"])
        calls.append({"id": part["id"], "type": part["type"], "function": function})
    else:
        calls[part["index"]]["function"]["arguments"] += part["function"]["arguments"]
