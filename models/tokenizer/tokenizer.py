"""A model's tokenizer: special tokens, spaces and bytes around the encoder that merges. Knows no file."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Protocol

from .byte_alphabet import text_to_bytes
from .shield import shielded, unshielded
from .specials import SpecialSplitter
from .vocabulary import SPACE, TokenType, Vocabulary

_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


class Encoder(Protocol):
    """Turns pieces of plain text, which hold no special token, into ids by merging."""

    def encode(self, pieces: list[str], /) -> list[list[int]]: ...


class Tokenizer:
    """Text to ids and back. Immutable after construction; every method may be called from any thread.

    `end_of_generation_ids` end an answer when drawn; `special_ids` are the tokens that are no text (control, unknown).
    """

    def __init__(
        self, vocabulary: Vocabulary, encoder: Encoder, *, byte_level: bool, space_prefix: bool = False
    ) -> None:
        self.vocabulary = vocabulary
        self.vocab_size = len(vocabulary)
        self.bos_id = vocabulary.bos_id
        self.eos_id = vocabulary.eos_id
        self.add_bos = vocabulary.add_bos
        self.add_eos = vocabulary.add_eos
        self.end_of_generation_ids = vocabulary.end_ids
        self.fim_ids = vocabulary.fim_ids
        self.special_ids = frozenset(vocabulary.of_type(TokenType.CONTROL, TokenType.UNKNOWN))
        self._encoder = encoder
        self._byte_level = byte_level
        self._space_prefix = space_prefix
        user_defined = vocabulary.of_type(TokenType.USER_DEFINED)
        self._always_split = SpecialSplitter((vocabulary.texts[i], i) for i in user_defined)
        self._controls = SpecialSplitter((vocabulary.texts[i], i) for i in sorted(self.special_ids))
        self._all_split = SpecialSplitter((vocabulary.texts[i], i) for i in [*user_defined, *sorted(self.special_ids)])

    def encode(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Token ids of a text. `add_special` adds what the model wants around a text (BOS, EOS).

        With `parse_special` the text of a control token becomes that token, as in a rendered chat template; without it
        a text never turns into a control token. Lone surrogates count as U+FFFD.
        """
        splitter = self._all_split if parse_special else self._always_split
        return self._assembled(splitter.split(_encodable(text)), add_special)

    def encode_prompt(self, rendered: str, *, add_special: bool | None = None) -> list[int]:
        """Token ids of a rendered chat template: special tokens are parsed, but for `shielded` words.

        What the model wants around a text is added, or not, or (None) as far as the template has not written it.
        """
        split = self._all_split.split(_encodable(rendered))
        parts = (unshielded(part) if isinstance(part, str) else part for part in split)
        ids = self._assembled(parts, add_special is not False)
        doubled = add_special is None and self.add_bos and len(ids) > 1 and ids[0] == ids[1] == self.bos_id
        return ids[1:] if doubled else ids

    def shielded(self, texts: Sequence[str]) -> list[str]:
        """Somebody else's words, in pieces that a template may write one after the other, so that `encode_prompt` finds
        no control token in them. Unchanged where there is none."""
        return shielded(texts, self._controls)

    def unshielded(self, rendered: str) -> str:
        """What a rendered template says."""
        return unshielded(rendered)

    def encode_inside(self, text: str) -> list[int]:
        """Token ids of a text that continues a sequence: nothing is put before it, no control token is recognised."""
        return self._merged(list(self._always_split.split(text)))

    def encode_gap(self, before: str | Sequence[int], after: str) -> list[int] | None:
        """Ids that ask for what stands between a text (or its ids) and another: prefix, suffix, middle, each after its
        marker. The texts are somebody's file: no control token is recognised in them. None without these markers."""
        if not {"pre", "suf", "mid"} <= self.fim_ids.keys():
            return None
        start = [self.bos_id] if self.add_bos and self.bos_id is not None else []
        prefix = self.encode_inside(before) if isinstance(before, str) else before
        markers = self.fim_ids
        return [*start, markers["pre"], *prefix, markers["suf"], *self.encode_inside(after), markers["mid"]]

    def token_bytes(self, token_id: int, *, special: bool = False) -> bytes:
        """The bytes that a token adds to the text. A control token adds none, or with `special` its own name."""
        text = self.vocabulary.texts[token_id]
        match self.vocabulary.types[token_id]:
            case TokenType.NORMAL:
                return text_to_bytes(text) if self._byte_level else text.replace(SPACE, " ").encode()
            case TokenType.USER_DEFINED:
                return text.encode()
            case TokenType.CONTROL | TokenType.UNKNOWN:
                return text.encode() if special else b""
            case TokenType.BYTE:
                return bytes([int(text[3:5], 16)])
            case _:  # unused and undefined
                return b""

    def decode(self, ids: Iterable[int], *, skip_special: bool = True) -> str:
        """The text of a whole sequence. The space that encoding puts before the first word is taken away again."""
        ids = list(ids)
        pieces = [self.token_bytes(token_id, special=not skip_special) for token_id in ids]
        first = self.prefixed_token(ids)
        if first is not None:
            pieces[first] = pieces[first].removeprefix(b" ")
        return b"".join(pieces).decode("utf-8", "replace")

    def prefixed_token(self, ids: Iterable[int]) -> int | None:
        """Index of the token that carries the space added before the first word, where the model adds one."""
        if not self._space_prefix:
            return None
        return next((index for index, token_id in enumerate(ids) if token_id not in self.special_ids), None)

    def _assembled(self, parts: Iterable[str | int], add_special: bool) -> list[int]:
        output = [self.bos_id] if add_special and self.add_bos and self.bos_id is not None else []
        output += self._merged(list(self._with_prefixes(parts)))
        if add_special and self.add_eos and self.eos_id is not None:
            output.append(self.eos_id)
        return output

    def _merged(self, parts: list[str | int]) -> list[int]:
        pieces = [part for part in parts if isinstance(part, str)]
        encoded = iter(self._encoder.encode(pieces) if pieces else ())
        output: list[int] = []
        for part in parts:
            output += next(encoded) if isinstance(part, str) else (part,)
        return output

    def _with_prefixes(self, parts: Iterable[str | int]) -> Iterable[str | int]:
        """A SentencePiece text that starts a sequence or follows a special token gets a space of its own."""
        after_special = self._space_prefix
        for part in parts:
            yield " " + part if after_special and isinstance(part, str) else part
            after_special = self._space_prefix and not isinstance(part, str)


def _encodable(text: str) -> str:
    return text if text.isascii() else _LONE_SURROGATE.sub("\ufffd", text)
