"""Chat and text completions in OpenAI's chunk format: what every chunk repeats, usage, and the way onto the wire."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pydantic_core import to_json

from ..engine.request import Finish
from ..kernels.errors import RequestError
from .encoding import SSE_DONE, sse_data, sse_error
from .errors import error_body

Chunk = dict[str, object]


@dataclass(frozen=True, slots=True)
class Header:
    """What every chunk and answer of one request repeats."""

    id: str
    object: str
    created: int
    model: str
    system_fingerprint: str

    def fields(self) -> dict[str, object]:
        """As they are written."""
        return {
            "id": self.id,
            "object": self.object,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.system_fingerprint,
        }


class Usage:
    """Token counts over all choices of a request."""

    def __init__(self, prompt_tokens: Sequence[int], num_choices: int) -> None:
        self._num_choices = num_choices  # per prompt
        self._prompt_tokens = sum(prompt_tokens)
        self._cached_tokens = 0
        self._completion_tokens = 0

    def add(self, index: int, finish: Finish) -> None:
        """Counts a finished choice. A prompt and its cached part count once, with its first choice."""
        self._completion_tokens += finish.completion_tokens
        if index % self._num_choices == 0:
            self._cached_tokens += finish.cached_tokens

    def body(self) -> dict[str, object]:
        """OpenAI's `usage`."""
        return {
            "prompt_tokens": self._prompt_tokens,
            "completion_tokens": self._completion_tokens,
            "total_tokens": self._prompt_tokens + self._completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self._cached_tokens},
        }


class ChunkedAnswer:
    """The part of an Answer that chat and text completions share. Its chunks are without the header, which goes before
    each on the wire, encoded once."""

    def __init__(self, header: Header, usage: Usage, include_usage: bool) -> None:
        self.header = header
        self.usage = usage
        self._include_usage = include_usage
        self._begin = sse_data(header.fields()).removesuffix(b"}\n\n") + b","
        self._end = b',"usage":null}\n\n' if include_usage else b"}\n\n"

    def end(self) -> list[Chunk]:
        """The usage chunk."""
        return [{"choices": [], "usage": self.usage.body()}]

    def encoded(self, chunks: Iterable[Chunk]) -> bytes:
        """Events. With `include_usage` every chunk has the key, null but in the last; else there is no such chunk."""
        return b"".join([self._event(chunk) for chunk in chunks])

    def _event(self, chunk: Chunk) -> bytes:
        fields = to_json(chunk)[1:-1]
        if "usage" not in chunk:
            return self._begin + fields + self._end
        return self._begin + fields + b"}\n\n" if self._include_usage else b""

    def closing(self, error: RequestError | None) -> bytes:
        """The stream's last words: the error that cut it short, if one did, and [DONE]."""
        return (b"" if error is None else sse_error(error_body(error))) + SSE_DONE
