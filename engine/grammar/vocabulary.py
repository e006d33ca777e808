"""A model's vocabulary as llguidance reads it: the bytes of every token, which tokens are no text, how text is cut.

llguidance needs a trie of all tokens and, for speed, the sets of tokens that any JSON string may hold, once per model:
0.2 s and 20 MB for 49k tokens, 0.7 s and 50 MB for 151k, 1.5 s and 120 MB for 262k.
"""

from __future__ import annotations

from typing import Protocol

from llguidance import LLTokenizer, TokenizerWrapper

_SPECIAL = b"\xff"  # marks a token that only its name can stand for in a grammar
_CUT = 2048  # characters of a prescribed text that are cut into tokens at once
_ENOUGH = 64  # tokens; what comes after so many is cut later


class Tokenizer(Protocol):
    """What is needed of a model's tokenizer."""

    @property
    def vocab_size(self) -> int: ...
    @property
    def end_of_generation_ids(self) -> frozenset[int]: ...
    @property
    def special_ids(self) -> frozenset[int]: ...
    def token_bytes(self, token_id: int, *, special: bool = False) -> bytes: ...
    def encode_inside(self, text: str) -> list[int]: ...


class GrammarVocabulary:
    """Built once per model; holds the GIL while it is built. Immutable, and any thread may use it."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        """`vocab_size` is the width of a logits row: ids that the tokenizer does not have are never allowed.

        Raises ValueError where no token ends an answer.
        """
        ends = frozenset(token for token in tokenizer.end_of_generation_ids if token < vocab_size)
        if not ends:
            raise ValueError("this model names no token that ends an answer, so its answers cannot be constrained")
        self.vocab_size = vocab_size
        self.num_words = -(-vocab_size // 32)
        self.end_ids = ends
        self.tokens = LLTokenizer(_Wrapper(tokenizer, vocab_size, min(ends)), eos_token=sorted(ends))
        assert self.tokens.vocab_size == vocab_size


class _Wrapper(TokenizerWrapper):
    """The interface that llguidance asks for: it reads `tokens` once, and calls to cut a prescribed text."""

    def __init__(  # pyright: ignore[reportMissingSuperCall]
        self, tokenizer: Tokenizer, vocab_size: int, end_id: int
    ) -> None:
        self.is_tokenizer_wrapper = True
        self.eos_token_id = end_id
        self.bos_token_id = None
        self.special_token_ids = ()
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size

    @property
    def tokens(self) -> list[bytes]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Not kept: llguidance makes its own copy."""
        tokenizer, special = self._tokenizer, self._tokenizer.special_ids
        known = [
            (_SPECIAL if token_id in special else b"") + tokenizer.token_bytes(token_id, special=True)
            for token_id in range(min(tokenizer.vocab_size, self._vocab_size))
        ]
        return known + [b""] * (self._vocab_size - len(known))

    def __call__(self, text: str) -> list[int]:
        """A grammar may prescribe a whole book: only its beginning is cut, if that makes tokens enough."""
        encode = self._tokenizer.encode_inside
        ids = encode(text[:_CUT])
        return ids if len(text) <= _CUT or len(ids) >= _ENOUGH else encode(text)
