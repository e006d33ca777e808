"""Whether a JSON Schema has values at all that a text can write down: one that contains itself without an end has none.

llguidance compiles such schemas, into grammars that allow a next token forever.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import cast

MAPS = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})  # of schemas
LISTS = frozenset({"allOf", "anyOf", "oneOf", "prefixItems", "items"})

Node = Mapping[str, object]


def check_finite(schema: object) -> None:
    """Raises ValueError that names the reference over which a schema never ends. What this does not understand (a
    reference that leads elsewhere, an unusual keyword) counts as finite, and so does what has no value at all."""
    values = _Values(schema)
    if values.finite(schema):
        return
    endless = next((ref for ref in values.references() if not values.finite(values.target(ref))), None)
    if endless is not None:
        raise ValueError(f"'$ref': '{endless[:80]}' refers to itself without an end, so no finite answer can match")


class _Values:
    """The least fixed point of "has a finite value" over all schemas within one, by identity.

    A schema that is not known to be finite waits for the parts that were asked about in vain, and is looked at again
    when one of them turns out to be: long chains of references take time in proportion to their length.
    """

    def __init__(self, root: object) -> None:
        self._root = root
        self._nodes = list(_schemas(root))
        self._known = {id(node) for node in self._nodes}
        self._finite: set[int] = set()
        self._waiting: dict[int, list[Node]] = {}  # by what they wait for
        self._asking: Node | None = None
        pending = self._nodes.copy()  # what is within comes last, and is taken first
        while pending:
            self._asking = node = pending.pop()
            if id(node) not in self._finite and self._ends(node):
                self._finite.add(id(node))
                pending += self._waiting.pop(id(node), ())
        self._asking = None  # nobody waits any more

    def finite(self, schema: object) -> bool:
        """What is known of a schema so far."""
        if not isinstance(schema, Mapping):
            return schema is not False
        key = id(cast(object, schema))
        if key in self._finite or key not in self._known:
            return True
        if self._asking is not None:
            self._waiting.setdefault(key, []).append(self._asking)
        return False

    def references(self) -> Iterator[str]:
        """Every `$ref`."""
        for node in self._nodes:
            if isinstance(ref := node.get("$ref"), str):
                yield ref

    def target(self, ref: str) -> object:
        """What a reference within the schema leads to; true, which is finite, for any other."""
        at = self._root
        if ref != "#" and not ref.startswith("#/"):
            return True
        for part in ref[2:].split("/") if ref != "#" else ():
            name = part.replace("~1", "/").replace("~0", "~")
            match at:
                case Mapping():
                    at = cast(Node, at).get(name, True)
                case list() if name.isdecimal() and int(name) < len(cast(list[object], at)):
                    at = cast(list[object], at)[int(name)]
                case _:
                    return True
        return at

    def _ends(self, node: Node) -> bool:
        if "const" in node or "enum" in node:
            return True
        if isinstance(ref := node.get("$ref"), str) and not self.finite(self.target(ref)):
            return False
        if not all(self.finite(part) for part in _list(node.get("allOf"))):
            return False
        for name in ("anyOf", "oneOf"):
            parts = _list(node.get(name))
            if parts and not any(self.finite(part) for part in parts):
                return False
        return self._type_ends(node)

    def _type_ends(self, node: Node) -> bool:
        """Whether one of the types that a schema allows has a finite value."""
        named = node.get("type")
        names = {named} if isinstance(named, str) else set(map(str, _list(named)))
        if not names or names - {"object", "array"}:
            return True
        return ("object" in names and self._object_ends(node)) or ("array" in names and self._array_ends(node))

    def _object_ends(self, node: Node) -> bool:
        properties, extra = node.get("properties"), node.get("additionalProperties", True)
        known: Node = cast(Node, properties) if isinstance(properties, Mapping) else {}
        return all(self.finite(known.get(str(name), extra)) for name in _list(node.get("required")))

    def _array_ends(self, node: Node) -> bool:
        least = node.get("minItems")
        first = _list(node.get("prefixItems")) or _list(node.get("items"))
        rest = node.get("items", True) if not isinstance(node.get("items"), list) else node.get("additionalItems", True)
        size = least if isinstance(least, int) else 0
        return all(self.finite(item) for item in first[:size]) and (size <= len(first) or self.finite(rest))


def _schemas(schema: object) -> Iterator[Node]:
    """All schemas within one, outer ones first. (More than that, where a value looks like a schema: harmless.)"""
    waiting = [schema]
    while waiting:
        node = waiting.pop()
        if not isinstance(node, Mapping):
            continue
        known = cast(Node, node)
        yield known
        for name, value in known.items():
            if name in MAPS and isinstance(value, Mapping):
                waiting += cast(Node, value).values()
            elif name in LISTS and isinstance(value, list):
                waiting += cast(list[object], value)
            else:
                waiting.append(value)


def _list(value: object) -> Sequence[object]:
    return cast(list[object], value) if isinstance(value, list) else ()
