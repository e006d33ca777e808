"""Where the tokens of a completion stand in its text, and the text of an echoed prompt. A prompt may end inside a
character: then the character belongs to the answer that completes it, or is U+FFFD where the answer does not.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from ..engine.request import Draw, Output
from ..models.tokenizer.stream import StreamDecoder, continues
from .choices import Judged
from .ports import Tokenizer
from .prompts import Prompt


class Echo:
    """A prompt that is shown before its answer."""

    def __init__(self, tokenizer: Tokenizer, prompt: Prompt) -> None:
        self._tokenizer = tokenizer
        self._ids = prompt.token_ids
        pieces = _pieces_of_ids(tokenizer, self._ids) if prompt.text is None else _pieces_of_text(tokenizer, prompt)
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._offsets: list[int] = []
        text = ""
        for piece in pieces:
            self._offsets.append(len(text))
            text += decoder.decode(piece)
        self.text = text if prompt.text is None else prompt.text
        self._rest = decoder.getstate()[0] if prompt.text is None else b""

    def joint(self, output: Output) -> str:
        """What comes between prompt and answer: U+FFFD, once, if nothing completes the prompt's last character."""
        if not self._rest:
            return ""
        tokens = (self._tokenizer.token_bytes(token_id, special=False) for token_id in output.token_ids)
        first = next((data[0] for data in tokens if data), None)
        if first is None and output.finish is None:
            return ""
        rest, self._rest = self._rest, b""
        return "" if first is not None and continues(rest, first) else "\ufffd"

    def judged(self, draws: Sequence[Draw | None]) -> list[Judged]:
        """The prompt's tokens, with what the model thought of them."""
        return [Judged(*entry) for entry in zip(self._ids, draws, self._offsets, strict=True)]


class AnswerOffsets:
    """Where generated tokens begin: as many characters after `start` as were certain before them."""

    def __init__(self, tokenizer: Tokenizer, prompt_ids: Sequence[int], start: int) -> None:
        self._decoder = StreamDecoder(tokenizer, prompt_ids)
        self._length = start

    def skip(self, count: int) -> None:
        """Other text comes between."""
        self._length += count

    def judged(self, token_ids: Sequence[int], draws: Sequence[Draw]) -> list[Judged]:
        """The next tokens."""
        tokens: list[Judged] = []
        for token_id, draw in zip(token_ids, draws, strict=True):
            tokens.append(Judged(token_id, draw, self._length))
            self._length += len(self._decoder.take(token_id))
        return tokens


def _pieces_of_ids(tokenizer: Tokenizer, ids: Sequence[int]) -> list[bytes]:
    """What each token adds to the text. The space before a first word is not shown, as in any decoded text."""
    pieces = [tokenizer.token_bytes(token_id, special=True) for token_id in ids]
    first = tokenizer.prefixed_token(ids)
    if first is not None:
        pieces[first] = pieces[first].removeprefix(b" ")
    return pieces


def _pieces_of_text(tokenizer: Tokenizer, prompt: Prompt) -> list[bytes]:
    """As above, where the text is known. What encoding put before it (BOS, a first space) is not shown."""
    pieces = [tokenizer.token_bytes(token_id, special=True) for token_id in prompt.token_ids]
    start = (prompt.text or "").encode()
    if not start.startswith(pieces[0]) and tokenizer.token_bytes(prompt.token_ids[0], special=False) == b"":
        pieces[0] = b""
    first = next((index for index, data in enumerate(pieces) if data), 0)
    if pieces[first].startswith(b" ") and not start.startswith(b" "):
        pieces[first] = pieces[first][1:]
    return pieces
