"""Items to the messages of a chat. A response's items are flat: what one assistant's message says, thinks and calls are
items of their own, which stand together until somebody else speaks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ...kernels.errors import RequestError
from ..schema.chat import Message
from ..schema.response_items import CallItem, CallOutputItem, Item, MessageItem, Part, ReasoningItem
from ..schema.tools import HistoryCall, HistoryFunction


def messages_of(instructions: str | None, items: Sequence[Item]) -> list[Message]:
    """The conversation. RequestError for an output whose call is not in it, and for a conversation of nothing."""
    messages = [] if instructions is None else [Message(role="system", content=instructions)]
    calls: set[str] = set()
    turn = _Turn()
    for item in items:
        if not turn.takes(item):
            messages += turn.message()
            turn = _Turn()
        match item:
            case CallOutputItem():
                if item.call_id not in calls:
                    raise _wrong(f"there is no call with call_id '{item.call_id[:80]}' before this output of it")
                messages.append(Message(role="tool", content=item.output, tool_call_id=item.call_id))
            case MessageItem() if item.role != "assistant":
                messages.append(Message(role=item.role, content=_content(item.content)))
            case _:
                turn.add(item)
                if isinstance(item, CallItem):
                    calls.add(item.call_id)
    messages += turn.message()
    if not messages:
        raise _wrong("there is nothing to respond to")
    return messages


def _content(parts: Sequence[Part]) -> str | list[Part]:
    return parts[0]["text"] if len(parts) == 1 else list(parts)


def _wrong(problem: str) -> RequestError:
    return RequestError(f"input: {problem}", param="input", code="invalid_value")


@dataclass(slots=True)
class _Turn:
    """One message of the assistant, as its items come: reasoning, then text, then calls, with text behind them too."""

    reasoning: str | None = None
    content: str | None = None
    calls: list[HistoryCall] = field(default_factory=list[HistoryCall])

    def takes(self, item: Item) -> bool:
        """Whether the item belongs to the message; of one that has no item yet, anything does."""
        match item:
            case ReasoningItem():
                return self.content is None and not self.calls
            case MessageItem(role="assistant"):
                return self.content is None or bool(self.calls)
            case CallItem():
                return True
            case _:
                return False

    def add(self, item: Item) -> None:
        """Adds one of the assistant's items."""
        match item:
            case ReasoningItem():
                self.reasoning = (self.reasoning or "") + item.text()
            case MessageItem():
                self.content = (self.content or "") + "\n".join(part["text"] for part in item.content)
            case CallItem():
                function = HistoryFunction(name=item.name, arguments=item.arguments)
                self.calls.append(HistoryCall(id=item.call_id, function=function))
            case CallOutputItem():
                raise AssertionError("an output is not the assistant's")

    def message(self) -> list[Message]:
        """The message, if there is one."""
        if self.reasoning is None and self.content is None and not self.calls:
            return []
        content = "" if self.content is None and not self.calls else self.content
        reasoning = self.reasoning or None
        return [Message(role="assistant", content=content, reasoning_content=reasoning, tool_calls=self.calls or None)]
