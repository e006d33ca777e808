"""Input items of `POST /v1/responses`: what a client sends, and what the store keeps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, cast

from pydantic import BeforeValidator, Discriminator, Field, Tag, field_validator
from pydantic_core import PydanticCustomError

from .sampling import Strict

ItemId = Annotated[str, Field(min_length=1, max_length=256)]
Status = Literal["in_progress", "completed", "incomplete"]
Part = dict[str, str]

_TEXTS = {"input_text": "text", "output_text": "text", "text": "text", "refusal": "refusal"}


def _parts(content: Any) -> list[Part]:
    """Text, or a list of text parts, as `{"type", "text"}`."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    if not isinstance(content, list):
        raise PydanticCustomError("content", "must be a string or a list of parts")
    return [_part(part) for part in cast("list[Any]", content)]


def _part(part: Any) -> Part:
    match part:
        case {"type": str(kind)} if kind in _TEXTS and isinstance(part.get(_TEXTS[kind]), str):
            return {"type": "text", "text": part[_TEXTS[kind]]}
        case {"type": str(kind)}:
            problem = "content parts of type '{kind}' are not supported, or lack their text"
            raise PydanticCustomError("content_part", problem, {"kind": kind[:40]})
        case _:
            raise PydanticCustomError("content_part", "a content part must be an object with a 'type'")


def _joined(parts: Sequence[Part]) -> str:
    return "".join(part["text"] for part in parts)


class MessageItem(Strict):
    """A message. Whoever wrote it, its content is text or parts of text."""

    type: Literal["message"] = "message"
    id: ItemId | None = None
    role: Literal["user", "assistant", "system", "developer"]
    content: Any
    status: Status | None = None

    @field_validator("content")
    @classmethod
    def _shape(cls, content: Any) -> list[Part]:
        return _parts(content)

    def public(self) -> dict[str, Any]:
        """The item as the API shows it."""
        kind: dict[str, Any] = {"type": "input_text"}
        if self.role == "assistant":
            kind = {"type": "output_text", "annotations": [], "logprobs": []}
        content = [{**kind, "text": part["text"]} for part in self.content]
        return {"type": "message", "role": self.role, "content": content, "status": self.status or "completed"}


class CallItem(Strict):
    """A call that the model made."""

    type: Literal["function_call"]
    id: ItemId | None = None
    call_id: ItemId
    name: Annotated[str, Field(min_length=1, max_length=256)]
    arguments: str
    status: Status | None = None

    def public(self) -> dict[str, Any]:
        """The item as the API shows it."""
        shown = self.model_dump(include={"type", "call_id", "name", "arguments"})
        return {**shown, "status": self.status or "completed"}


class CallOutputItem(Strict):
    """What a call gave."""

    type: Literal["function_call_output"]
    id: ItemId | None = None
    call_id: ItemId
    output: Any
    status: Status | None = None

    @field_validator("output")
    @classmethod
    def _shape(cls, output: Any) -> str:
        return _joined(_parts(output))

    def public(self) -> dict[str, Any]:
        """The item as the API shows it."""
        shown = self.model_dump(include={"type", "call_id", "output"})
        return {**shown, "status": self.status or "completed"}


class SummaryText(Strict):
    """A part of a reasoning item's summary."""

    type: Literal["summary_text"]
    text: str


class ReasoningText(Strict):
    """A part of a reasoning item's text."""

    type: Literal["reasoning_text", "text"]
    text: str


class ReasoningItem(Strict):
    """What the model thought. Its own text counts; of another server's item, of which that is hidden, the summary."""

    type: Literal["reasoning"]
    id: ItemId | None = None
    summary: list[SummaryText] | None = None
    content: list[ReasoningText] | None = None
    status: Status | None = None

    def text(self) -> str:
        """The text that a template may show."""
        return "".join(part.text for part in self.content or self.summary or ())

    def public(self) -> dict[str, Any]:
        """The item as the API shows it."""
        return {
            "type": "reasoning",
            "summary": [part.model_dump() for part in self.summary or ()],
            "content": [{"type": "reasoning_text", "text": part.text} for part in self.content or ()],
            "status": self.status or "completed",
        }


class ItemReference(Strict):
    """An item that the store knows, by its id."""

    type: Literal["item_reference"] = "item_reference"
    id: ItemId


def _kind(item: Any) -> str:
    """The tag of an item: its type, which a message and a reference may leave out."""
    fields = cast("dict[str, Any]", item)
    return fields.get("type") or ("message" if "role" in fields else "item_reference")


def _known(item: Any) -> Any:
    if not isinstance(item, dict):
        raise PydanticCustomError("item", "an input item must be an object")
    kind = _kind(item)
    if kind not in ITEM_KINDS:
        problem = "input items of type '{kind}' are not supported by this server"
        raise PydanticCustomError("item", problem, {"kind": str(kind)[:40]})
    return cast("object", item)


ITEM_KINDS = ("message", "function_call", "function_call_output", "reasoning", "item_reference")

Item = MessageItem | CallItem | CallOutputItem | ReasoningItem
InputItem = Annotated[
    Annotated[MessageItem, Tag("message")]
    | Annotated[CallItem, Tag("function_call")]
    | Annotated[CallOutputItem, Tag("function_call_output")]
    | Annotated[ReasoningItem, Tag("reasoning")]
    | Annotated[ItemReference, Tag("item_reference")],
    Discriminator(_kind),
    BeforeValidator(_known),
]
