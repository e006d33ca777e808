"""Vocabularies and constraints for the tests of grammars."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from surefoot.engine.grammar.compiler import Grammars
from surefoot.engine.grammar.constraint import Constraint
from surefoot.engine.grammar.matcher import Grammar

END = 3  # of PieceTokenizer
BYTES_END = 257  # of tokenizers whose token i is byte i


class PieceTokenizer:
    """Every byte, and some longer pieces of text that cut words in several ways. Ids 0 to 3 are control tokens."""

    PIECES: tuple[str, ...] = tuple(
        (
            '{"|":"|": "|", "|","|"}|[]}|{}|[]|name|na|me|age|"name"|"age"|tr|ue|true|false|null|12|34|.5|1e|ab|abc|'
            'abcd|": |, |  | a|yes|no|maybe|hello| world|\n|\n\n|\n\t|\t\t|<think>|</think>|é|日本|語'
        ).split("|")
    )

    def __init__(self, extra: Iterable[str] = ()) -> None:
        controls = [b"<unk>", b"<s>", b"<|tool|>", b"<|end|>"]
        pieces = dict.fromkeys(piece.encode() for piece in (*self.PIECES, *extra))
        self.texts = [*controls, *(bytes([byte]) for byte in range(256)), *(p for p in pieces if len(p) > 1)]
        self.vocab_size = len(self.texts)
        self.special_ids = frozenset(range(4))
        self.end_of_generation_ids = frozenset({END})
        self._ids = {text: token for token, text in enumerate(self.texts) if token > 3}
        self._longest = max(map(len, self.texts))

    def token_bytes(self, token_id: int, *, special: bool = False) -> bytes:
        return b"" if token_id in self.special_ids and not special else self.texts[token_id]

    def encode_inside(self, text: str) -> list[int]:
        """Longest piece first."""
        data, ids = text.encode(), []
        while data:
            size = next(n for n in range(self._longest, 0, -1) if data[:n] in self._ids)
            ids.append(self._ids[data[:size]])
            data = data[size:]
        return ids

    def text(self, ids: Sequence[int]) -> str:
        return b"".join(self.token_bytes(token) for token in ids).decode("utf-8", "replace")


def compiled(constraint: Constraint, grammars: Grammars) -> Grammar:
    """The compiled constraint, or its RequestError."""
    return grammars.compile(constraint).result(60)


def allowed(mask: NDArray[np.uint32]) -> list[int]:
    """Token ids of one row."""
    return np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist()


PERSON: Mapping[str, object] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "b", "long tag"]}, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}


def takes_bytes(grammar: Grammar, text: str) -> bool:
    """Whether a text is an answer, for a tokenizer whose token i is byte i."""
    matcher = grammar.start()
    for byte in text.encode():
        if matcher.complete or not _allows(matcher.masks_for()[0], byte):
            return False
        matcher.commit([byte])
    return matcher.complete or _allows(matcher.masks_for()[0], BYTES_END)


def _allows(mask: NDArray[np.uint32], token: int) -> bool:
    return bool(mask[token // 32] >> (token % 32) & 1)
