"""Token ids to text while they arrive. What has been given out never changes and never holds half a character."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Protocol

_LONGEST_CHARACTER = 4  # bytes of UTF-8


class TokenBytes(Protocol):
    """What a decoder asks of a tokenizer."""

    @property
    def special_ids(self) -> frozenset[int]: ...
    def token_bytes(self, token_id: int, *, special: bool) -> bytes: ...
    def prefixed_token(self, ids: Iterable[int]) -> int | None: ...


class WholeTexts(dict[int, str | None]):
    """What a token adds to a text wherever it stands: None for control tokens, and for parts of characters.

    Filled as tokens are asked for; one for all streams of a tokenizer.
    """

    def __init__(self, tokenizer: TokenBytes) -> None:
        super().__init__()
        self._tokenizer = tokenizer

    def __missing__(self, token_id: int) -> str | None:
        text = None
        if token_id not in self._tokenizer.special_ids:
            with suppress(UnicodeDecodeError):
                text = self._tokenizer.token_bytes(token_id, special=False).decode()
        self[token_id] = text
        return text


class StreamDecoder:
    """Text of a growing sequence, beyond its prompt; constant work per token.

    All that `feed` gave, followed by what `flush` gives, is the decoded sequence, however its tokens were grouped. A
    prompt may end inside a character: if the first tokens complete it, it is given out; if they do not, the broken
    bytes stay the prompt's affair. Of the control tokens, those in `visible_ids` have a text, or all of them if none is
    to be skipped.
    """

    __slots__ = ("_at_start", "_clean", "_prompt_rest", "_special", "_texts", "_tokenizer", "_utf8", "_visible_ids")

    def __init__(
        self,
        tokenizer: TokenBytes,
        prompt_ids: Sequence[int] = (),
        *,
        skip_special: bool = True,
        visible_ids: frozenset[int] = frozenset(),
        texts: WholeTexts | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._texts = WholeTexts(tokenizer) if texts is None else texts
        self._special = not skip_special
        self._visible_ids = visible_ids
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._prompt_rest = self._open_character(prompt_ids)  # until the first byte is fed
        self._at_start = tokenizer.prefixed_token(prompt_ids) is None  # no token was text yet
        self._clean = False  # tokens are what they are alone: no character is open, no space is to be taken away

    def take(self, token_id: int) -> str:
        """`feed` for one token, which nearly always is a text of its own."""
        if self._clean:
            text = self._texts[token_id]
            if text is not None:
                return text
        return self.feed((token_id,))

    def feed(self, ids: Iterable[int]) -> str:
        """The text that these tokens make certain; may be empty."""
        text = self._decode(list(ids))
        self._clean = not (self._special or self._at_start or self._prompt_rest or self._utf8.getstate()[0])
        return text

    def _decode(self, ids: list[int]) -> str:
        pieces = [self._bytes(token) for token in ids]
        if self._at_start:
            first = self._tokenizer.prefixed_token(ids)
            if first is not None:
                pieces[first] = pieces[first].removeprefix(b" ")
            self._at_start = first is None and self._tokenizer.special_ids.issuperset(ids)
        data = b"".join(pieces)
        if data and self._prompt_rest:
            if continues(self._prompt_rest, data[0]):
                self._utf8.decode(self._prompt_rest)
            self._prompt_rest = b""
        return self._utf8.decode(data)

    def flush(self) -> str:
        """The rest at the end of the sequence: U+FFFD if it ends inside a character, else nothing."""
        return self._utf8.decode(b"", final=True)

    def _bytes(self, token: int) -> bytes:
        return self._tokenizer.token_bytes(token, special=self._special or token in self._visible_ids)

    def _open_character(self, prompt_ids: Sequence[int]) -> bytes:
        """The bytes of a character that the prompt begins but does not end."""
        tail = b""
        for token in reversed(prompt_ids):
            tail = self._bytes(token) + tail
            if len(tail) >= _LONGEST_CHARACTER:
                break
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        decoder.decode(tail)
        return decoder.getstate()[0]


def continues(start: bytes, byte: int) -> bool:
    """Whether a byte may follow an unfinished character."""
    decoder = codecs.getincrementaldecoder("utf-8")("strict")
    try:
        decoder.decode(start + bytes([byte]))
    except UnicodeDecodeError:
        return False
    return True
