"""The output items of a response as they grow, and the events that tell of every step. Numbers no events."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Any

from ..message_events import CallArguments, CallEnd, CallStart, Content, Event, Reasoning

Json = dict[str, Any]


def item_id(prefix: str) -> str:
    """The id of an item."""
    return f"{prefix}_{secrets.token_hex(24)}"


def _status(cut: bool) -> str:
    return "incomplete" if cut else "completed"


@dataclass(frozen=True, slots=True)
class _TextKind:
    """What the items that hold one text differ in."""

    prefix: str  # of ids
    event: str  # name of the events about the text
    item: Json
    part: Json
    has_logprobs: bool
    takes: type[Content] | type[Reasoning]


_MESSAGE = _TextKind(
    "msg",
    "response.output_text",
    {"type": "message", "role": "assistant"},
    {"type": "output_text", "annotations": []},
    True,
    Content,
)
_REASONING = _TextKind(
    "rs", "response.reasoning_text", {"type": "reasoning", "summary": []}, {"type": "reasoning_text"}, False, Reasoning
)


class _TextItem:
    """A message or the reasoning: an item with one part, a text."""

    is_complete = False  # only what follows ends it

    def __init__(self, kind: _TextKind, index: int) -> None:
        self._kind = kind
        self._index = index
        self._id = item_id(kind.prefix)
        self._text = ""
        self._logprobs: list[Json] = []

    def begin(self) -> list[Json]:
        """The first events."""
        item: Json = {"id": self._id, **self._kind.item, "status": "in_progress", "content": []}
        return [
            {"type": "response.output_item.added", "output_index": self._index, "item": item},
            {"type": "response.content_part.added", **self._place(), "part": self._part()},
        ]

    def takes(self, event: Event) -> bool:
        """Whether the event belongs to the item, rather than ends it."""
        return isinstance(event, self._kind.takes)

    def add(self, event: Event, logprobs: list[Json]) -> list[Json]:
        """Events for what is new."""
        assert isinstance(event, self._kind.takes)
        self._text += event.text
        self._logprobs += logprobs
        name = f"{self._kind.event}.delta"
        return [{"type": name, **self._place(), "delta": event.text, **self._judged(logprobs)}]

    def end(self, cut: bool) -> list[Json]:
        """The last events."""
        name = f"{self._kind.event}.done"
        return [
            {"type": name, **self._place(), "text": self._text, **self._judged(self._logprobs)},
            {"type": "response.content_part.done", **self._place(), "part": self._part()},
            {"type": "response.output_item.done", "output_index": self._index, "item": self.body(cut)},
        ]

    def body(self, cut: bool) -> Json:
        """The item as far as it has come."""
        return {"id": self._id, **self._kind.item, "status": _status(cut), "content": [self._part()]}

    def _place(self) -> Json:
        return {"item_id": self._id, "output_index": self._index, "content_index": 0}

    def _part(self) -> Json:
        return {**self._kind.part, "text": self._text, **self._judged(self._logprobs)}

    def _judged(self, logprobs: list[Json]) -> Json:
        return {"logprobs": list(logprobs)} if self._kind.has_logprobs else {}


class _CallItem:
    """A call."""

    def __init__(self, start: CallStart, index: int) -> None:
        self._start = start
        self._index = index
        self._id = item_id("fc")
        self._arguments = ""
        self.is_complete = False

    def begin(self) -> list[Json]:
        """The first events."""
        item = {**self.body(cut=False), "status": "in_progress"}
        return [{"type": "response.output_item.added", "output_index": self._index, "item": item}]

    def takes(self, event: Event) -> bool:
        """Whether the event belongs to the item, rather than ends it."""
        return isinstance(event, CallArguments | CallEnd) and event.index == self._start.index

    def add(self, event: Event, logprobs: list[Json]) -> list[Json]:
        """Events for what is new."""
        if isinstance(event, CallEnd):
            self.is_complete = True
            return []
        assert isinstance(event, CallArguments)
        self._arguments += event.text
        return [{"type": "response.function_call_arguments.delta", **self._place(), "delta": event.text}]

    def end(self, cut: bool) -> list[Json]:
        """The last events."""
        name = "response.function_call_arguments.done"
        return [
            {"type": name, **self._place(), "name": self._start.name, "arguments": self._arguments},
            {"type": "response.output_item.done", "output_index": self._index, "item": self.body(cut)},
        ]

    def body(self, cut: bool) -> Json:
        """The item as far as it has come. Whatever else the answer is, a call that is not complete is not."""
        return {
            "id": self._id,
            "type": "function_call",
            "call_id": self._start.id,
            "name": self._start.name,
            "arguments": self._arguments,
            "status": _status(cut or not self.is_complete),
        }

    def _place(self) -> Json:
        return {"item_id": self._id, "output_index": self._index}


class OutputItems:
    """The items of one response, of which the last may be open."""

    def __init__(self) -> None:
        self._ended: list[Json] = []
        self._open: _TextItem | _CallItem | None = None

    def add(self, event: Event, logprobs: list[Json]) -> list[Json]:
        """What follows from a piece of the answer."""
        events: list[Json] = []
        if self._open is None or not self._open.takes(event):
            events += self._end_open(cut=False)
            if isinstance(event, CallEnd):
                return events
            self._open = self._item(event)
            events += self._open.begin()
        if not isinstance(event, CallStart):
            events += self._open.add(event, logprobs)
        if self._open.is_complete:
            events += self._end_open(cut=False)
        return events

    def end(self, *, cut: bool) -> list[Json]:
        """What follows from the answer's end. An answer of nothing is an empty message."""
        events: list[Json] = []
        if self._open is None and not self._ended:
            self._open = self._item(Content(""))
            events += self._open.begin()
        return events + self._end_open(cut=cut)

    def bodies(self) -> list[Json]:
        """All items, the open one as far as it has come."""
        return self._ended if self._open is None else [*self._ended, self._open.body(cut=True)]

    def _item(self, event: Event) -> _TextItem | _CallItem:
        index = len(self._ended)
        match event:
            case CallStart():
                return _CallItem(event, index)
            case Content():
                return _TextItem(_MESSAGE, index)
            case Reasoning():
                return _TextItem(_REASONING, index)
            case _:
                raise AssertionError(f"{event} belongs to a call that is not open")

    def _end_open(self, *, cut: bool) -> list[Json]:
        if self._open is None:
            return []
        events = self._open.end(cut)
        self._ended.append(self._open.body(cut))
        self._open = None
        return events
