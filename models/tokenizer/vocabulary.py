"""What the file says about its tokens: texts, types, special ids, defaults. Knows no algorithm."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

import numpy as np

from . import markers

if TYPE_CHECKING:
    from ..gguf import Metadata

_log = logging.getLogger(__name__)

SPACE = "▁"  # how SentencePiece writes a space
_BYTE_TOKEN = re.compile("<0x[0-9A-F]{2}>")


class TokenType(IntEnum):
    """`tokenizer.ggml.token_type`."""

    UNDEFINED = 0
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True, slots=True)
class SpecialDefaults:
    """Ids and flags that hold when the file does not give them; they come with the model or the pre-tokenizer."""

    bos: int | None = None
    eos: int | None = None
    unknown: int | None = None
    add_bos: bool = False


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Tokens of one model. `ids` finds a text's token (the lowest id where a text appears twice)."""

    texts: list[str]
    types: bytes  # one TokenType per token
    ids: dict[str, int]
    bos_id: int | None
    eos_id: int | None
    eot_id: int | None
    eom_id: int | None
    unknown_id: int | None
    padding_id: int | None
    add_bos: bool
    add_eos: bool
    end_ids: frozenset[int]  # generation ends when one of these is drawn
    suppressed_ids: tuple[int, ...]  # never to be drawn
    fim_ids: Mapping[str, int]  # fill-in-the-middle role (pre, suf, mid, pad, rep, sep) -> id

    def __len__(self) -> int:
        return len(self.texts)

    def of_type(self, *types: TokenType) -> list[int]:
        """Ids of the tokens of these types, ascending."""
        return np.flatnonzero(np.isin(np.frombuffer(self.types, np.uint8), types)).tolist()


def read_vocabulary(metadata: Metadata, defaults: SpecialDefaults) -> Vocabulary:
    """Reads and checks the vocabulary from the `tokenizer.ggml.` section of a file's metadata."""
    texts = _read_texts(metadata)
    types = _read_types(metadata, texts)
    ids = dict(zip(reversed(texts), range(len(texts) - 1, -1, -1), strict=True))
    if len(ids) != len(texts):
        _log.warning("%s: %d token texts appear twice; the lowest id is used", metadata.path, len(texts) - len(ids))

    def named(name: str, default: int | None = None) -> int | None:
        return _special_id(metadata, f"{name}_token_id", default, len(texts))

    bos_id, eos_id = named("bos", defaults.bos), named("eos", defaults.eos)
    known = _known_markers(metadata, ids, types)
    eot_id = _first(named("eot"), markers.END_OF_TURN, known)
    eom_id = _first(named("eom"), markers.END_OF_MESSAGE, known)
    fim_ids = _fim_ids(named, known)
    ends = {special for special in (eos_id, eot_id, eom_id) if special is not None}
    ends |= {known[text] for text in markers.END_OF_GENERATION & known.keys()}
    ends |= {fim_ids[role] for role in markers.FIM_ROLES_THAT_END if role in fim_ids}
    for special in ends | set(fim_ids.values()):
        types[special] = TokenType.CONTROL
    _apply_exceptions(known, ends, types)
    return Vocabulary(
        texts=texts,
        types=bytes(types),
        ids=ids,
        bos_id=bos_id,
        eos_id=eos_id,
        eot_id=eot_id,
        eom_id=eom_id,
        unknown_id=named("unknown", defaults.unknown),
        padding_id=named("padding"),
        add_bos=_add_flag(metadata, "add_bos_token", defaults.add_bos, bos_id),
        add_eos=_add_flag(metadata, "add_eos_token", False, eos_id),
        end_ids=frozenset(ends),
        suppressed_ids=_suppressed_ids(metadata, len(texts)),
        fim_ids=fim_ids,
    )


def _read_texts(metadata: Metadata) -> list[str]:
    texts = metadata.strings("tokens")
    if not texts:
        metadata.fail("tokens", "the vocabulary is empty")
    return [text or f"[EMPTY_{i}]" for i, text in enumerate(texts)] if "" in texts else texts


def _read_types(metadata: Metadata, texts: list[str]) -> bytearray:
    num_tokens = len(texts)
    if "token_type" not in metadata:
        return bytearray([TokenType.NORMAL]) * num_tokens
    stored = metadata.array("token_type")
    if stored.dtype.kind not in "iu" or len(stored) < num_tokens:
        metadata.fail("token_type", f"must hold an integer for each of the {num_tokens} tokens")
    types = stored[:num_tokens].astype(np.int64)
    for token in np.flatnonzero(types == TokenType.BYTE).tolist():
        if not _BYTE_TOKEN.fullmatch(texts[token]):
            metadata.fail("tokens", f"byte token {token} is called '{texts[token]}', not <0xNN>")
    known = (types >= 0) & (types <= max(TokenType))
    return bytearray(np.where(known, types, TokenType.UNDEFINED).astype(np.uint8).tobytes())


def _special_id(metadata: Metadata, key: str, default: int | None, num_tokens: int) -> int | None:
    if default is not None and default >= num_tokens:
        default = None
    value = metadata.int(key, default)
    if value is None or 0 <= value < num_tokens:
        return value
    _log.warning(
        "%s: tokenizer.ggml.%s: %d is outside the vocabulary of %d, ignored", metadata.path, key, value, num_tokens
    )
    return default


def _known_markers(metadata: Metadata, ids: Mapping[str, int], types: bytearray) -> dict[str, int]:
    """Tokens that are markers by their text. What merging makes from ordinary text is ordinary text."""
    known = {text: ids[text] for text in markers.ALL & ids.keys()}
    for text in markers.HTML_TAGS & known.keys():
        if types[known[text]] != TokenType.CONTROL:
            del known[text]
    doubtful = {text for text, token in known.items() if types[token] == TokenType.NORMAL}
    if doubtful and "merges" in metadata:
        made = {merge.replace(" ", "", 1) for merge in metadata.strings("merges") if merge[-1:] in (">", "]", "[")}
        for text in doubtful & made:
            del known[text]
    return known


def _first(given: int | None, candidates: Iterable[str], ids: Mapping[str, int]) -> int | None:
    return given if given is not None else next((ids[text] for text in candidates if text in ids), None)


def _fim_ids(named: Callable[[str], int | None], ids: Mapping[str, int]) -> dict[str, int]:
    older_names = {"pre": "prefix", "suf": "suffix", "mid": "middle"}
    found: dict[str, int] = {}
    for role, candidates in markers.FILL_IN_THE_MIDDLE.items():
        given = named(f"fim_{role}")
        if given is None and role in older_names:
            given = named(older_names[role])
        given = _first(given, candidates, ids)
        if given is not None:
            found[role] = given
    return found


def _apply_exceptions(ids: Mapping[str, int], ends: set[int], types: bytearray) -> None:
    """Channel formats: `<|end|>` closes one message of several, and the parsers must see the channel's markers."""
    message_end = ids.get(markers.MESSAGE_END)
    if message_end in ends and any(group <= ids.keys() for group in markers.ANSWER_ENDS):
        ends.remove(message_end)
        types[message_end] = TokenType.USER_DEFINED
    for text in markers.ALWAYS_VISIBLE & ids.keys():
        types[ids[text]] = TokenType.USER_DEFINED


def _suppressed_ids(metadata: Metadata, num_tokens: int) -> tuple[int, ...]:
    if "suppress_tokens" not in metadata:
        return ()
    ids = metadata.array("suppress_tokens")
    if ids.dtype.kind not in "iu":
        metadata.fail("suppress_tokens", "must hold token ids")
    return tuple(sorted({int(i) for i in ids if 0 <= int(i) < num_tokens}))


def _add_flag(metadata: Metadata, key: str, default: bool, special: int | None) -> bool:
    wanted = metadata.bool(key, default)
    if wanted and special is None:
        metadata.fail(key, f"is true, but the file has no {key.split('_')[1]}_token_id")
    return wanted
