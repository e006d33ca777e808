"""From a file's metadata to a tokenizer: one builder per `tokenizer.ggml.model`."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from .bigrams import BigramEncoder
from .byte_alphabet import missing_bytes
from .byte_pairs import ByteLevelEncoder, RawTextEncoder
from .pretokenizers import RECIPES, Recipe
from .tokenizer import Tokenizer
from .vocabulary import SpecialDefaults, TokenType, Vocabulary, read_vocabulary

if TYPE_CHECKING:
    from ..gguf import Metadata

_log = logging.getLogger(__name__)


def load_tokenizer(metadata: Metadata) -> Tokenizer:
    """The tokenizer that a file describes. ModelFileError for what is missing, malformed or not implemented."""
    section = metadata.section("tokenizer.ggml.")
    model = section.str("model")
    if model not in _BUILDERS:
        section.fail("model", f"'{model}' is not implemented (implemented: {', '.join(sorted(_BUILDERS))})")
    if section.bool("add_sep_token", False):
        section.fail("add_sep_token", "separator tokens are not implemented")
    return _BUILDERS[model](section)


def _byte_level(metadata: Metadata) -> Tokenizer:
    recipe = _recipe(metadata)
    vocabulary = read_vocabulary(metadata, SpecialDefaults(add_bos=recipe.add_bos))
    missing = missing_bytes(vocabulary.ids)
    if missing:  # rare control characters and planes, in some well-known models too
        names = ", ".join(f"0x{byte:02X}" for byte in sorted(missing))
        _log.info("%s: no tokens for these bytes, which are left out of prompts: %s", metadata.path, names)
    return Tokenizer(vocabulary, ByteLevelEncoder(metadata, vocabulary, recipe), byte_level=True)


def _recipe(metadata: Metadata) -> Recipe:
    name = metadata.str("pre", None)
    if name is None or name == "default":
        _log.warning("%s: the file names no pre-tokenizer; text may be cut differently from training", metadata.path)
        name = "default"
    if name not in RECIPES:
        metadata.fail("pre", f"'{name}' is not implemented (implemented: {', '.join(sorted(RECIPES))})")
    return RECIPES[name]


def _sentence_piece(metadata: Metadata) -> Tokenizer:
    vocabulary = read_vocabulary(metadata, SpecialDefaults(bos=1, eos=2, unknown=0, add_bos=True))
    scores = metadata.array("scores")
    if scores.dtype.kind not in "fiu" or len(scores) < len(vocabulary):
        metadata.fail("scores", f"must hold a number for each of the {len(vocabulary)} tokens")
    byte_ids = _byte_ids(metadata, vocabulary)
    mergeable = vocabulary.ids.copy()
    for token in vocabulary.of_type(TokenType.CONTROL, TokenType.UNKNOWN, TokenType.BYTE, TokenType.UNUSED):
        mergeable.pop(vocabulary.texts[token], None)  # text must never turn into one of these by merging
    encoder = BigramEncoder(mergeable, scores.astype(np.float32), byte_ids, vocabulary.unknown_id)
    space_prefix = metadata.bool("add_space_prefix", True)
    return Tokenizer(vocabulary, encoder, byte_level=False, space_prefix=space_prefix)


def _byte_ids(metadata: Metadata, vocabulary: Vocabulary) -> list[int] | None:
    """Ids of `<0x00>` to `<0xFF>`, or None when the vocabulary has none of them."""
    names = [f"<0x{byte:02X}>" for byte in range(256)]
    found = [vocabulary.ids[name] for name in names if name in vocabulary.ids]
    if found and len(found) < len(names):
        metadata.fail("tokens", f"has {len(found)} of the 256 byte tokens")
    return found or None


def _raw_text(metadata: Metadata) -> Tokenizer:
    vocabulary = read_vocabulary(metadata, SpecialDefaults(add_bos=True))
    _byte_ids(metadata, vocabulary)
    return Tokenizer(vocabulary, RawTextEncoder(metadata, vocabulary), byte_level=False)


_BUILDERS: dict[str, Callable[[Metadata], Tokenizer]] = {
    "gemma4": _raw_text,
    "gpt2": _byte_level,
    "llama": _sentence_piece,
}
