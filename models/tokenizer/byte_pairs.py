"""BPE on the `tokenizers` library: byte-level, and Gemma 4's over raw characters. Knows no special tokens."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tokenizers import Regex, Tokenizer, models, pre_tokenizers

from .pretokenizers import Recipe
from .vocabulary import SPACE, TokenType, Vocabulary

if TYPE_CHECKING:
    from ..gguf import Metadata


class ByteLevelEncoder:
    """Cuts text by a recipe, writes bytes as printable characters and merges by rank. Releases the GIL."""

    def __init__(self, metadata: Metadata, vocabulary: Vocabulary, recipe: Recipe) -> None:
        cuts = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in recipe.patterns]
        bytes_to_text = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        self._library = Tokenizer(_merge_model(metadata, vocabulary, ignore_merges=recipe.ignore_merges))
        self._library.pre_tokenizer = pre_tokenizers.Sequence([*cuts, bytes_to_text])

    def encode(self, pieces: list[str]) -> list[list[int]]:
        """Token ids of every piece."""
        return [encoding.ids for encoding in self._library.encode_batch_fast(pieces, add_special_tokens=False)]


class RawTextEncoder:
    """BPE over characters with `▁` for spaces and bytes for unknown characters; only newlines cut the text."""

    _RUNS = re.compile(r"\n+|[^\n]+")

    def __init__(self, metadata: Metadata, vocabulary: Vocabulary) -> None:
        self._ids = vocabulary.ids
        self._library = Tokenizer(_merge_model(metadata, vocabulary, byte_fallback=True))

    def encode(self, pieces: list[str]) -> list[list[int]]:
        """Token ids of every piece."""
        return [self._encode_piece(piece.replace(" ", SPACE)) for piece in pieces]

    def _encode_piece(self, piece: str) -> list[int]:
        runs: list[str] = self._RUNS.findall(piece)
        merged = iter(self._library.encode_batch_fast(runs, add_special_tokens=False))
        output: list[int] = []
        for run in runs:
            by_merging = next(merged).ids
            whole = self._ids.get(run) if run[0] == "\n" else None  # no merge reaches runs of newlines
            output += by_merging if whole is None else (whole,)
        return output


def _merge_model(
    metadata: Metadata, vocabulary: Vocabulary, *, ignore_merges: bool = False, byte_fallback: bool = False
) -> models.BPE:
    unreachable = {vocabulary.texts[i] for i in vocabulary.of_type(TokenType.CONTROL, TokenType.UNKNOWN)}
    ids = {text: token for text, token in vocabulary.ids.items() if text not in unreachable}
    merges = list(_usable_merges(metadata, ids, unreachable))
    return models.BPE(ids, merges, ignore_merges=ignore_merges, byte_fallback=byte_fallback)


def _usable_merges(metadata: Metadata, ids: dict[str, int], unreachable: set[str]) -> Iterator[tuple[str, str]]:
    """All merges but those that would turn plain text into a control token, in order of their rank."""
    for rank, merge in enumerate(metadata.strings("merges")):
        at = merge.find(" ", 1)
        left, right = merge[:at], merge[at + 1 :]
        if at > 0 and left in ids and right in ids and left + right in ids:
            yield left, right
        elif unreachable.isdisjoint((left, right, left + right)):
            metadata.fail("merges", f"merge {rank}, '{merge}', does not fit the vocabulary")
