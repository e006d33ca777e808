"""GBNF grammars as Lark, for llguidance, which reads an answer in lexemes: the longest one that may stand at a place.

A GBNF grammar knows characters only. With lexemes of one character each, every grammar means the same in both, but each
character of each token is then a step of the parser: slow. So rules that are not recursive become lexemes, regular
expressions, where that cannot change what the grammar matches: where

- the next character always decides which lexeme, or which way, comes next (the grammar of lexemes is LL(1)), and
- no lexeme could swallow a character that what follows it may begin with.

JSON and most grammars of data are like that. All others keep their characters.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .gbnf import Chars, Choice, Node, Ranges, Repeat, Rule, Sequence, meet, parse, united

_LONGEST_LEXEME = 160_000  # characters of its regular expression
_MOST_LEXEMES = 1_000_000  # characters of all of them
_MOST_SYMBOLS = 100_000  # of a rule with all that it refers to written out, as llguidance may do
_MAX_ROUNDS = 40  # over all rules
_DEEPEST = 12  # brackets within brackets: llguidance reads 30
_NOTHING: Ranges = ()


def lark_of_gbnf(text: str) -> str:
    """The same language as a Lark grammar. Raises ValueError for what is no GBNF."""
    rules = parse(text)
    _refuse_explosion(rules)
    regular = _regular(rules)
    shapes = _settled(rules)
    parts = None if shapes is None else _Parts(regular, shapes)
    lexical = parts is not None and ("root" in regular or _Check(rules, parts).passes())
    return _Writer(rules, parts if lexical else None).grammar()


def _refuse_explosion(rules: dict[str, Node]) -> None:
    """Raises ValueError for a rule that doubles what doubles: a few lines can stand for more than any memory holds."""
    sizes: dict[str, int] = {}
    for start in rules:
        waiting = [(start, False)]
        while waiting:
            name, is_ready = waiting.pop()
            if is_ready:
                sizes[name] = _size(rules[name], sizes)
                if sizes[name] > _MOST_SYMBOLS:
                    raise ValueError(f"rule '{name}' stands for more than {_MOST_SYMBOLS:,} symbols once written out")
            elif name not in sizes:
                sizes[name] = 1  # where it refers to itself: recursion is not written out
                waiting.append((name, True))
                waiting += [(other, False) for other in _references(rules[name])]


def _size(node: Node, sizes: dict[str, int]) -> int:
    match node:
        case Chars():
            return 1
        case Rule(name):
            return sizes[name]
        case Sequence(parts) | Choice(parts):
            return sum(_size(part, sizes) for part in parts)
        case Repeat(item, _, _):
            return _size(item, sizes)


# --- what is known of a part -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Shape:
    """Of the texts that a part matches: may one be empty, how they begin, by what a complete one may still grow, and
    all characters in them. Sets may be too large, never too small."""

    nullable: bool
    first: Ranges
    grows: Ranges
    every: Ranges


_EMPTY = _Shape(True, _NOTHING, _NOTHING, _NOTHING)
_UNKNOWN = _Shape(False, _NOTHING, _NOTHING, _NOTHING)  # a rule before its first round


def _shape(node: Node, rules: dict[str, _Shape]) -> _Shape:
    match node:
        case Chars(ranges):
            return _Shape(False, ranges, _NOTHING, ranges)
        case Rule(name):
            return rules[name]
        case Sequence(items):
            shape = _EMPTY
            for item in items:
                shape = _then(shape, _shape(item, rules))
            return shape
        case Choice(options):
            return _either([_shape(option, rules) for option in options])
        case Repeat(item, low, high):
            return _times(_shape(item, rules), low, high)


def _then(one: _Shape, two: _Shape) -> _Shape:
    every = united(one.every, two.every)
    first = united(one.first, two.first) if one.nullable else one.first
    grows = united(two.grows, one.grows, two.first) if two.nullable else two.grows
    if meet(one.grows, two.first):  # the border between them may lie elsewhere
        grows = every
    return _Shape(one.nullable and two.nullable, first, grows, every)


def _either(shapes: list[_Shape]) -> _Shape:
    first, every = united(*(s.first for s in shapes)), united(*(s.every for s in shapes))
    nullable = any(s.nullable for s in shapes)
    grows = united(*(s.grows for s in shapes), first if nullable else _NOTHING)
    if not _disjoint([s.first for s in shapes]):  # one text may begin like another
        grows = every
    return _Shape(nullable, first, grows, every)


def _times(item: _Shape, low: int, high: int | None) -> _Shape:
    if high == 0:
        return _EMPTY
    grows = item.grows if low == high else united(item.grows, item.first)
    if high != 1 and (item.nullable or meet(item.grows, item.first)):
        grows = item.every
    return _Shape(low == 0 or item.nullable, item.first, grows, item.every)


def _disjoint(sets: list[Ranges]) -> bool:
    total = sum(high - low + 1 for ranges in sets for low, high in ranges)
    return total == sum(high - low + 1 for low, high in united(*sets))


# --- lexemes ---------------------------------------------------------------------------------------------------------


def _regular(rules: dict[str, Node]) -> dict[str, str]:
    """The rules that refer to no recursive ones, as regular expressions."""
    missing = {name: set(_references(node)) for name, node in rules.items()}
    users: dict[str, list[str]] = {name: [] for name in rules}
    for name, needed in missing.items():
        for other in needed:
            users[other].append(name)
    found: dict[str, str] = {}
    ready = [name for name, needed in missing.items() if not needed]
    room = _MOST_LEXEMES
    while ready:
        name = ready.pop()
        pattern = _pattern(rules[name], found)
        if pattern is None or len(pattern) > room:
            continue
        found[name] = pattern
        room -= len(pattern)
        for user in users[name]:
            missing[user].discard(name)
            if not missing[user]:
                ready.append(user)
    return found


def _references(node: Node) -> Iterator[str]:
    match node:
        case Chars():
            pass
        case Rule(name):
            yield name
        case Sequence(parts) | Choice(parts):
            for part in parts:
                yield from _references(part)
        case Repeat(item, _, _):
            yield from _references(item)


def _pattern(node: Node, known: dict[str, str]) -> str | None:
    """The regular expression of a part, if it is regular, in brackets of its own where it needs them."""
    match node:
        case Chars(ranges):
            return _set(ranges)
        case Rule(name):
            return known.get(name)
        case Sequence(items):
            return _joined(items, "", known)
        case Choice(options):
            return _joined(options, "|", known)
        case Repeat(item, low, high):
            inner = _pattern(item, known)
            return None if inner is None else f"(?:{inner}{_counts(low, high)})"


def _joined(nodes: tuple[Node, ...], mark: str, known: dict[str, str]) -> str | None:
    patterns: list[str] = []
    for node in nodes:
        pattern = _pattern(node, known)
        if pattern is None:
            return None
        patterns.append(pattern)
    whole = f"(?:{mark.join(patterns)})"
    return whole if len(whole) <= _LONGEST_LEXEME else None


def _set(ranges: Ranges) -> str:
    """A set of characters as a regular expression."""
    kept = _characters(ranges)
    if len(kept) == 1 and kept[0][0] == kept[0][1]:
        return _character(kept[0][0])
    return "[" + "".join(f"{_character(low)}-{_character(high)}" for low, high in kept) + "]"


def _character(code: int) -> str:
    character = chr(code)
    return character if character.isascii() and character.isalnum() else f"\\x{{{code:X}}}"


def _characters(ranges: Ranges) -> Ranges:
    """Without surrogates, which are no characters."""
    kept: list[tuple[int, int]] = []
    for low, high in ranges:
        kept += [(low, min(high, 0xD7FF))] if low <= 0xD7FF else []
        kept += [(max(low, 0xE000), high)] if high >= 0xE000 else []
    if not kept:
        raise ValueError("a set of surrogates only")
    return tuple(kept)


def _counts(low: int, high: int | None) -> str:
    if high is None:
        return "*" if low == 0 else "+" if low == 1 else f"{{{low},}}"
    return "?" if (low, high) == (0, 1) else f"{{{low},{high}}}"


class _Parts:
    """What is settled of every part. It is asked for on each level above it, so each part's answer is kept."""

    def __init__(self, lexemes: dict[str, str], shapes: dict[str, _Shape]) -> None:
        self.lexemes = lexemes  # rules that are regular expressions
        self._shapes = shapes
        self._known: dict[int, tuple[_Shape, bool]] = {}  # by identity: the rules keep their parts alive

    def shape(self, node: Node) -> _Shape:
        return self._of(node)[0]

    def is_lexeme(self, node: Node) -> bool:
        return self._of(node)[1]

    def pattern(self, node: Node) -> str | None:
        """A lexeme's regular expression, written anew: those of all levels would fill the memory."""
        return _pattern(node, self.lexemes) if self.is_lexeme(node) else None

    def _of(self, node: Node) -> tuple[_Shape, bool]:
        known = self._known.get(id(node))
        if known is None:
            known = _shape(node, self._shapes), _pattern(node, self.lexemes) is not None
            self._known[id(node)] = known
        return known


class _Check:
    """Whether a grammar of lexemes is decided by each next character."""

    def __init__(self, rules: dict[str, Node], parts: _Parts) -> None:
        self._rules = rules
        self._parts = parts
        self._follow: dict[str, Ranges] = dict.fromkeys(rules, _NOTHING)
        self._fine = True

    def passes(self) -> bool:
        """False also where it would take long to find out."""
        for _ in range(_MAX_ROUNDS):
            before, self._fine = dict(self._follow), True
            for name, node in self._rules.items():
                if name not in self._parts.lexemes:
                    self._walk(node, self._follow[name])
            if not self._fine or before == self._follow:
                return self._fine
        return False

    def _walk(self, node: Node, follow: Ranges) -> None:
        """Checks a part, behind which the characters of `follow` may come."""
        shape = self._parts.shape(node)
        if self._parts.is_lexeme(node):
            taken = united(shape.grows, shape.first) if shape.nullable else shape.grows
            self._fine = self._fine and not meet(taken, follow)
            return
        match node:
            case Rule(name):
                self._follow[name] = united(self._follow[name], follow)
            case Sequence(items):
                for item in reversed(items):
                    self._walk(item, follow)
                    known = self._parts.shape(item)
                    follow = united(known.first, follow) if known.nullable else known.first
            case Choice(options):
                shapes = [self._parts.shape(option) for option in options]
                empty = sum(s.nullable for s in shapes)
                self._fine = self._fine and _disjoint([s.first for s in shapes]) and empty <= 1
                self._fine = self._fine and not (empty and meet(shape.first, follow))
                for option in options:
                    self._walk(option, follow)
            case Repeat(item, low, high):
                known = self._parts.shape(item)
                self._fine = self._fine and not known.nullable
                self._fine = self._fine and (low == high or not meet(known.first, follow))
                self._walk(item, united(known.first, follow) if high != 1 else follow)
            case Chars():
                raise AssertionError("a set is a lexeme")


def _settled(rules: dict[str, Node]) -> dict[str, _Shape] | None:
    """The shapes of all rules: a least fixed point, because rules refer to each other. None: it would take long."""
    shapes = dict.fromkeys(rules, _UNKNOWN)
    for _ in range(_MAX_ROUNDS):
        before = dict(shapes)
        for name, node in reversed(rules.items()):
            shapes[name] = _shape(node, shapes)
        if before == shapes:
            return shapes
    return None


# --- writing ---------------------------------------------------------------------------------------------------------


class _Writer:
    """The grammar as text; without `parts` it has no lexemes."""

    def __init__(self, rules: dict[str, Node], parts: _Parts | None) -> None:
        self._rules = rules
        self._parts = parts
        self._names = {name: "start" if name == "root" else f"r{n}" for n, name in enumerate(rules)}
        self._terminals: dict[str, str] = {}  # lexeme -> name
        self._outsourced: list[str] = []  # rules of parts that are nested too deeply

    def grammar(self) -> str:
        """The whole text."""
        lexemes = {} if self._parts is None else self._parts.lexemes
        named = {name: node for name, node in self._rules.items() if name == "root" or name not in lexemes}
        lines = [f"{self._names[name]}: {self._body(node, 0)}" for name, node in named.items()]
        lines += self._outsourced
        lines += [f"{name}: {pattern}" for pattern, name in self._terminals.items()]
        return "\n".join(lines)

    def _body(self, node: Node, depth: int) -> str:
        """A part, in brackets unless it is one word."""
        if self._parts is not None and (pattern := self._parts.pattern(node)) is not None:
            return self._lexeme(pattern, self._parts.shape(node).nullable)
        if depth == _DEEPEST and isinstance(node, Sequence | Choice | Repeat):
            at = len(self._outsourced)
            self._outsourced.append("")  # its place: what is nested in it comes behind
            self._outsourced[at] = f"p{at}: {self._body(node, 0)}"
            return f"p{at}"
        match node:
            case Chars(ranges):
                return f"/{_set(ranges)}/"
            case Rule(name):
                return self._names[name]
            case Sequence(items):
                return f"({' '.join(self._body(item, depth + 1) for item in items)})" if items else '""'
            case Choice(options):
                return f"({' | '.join(self._body(option, depth + 1) for option in options)})"
            case Repeat(item, low, high):
                return f"({self._body(item, depth + 1)}{_counts(low, high)})" if high != 0 else '""'

    def _lexeme(self, pattern: str, optional: bool) -> str:
        """A lexeme is never empty: whether it is there at all is the rule's business."""
        lexeme = f"/{pattern}/ & /(?s:.)+/" if optional else f"/{pattern}/"
        name = self._terminals.setdefault(lexeme, f"T{len(self._terminals)}")
        return f"({name}?)" if optional else name
