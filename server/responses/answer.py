"""A generation as a response: its typed events, and the response itself, which is what the last event carries."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, cast

from ...engine.request import Draw, Finish, Output
from ...kernels.errors import RequestError
from ..choices import TokenNames, chat_logprobs, ending, finish_reason
from ..chunks import Chunk
from ..encoding import sse_event
from ..schema.responses import ResponseRequest
from ..schema.tools import ToolChoice
from .output import Json, OutputItems
from .reading import AnswerReader

_PAD = 32  # characters to whose multiples obfuscation pads a delta


@dataclass(frozen=True, slots=True)
class ResponseHeader:
    """What is known of a response before it begins."""

    id: str
    created: int
    model: str
    fingerprint: str
    seed: int
    is_stored: bool

    def body(self, asked: ResponseRequest) -> Json:
        """The response without its output and its end."""
        reasoning = asked.reasoning
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "status": "in_progress",
            "background": False,
            "completed_at": None,
            "error": None,
            "incomplete_details": None,
            "instructions": asked.instructions,
            "max_output_tokens": asked.max_output_tokens,
            "max_tool_calls": None,
            "metadata": asked.metadata or {},
            "model": self.model,
            "output": [],
            "parallel_tool_calls": asked.parallel_tool_calls is not False,
            "previous_response_id": asked.previous_response_id,
            "reasoning": {"effort": None if reasoning is None else reasoning.effort, "summary": None},
            "seed": self.seed,
            "service_tier": "default",
            "store": self.is_stored,
            "system_fingerprint": self.fingerprint,
            "temperature": 1.0 if asked.temperature is None else asked.temperature,
            "text": asked.text_config().public(),
            "tool_choice": _shown_choice(asked.choice()),
            "tools": [tool.public() for tool in asked.tools or ()],
            "top_logprobs": asked.top_logprobs or 0,
            "top_p": 1.0 if asked.top_p is None else asked.top_p,
            "truncation": asked.truncation or "disabled",
            "usage": None,
            "user": asked.user,
        }


def _shown_choice(choice: ToolChoice) -> Any:
    if choice.names is None:
        return "none" if not choice.may_call else "required" if choice.required else "auto"
    tools = [{"type": "function", "name": name} for name in choice.names]
    if choice.one:
        return tools[0]
    return {"type": "allowed_tools", "mode": "required" if choice.required else "auto", "tools": tools}


class ResponseAnswer:
    """The events of a response. `keep` gets the response when it has ended, before anybody hears of that."""

    def __init__(
        self,
        header: ResponseHeader,
        asked: ResponseRequest,
        prompt_ids: Sequence[int],
        reader: AnswerReader,
        names: TokenNames,
        keep: Callable[[Json], None],
    ) -> None:
        self._body = header.body(asked)
        self._asked = asked
        self._reader = reader
        self._names = names
        self._keep = keep
        self._prompt_ids = prompt_ids
        self._token_ids: list[int] = []
        self._items = OutputItems()
        self._num_events = 0
        options = asked.stream_options
        self._pads = options is not None and bool(options.include_obfuscation)
        self.done = False

    def start(self) -> list[Chunk]:
        """The response as it begins, twice: clients know both events."""
        body = {**self._body}
        return [self._event({"type": f"response.{name}", "response": body}) for name in ("created", "in_progress")]

    def feed(self, index: int, output: Output) -> list[Chunk]:
        """See Answer.feed."""
        if self._asked.return_token_ids:
            self._token_ids += output.token_ids
        reason = None if output.finish is None else finish_reason(output.finish)
        events: list[Json] = []
        for event, draws in self._reader.feed(output):
            events += self._items.add(event, self._logprobs(draws))
        if output.finish is not None:
            events += self._items.end(cut=reason == "length")
            self._finish(output.finish, cut=reason == "length")
            self.done = True
        return [self._event(event) for event in events]

    def end(self) -> list[Chunk]:
        """The response as it ended."""
        self._keep(self._body)
        return [self._event({"type": f"response.{self._body['status']}", "response": self._body})]

    def fold(self, chunks: Iterable[Chunk]) -> dict[str, object]:
        """The response."""
        *_, last = cast("Iterable[dict[str, Any]]", chunks)
        return last["response"]

    def encoded(self, chunks: Iterable[Chunk]) -> bytes:
        """Events with their names."""
        return b"".join(sse_event(cast("str", chunk["type"]), chunk) for chunk in chunks)

    def closing(self, error: RequestError | None) -> bytes:
        """The response as it failed, if it did. No other last word: the last event says that it is the last."""
        if error is None:
            return b""
        failed = {"code": "server_error", "message": error.message}
        self._body |= {"status": "failed", "error": failed, "output": self._items.bodies()}
        return self.encoded([self._event({"type": "response.failed", "response": self._body})])

    def _event(self, event: Json) -> Chunk:
        number, self._num_events = self._num_events, self._num_events + 1
        numbered: Json = {"type": event["type"], "sequence_number": number, **event}
        if self._pads and "delta" in event:
            numbered["obfuscation"] = _padding(event["delta"])
        return numbered

    def _logprobs(self, draws: list[Draw]) -> list[Json]:
        return cast("list[Json]", chat_logprobs(draws, self._names)["content"]) if draws else []

    def _finish(self, finish: Finish, *, cut: bool) -> None:
        self._body |= {
            "status": "incomplete" if cut else "completed",
            "completed_at": None if cut else int(time.time()),
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "output": self._items.bodies(),
            "usage": _usage(len(self._prompt_ids), finish, self._reader.num_reasoning_tokens),
            **ending(finish),
        }
        if self._asked.return_token_ids:
            self._body |= {"prompt_token_ids": list(self._prompt_ids), "token_ids": self._token_ids}


def _usage(prompt_tokens: int, finish: Finish, reasoning_tokens: int) -> Json:
    return {
        "input_tokens": prompt_tokens,
        "input_tokens_details": {"cached_tokens": finish.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": finish.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": reasoning_tokens},
        "total_tokens": prompt_tokens + finish.completion_tokens,
    }


def _padding(delta: str) -> str:
    """Random characters that fill a delta up."""
    length = -len(delta) % _PAD
    return secrets.token_urlsafe(length)[:length]
