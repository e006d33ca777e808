"""From the text of one answer to the deltas of a chat message: reasoning is split off, then tool calls are found."""

from __future__ import annotations

from collections.abc import Iterable

from .deltas import Delta
from .message_events import CallArguments, CallEnd, CallStart, Content, Event, Reasoning
from .reasoning.parser import ReasoningParser
from .tools.call_parser import CallParser


class MessageReader:
    """Reads one answer with the parsers that its request and model need; with none, all text is content."""

    def __init__(self, reasoning: ReasoningParser | None, calls: CallParser | None) -> None:
        self._reasoning = reasoning
        self._calls = calls

    @property
    def has_called(self) -> bool:
        """Whether a call is complete."""
        return self._calls is not None and self._calls.num_complete > 0

    @property
    def reasoning_end(self) -> int | None:
        """Characters of the text that the reasoning and its markers take; None while that is open."""
        return 0 if self._reasoning is None else self._reasoning.end_at

    def feed(self, text: str) -> list[Event]:
        """What the new text completes."""
        if not text:
            return []
        split = self._reasoning.feed(text) if self._reasoning is not None else [Content(text)]
        return [found for event in split for found in self._look_into(event)]

    def end(self) -> list[Event]:
        """What was held back, now that nothing follows."""
        events: list[Event] = []
        for event in self._reasoning.end() if self._reasoning is not None else ():
            events += self._look_into(event)
        if self._calls is not None:
            events += self._calls.end()
        return events

    def _look_into(self, event: Event) -> list[Event]:
        return self._calls.feed(event.text) if isinstance(event, Content) and self._calls is not None else [event]


class MessageParser:
    """What a reader finds, as the deltas of a chat message. A DeltaParser."""

    def __init__(self, reader: MessageReader, *, show_reasoning: bool = True) -> None:
        self._reader = reader
        self._show_reasoning = show_reasoning

    def feed(self, text: str) -> list[Delta]:
        """See DeltaParser."""
        return self._deltas(self._reader.feed(text))

    def end(self, finish_reason: str) -> tuple[list[Delta], str]:
        """See DeltaParser."""
        deltas = self._deltas(self._reader.end())
        return deltas, "tool_calls" if self._reader.has_called and finish_reason == "stop" else finish_reason

    def _deltas(self, events: Iterable[Event]) -> list[Delta]:
        deltas: list[Delta] = []
        for event in _merged(events):
            match event:
                case Content(text):
                    deltas.append({"content": text})
                case Reasoning(text) if self._show_reasoning:
                    deltas.append({"reasoning_content": text})
                case CallStart(index, id, name):
                    call = {"id": id, "type": "function", "function": {"name": name, "arguments": ""}}
                    deltas.append({"tool_calls": [{"index": index, **call}]})
                case CallArguments(index, text):
                    deltas.append({"tool_calls": [{"index": index, "function": {"arguments": text}}]})
                case _:
                    pass
        return deltas


def _merged(events: Iterable[Event]) -> list[Event]:
    """Neighbours of one kind as one."""
    merged: list[Event] = []
    for event in events:
        last = merged[-1] if merged else None
        match last, event:
            case Content(first), Content(second):
                merged[-1] = Content(first + second)
            case Reasoning(first), Reasoning(second):
                merged[-1] = Reasoning(first + second)
            case CallArguments(index, first), CallArguments(_, second):
                merged[-1] = CallArguments(index, first + second)
            case _, CallEnd():
                pass
            case _:
                merged.append(event)
    return merged
