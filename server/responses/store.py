"""Responses that were answered, for who goes on with them. Bounded in bytes and number; the longest unused go first.

A tenant sees its own only, and has a share of the room that others cannot fill. What a response goes on from is shared,
not copied: it lives as long as a later one needs it, even where it can no longer be asked for itself.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, cast

from pydantic import TypeAdapter
from pydantic_core import from_json

from ..schema.response_items import InputItem, Item
from ..tenants import Tenant

_OVERHEAD = 1024  # bytes of an entry beside its texts

_items = cast("TypeAdapter[list[Item]]", TypeAdapter(list[InputItem]))  # the store holds no references


@dataclass(slots=True, eq=False)
class Stored:
    """A response as JSON texts, whose size is known."""

    id: str
    head: bytes  # the response without its output
    output: bytes  # its items
    input: bytes  # the items that came with its request
    item_ids: tuple[str, ...]
    previous: Stored | None
    is_listed: bool = False  # can be asked for
    is_counted: bool = False  # its size is in the sum
    num_following: int = 0  # counted ones that go on from it

    @property
    def size(self) -> int:
        """Bytes."""
        return _OVERHEAD + len(self.head) + len(self.output) + len(self.input)

    def body(self) -> dict[str, Any]:
        """The response as it was answered."""
        return {**from_json(self.head), "output": from_json(self.output)}

    def chain(self) -> list[Stored]:
        """The responses that lead to this one, the first of them first."""
        found: list[Stored] = []
        here: Stored | None = self
        while here is not None:
            found.append(here)
            here = here.previous
        return found[::-1]

    def inputs(self) -> list[dict[str, Any]]:
        """Everything the model was shown: what came before, and the request's own items."""
        texts = [text for earlier in self.chain()[:-1] for text in (earlier.input, earlier.output)]
        return [item for text in [*texts, self.input] for item in from_json(text)]

    def conversation(self) -> list[Item]:
        """The items that a request which goes on from here has before its own."""
        return [
            item for link in self.chain() for text in (link.input, link.output) for item in _items.validate_json(text)
        ]


class Shelf:
    """The responses of one tenant."""

    def __init__(self, max_bytes: int, max_count: int) -> None:
        self._max_bytes = max_bytes
        self._max_count = max_count
        self._listed: OrderedDict[str, Stored] = OrderedDict()  # the longest unused first
        self._by_item: dict[str, Stored] = {}
        self.num_bytes = 0

    def __len__(self) -> int:
        return len(self._listed)

    def get(self, response_id: str) -> Stored | None:
        """A response, which now counts as used, like those it goes on from."""
        stored = self._listed.get(response_id)
        for link in stored.chain() if stored is not None else ():
            if link.is_listed:
                self._listed.move_to_end(link.id)
        return stored

    def item(self, item_id: str) -> Item | None:
        """An item of a response that is here."""
        stored = self._by_item.get(item_id)
        if stored is None:
            return None
        found = (item for text in (stored.input, stored.output) for item in from_json(text) if item["id"] == item_id)
        return _items.validate_python([next(found)])[0]

    def put(self, stored: Stored) -> None:
        """Keeps a response, at the cost of others. One that is too large with all before it is not kept."""
        if sum(link.size for link in stored.chain()) > self._max_bytes:
            return
        self._count(stored)
        stored.is_listed = True
        self._listed[stored.id] = stored
        self._by_item.update(dict.fromkeys(stored.item_ids, stored))
        self._shrink()

    def resize(self, max_bytes: int, max_count: int) -> None:
        """Another room from now on."""
        self._max_bytes, self._max_count = max_bytes, max_count
        self._shrink()

    def _shrink(self) -> None:
        while self.num_bytes > self._max_bytes or len(self._listed) > self._max_count:
            self.remove(next(iter(self._listed)))

    def remove(self, response_id: str) -> bool:
        """Forgets a response; False if it is not here."""
        stored = self._listed.pop(response_id, None)
        if stored is None:
            return False
        stored.is_listed = False
        for item_id in stored.item_ids:
            if self._by_item.get(item_id) is stored:
                del self._by_item[item_id]
        self._release(stored)
        return True

    def _count(self, stored: Stored | None) -> None:
        """Takes the room of a response and of those before it, which may have been let go while it was computed."""
        while stored is not None and not stored.is_counted:
            stored.is_counted = True
            self.num_bytes += stored.size
            stored = stored.previous
            if stored is not None:
                stored.num_following += 1

    def _release(self, stored: Stored | None) -> None:
        """Gives the room back of what nobody can ask for and nothing goes on from."""
        while stored is not None and not stored.is_listed and stored.num_following == 0:
            stored.is_counted = False
            self.num_bytes -= stored.size
            stored = stored.previous
            if stored is not None:
                stored.num_following -= 1


class ResponseStore:
    """A shelf per tenant, of equal sizes."""

    def __init__(self, max_bytes: int, max_count: int, salts: Collection[bytes]) -> None:
        """`salts`: the tenants'. No bytes: nothing is kept."""
        self.keeps = max_bytes > 0
        self._all_bytes = max_bytes
        self._all_count = max_count
        self._shelves: dict[bytes, Shelf] = {}
        self.share(salts)

    def share(self, salts: Collection[bytes]) -> None:
        """These tenants have a shelf from now on, and nobody else."""
        self._salts = salts
        self._share = self._all_bytes // len(salts), max(self._all_count // len(salts), 1)
        self._shelves = {salt: shelf for salt, shelf in self._shelves.items() if salt in salts}
        for shelf in self._shelves.values():
            shelf.resize(*self._share)

    def state(self) -> dict[str, int]:
        """What is kept, of all tenants."""
        shelves = self._shelves.values()
        return {"stored_responses": sum(map(len, shelves)), "stored_bytes": sum(shelf.num_bytes for shelf in shelves)}

    def shelf(self, tenant: Tenant) -> Shelf:
        """The tenant's responses."""
        if tenant.salt not in self._salts:
            return Shelf(0, 0)  # its key was removed while its request ran
        if tenant.salt not in self._shelves:
            self._shelves[tenant.salt] = Shelf(*self._share)
        return self._shelves[tenant.salt]
