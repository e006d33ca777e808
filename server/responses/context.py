"""What a request responds to: its own items, behind those of the response that it goes on from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pydantic_core import to_json

from ...kernels.errors import RequestError
from ..schema.chat import Message
from ..schema.response_items import CallItem, CallOutputItem, Item, ItemReference, MessageItem
from ..schema.responses import ResponseRequest
from .history import messages_of
from .output import Json, item_id
from .store import Shelf, Stored


@dataclass(frozen=True, slots=True)
class Context:
    """The conversation of one request."""

    instructions: str | None
    items: Sequence[Item]  # the request's own
    previous: Stored | None

    def messages(self) -> list[Message]:
        """The conversation as chat messages. RequestError 400 if it is none. Too slow for the event loop."""
        before = [] if self.previous is None else self.previous.conversation()
        return messages_of(self.instructions, [*before, *self.items])

    def stored(self, response: Json) -> Stored:
        """A response to this, ready for the shelf."""
        inputs = [_public(item) for item in self.items]
        output: list[Json] = response["output"]
        return Stored(
            response["id"],
            to_json({name: value for name, value in response.items() if name != "output"}),
            to_json(output),
            to_json(inputs),
            tuple(item["id"] for item in (*inputs, *output)),
            self.previous,
        )


def context_of(asked: ResponseRequest, shelf: Shelf) -> Context:
    """RequestError 404 for a response or an item that is not, or no longer, on the tenant's shelf."""
    previous = None
    if asked.previous_response_id is not None:
        previous = shelf.get(asked.previous_response_id)
        if previous is None:
            raise _unknown(
                "response", asked.previous_response_id, "previous_response_id", "previous_response_not_found"
            )
    items = [_resolved(item, shelf) if isinstance(item, ItemReference) else item for item in asked.input]
    return Context(asked.instructions, items, previous)


def found(shelf: Shelf, response_id: str) -> Stored:
    """A response of the tenant's; RequestError 404 if it is not there."""
    stored = shelf.get(response_id)
    if stored is None:
        raise _unknown("response", response_id, None, "response_not_found")
    return stored


def _resolved(reference: ItemReference, shelf: Shelf) -> Item:
    item = shelf.item(reference.id)
    if item is None:
        raise _unknown("item", reference.id, "input", "item_not_found")
    return item


def _unknown(kind: str, name: str, param: str | None, code: str) -> RequestError:
    reasons = "it was not stored, has not ended, was deleted, or had to make room for later ones"
    return RequestError(f"There is no {kind} with id '{name[:80]}': {reasons}", param=param, code=code, status=404)


def _public(item: Item) -> dict[str, Any]:
    match item:
        case MessageItem():
            prefix = "msg"
        case CallItem():
            prefix = "fc"
        case CallOutputItem():
            prefix = "fco"
        case _:
            prefix = "rs"
    return {"id": item.id or item_id(prefix), **item.public()}
