"""llama.cpp's grammar notation (GBNF), read into a tree. What the trees become is `gbnf_lark`'s business.

Grammars describe characters, so a literal is a sequence of sets of one character each.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NoReturn, TypeAlias

LAST = 0x10FFFF
Ranges: TypeAlias = tuple[tuple[int, int], ...]  # of code points, both ends included; ascending, apart from each other

MAX_TEXT = 16 * 1024  # characters
_MAX_RULES = 500
_MAX_DEPTH = 50  # groups within groups; repetitions of repetitions
_SPACE = re.compile(r"(?:[ \t]|#[^\n]*)*")
_LINES = re.compile(r"(?:\s|#[^\n]*)*")
_NAME = re.compile(r"[A-Za-z0-9_-]+")
_COUNTS = re.compile(r"\{\s*(\d{1,6})\s*(?:(,)\s*(\d{1,6})?\s*)?\}")
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "\\": "\\", '"': '"', "[": "[", "]": "]", "-": "-", "^": "^", "/": "/"}
_HEX_DIGITS = {"x": 2, "u": 4, "U": 8}


@dataclass(frozen=True, slots=True)
class Chars:
    """One character of a set."""

    ranges: Ranges


@dataclass(frozen=True, slots=True)
class Rule:
    """What another rule describes."""

    name: str


@dataclass(frozen=True, slots=True)
class Sequence:
    """One after the other; nothing, if there are none."""

    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """One of several."""

    options: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """`low` to `high` times; None: without a limit."""

    item: Node
    low: int
    high: int | None


Node: TypeAlias = Chars | Rule | Sequence | Choice | Repeat


def united(*sets: Ranges) -> Ranges:
    """The characters in any of the sets."""
    merged: list[tuple[int, int]] = []
    for low, high in sorted(pair for ranges in sets for pair in ranges):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], high))
        else:
            merged.append((low, high))
    return tuple(merged)


def without(ranges: Ranges) -> Ranges:
    """All other characters."""
    gaps: list[tuple[int, int]] = []
    start = 0
    for low, high in united(ranges):
        if low > start:
            gaps.append((start, low - 1))
        start = high + 1
    return (*gaps, (start, LAST)) if start <= LAST else tuple(gaps)


def meet(one: Ranges, other: Ranges) -> bool:
    """Whether two sets have a character in common."""
    return any(low <= top and bottom <= high for low, high in one for bottom, top in other)


def parse(text: str) -> dict[str, Node]:
    """The rules by name, in their order. Raises ValueError with the line of the fault."""
    if len(text) > MAX_TEXT:
        raise ValueError(f"its {len(text)} characters are more than the {MAX_TEXT} that are read")
    reader = _Reader(text)
    rules = reader.rules()
    if "root" not in rules:
        raise ValueError("there is no rule 'root'")
    for name, line in reader.named.items():
        if name not in rules:
            raise ValueError(f"line {line}: there is no rule '{name[:80]}'")
    return rules


class _Reader:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self.named: dict[str, int] = {}  # rules that are referred to, with a line that does

    def rules(self) -> dict[str, Node]:
        found: dict[str, Node] = {}
        self._skip(_LINES)
        while self._at < len(self._text):
            name = self._name()
            self._skip(_SPACE)
            if not self._take("::="):
                self._fail("expected ::=")
            if name in found:
                self._fail(f"rule '{name[:80]}' is defined twice")
            self._skip(_LINES)
            found[name] = self._choice(0)
            if len(found) > _MAX_RULES:
                self._fail(f"more than {_MAX_RULES} rules")
            if self._at < len(self._text) and self._text[self._at] not in "\r\n":
                self._fail("expected the end of the line")
            self._skip(_LINES)
        return found

    def _choice(self, depth: int) -> Node:
        options = [self._sequence(depth)]
        while self._next_option():
            self._skip(_LINES)
            options.append(self._sequence(depth))
        return options[0] if len(options) == 1 else Choice(tuple(options))

    def _next_option(self) -> bool:
        """A `|`, which may stand on the next line."""
        ahead = _LINES.match(self._text, self._at)
        assert ahead is not None
        if self._text.startswith("|", ahead.end()):
            self._at = ahead.end() + 1
            return True
        return False

    def _sequence(self, depth: int) -> Node:
        items: list[Node] = []
        while True:
            self._skip(_LINES if depth else _SPACE)
            item = self._item(depth)
            if item is None:
                return items[0] if len(items) == 1 else Sequence(tuple(items))
            items.append(self._repeated(item, depth))

    def _item(self, depth: int) -> Node | None:
        if self._take('"'):
            return self._literal()
        if self._take("["):
            return self._set()
        if self._take("."):
            return Chars(((0, LAST),))
        if self._take("("):
            if depth == _MAX_DEPTH:
                self._fail("groups are nested too deeply")
            self._skip(_LINES)
            inner = self._choice(depth + 1)
            self._skip(_LINES)
            if not self._take(")"):
                self._fail("expected )")
            return inner
        if _NAME.match(self._text, self._at):
            name = self._name()
            self.named.setdefault(name, self._line())
            return Rule(name)
        return None

    def _repeated(self, item: Node, depth: int) -> Node:
        marks = 0
        while True:
            marks += 1
            if marks > _MAX_DEPTH:
                self._fail("repetitions are nested too deeply")
            self._skip(_LINES if depth else _SPACE)
            if self._take("*"):
                item = Repeat(item, 0, None)
            elif self._take("+"):
                item = Repeat(item, 1, None)
            elif self._take("?"):
                item = Repeat(item, 0, 1)
            elif counts := _COUNTS.match(self._text, self._at):
                low, comma, high = int(counts[1]), counts[2], counts[3]
                self._at = counts.end()
                item = Repeat(item, low, int(high) if high else None if comma else low)
                if item.high is not None and item.high < low:
                    self._fail("a repetition's limits are the wrong way round")
            else:
                return item

    def _literal(self) -> Node:
        characters: list[Node] = []
        while not self._take('"'):
            code = self._code()
            characters.append(Chars(((code, code),)))
        return characters[0] if len(characters) == 1 else Sequence(tuple(characters))

    def _set(self) -> Node:
        negated = self._take("^")
        ranges: list[tuple[int, int]] = []
        while not self._take("]"):
            low = high = self._code()
            if self._text.startswith("-", self._at) and not self._text.startswith("-]", self._at):
                self._at += 1
                high = self._code()
            if high < low:
                self._fail("a range is the wrong way round")
            ranges.append((low, high))
        found = without(tuple(ranges)) if negated else united(tuple(ranges))
        if not found:
            self._fail("a set without characters")
        return Chars(found)

    def _code(self) -> int:
        """One character of a literal or a set."""
        if self._at >= len(self._text):
            self._fail("unexpected end")
        character = self._text[self._at]
        self._at += 1
        if character in "\r\n":
            self._fail("unexpected end of the line")
        if character != "\\":
            return ord(character)
        kind = self._text[self._at : self._at + 1]
        self._at += 1
        if kind in _ESCAPES and kind:
            return ord(_ESCAPES[kind])
        size = _HEX_DIGITS.get(kind, 0)
        digits = self._text[self._at : self._at + size]
        if not size or not re.fullmatch(f"[0-9A-Fa-f]{{{size}}}", digits) or int(digits, 16) > LAST:
            self._fail(f"'\\{kind}{digits}' is no escape")
        self._at += size
        return int(digits, 16)

    def _name(self) -> str:
        match = _NAME.match(self._text, self._at)
        if match is None:
            self._fail("expected a rule's name")
        self._at = match.end()
        return match[0]

    def _take(self, mark: str) -> bool:
        if self._text.startswith(mark, self._at):
            self._at += len(mark)
            return True
        return False

    def _skip(self, pattern: re.Pattern[str]) -> None:
        match = pattern.match(self._text, self._at)
        assert match is not None
        self._at = match.end()

    def _line(self) -> int:
        return self._text.count("\n", 0, self._at) + 1

    def _fail(self, problem: str) -> NoReturn:
        raise ValueError(f"line {self._line()}: {problem}")
