"""Text and conversations to token ids, on worker threads: the event loop never tokenizes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, TypeVar

from ..kernels.errors import RequestError
from .chat_format import ChatFormat
from .ports import Tokenizer
from .schema.chat import Message
from .schema.tools import CallPlan

ResultT = TypeVar("ResultT")

CONTEXT = "This model's maximum context length is"  # OpenAI's words: clients tell this error from others by them

_WORKERS = 2
_SURELY_FITS = 16  # characters per token up to which a text is tokenized without asking


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt as the engine reads it."""

    token_ids: Sequence[int]
    text: str | None  # None: it arrived as ids


class Rendering(Protocol):
    """How a conversation becomes a prompt. None: as the template has it."""

    @property
    def add_generation_prompt(self) -> bool | None: ...
    @property
    def continue_final_message(self) -> bool | None: ...
    @property
    def add_special_tokens(self) -> bool | None: ...
    @property
    def chat_template_kwargs(self) -> Mapping[str, Any] | None: ...
    @property
    def reasoning_effort(self) -> str | None: ...
    def call_plan(self) -> CallPlan | None:
        """The tools that the model sees."""
        ...


class Prompter:
    """Prepares prompts. `max_context` bounds prompt and answer together."""

    def __init__(self, tokenizer: Tokenizer, chat: ChatFormat | None, max_context: int) -> None:
        self.tokenizer = tokenizer
        self.max_context = max_context
        self._chat = chat
        self._workers = ThreadPoolExecutor(_WORKERS, thread_name_prefix="surefoot-prompt")

    def chat(self) -> ChatFormat:
        """The model's chat format; RequestError if it has none."""
        if self._chat is None:
            raise RequestError(
                "This model has no chat template; use /v1/completions", param="messages", code="chat_template_missing"
            )
        return self._chat

    def close(self) -> None:
        """Ends the worker threads."""
        self._workers.shutdown(wait=True, cancel_futures=True)

    async def run(self, work: Callable[[], ResultT]) -> ResultT:
        """Runs `work` on a worker thread."""
        return await asyncio.get_running_loop().run_in_executor(self._workers, work)

    async def from_messages(self, messages: Sequence[Message], fields: Rendering) -> Prompt:
        """Renders and tokenizes a conversation."""
        return await self.run(lambda: self.render(messages, fields))

    def render(self, messages: Sequence[Message], fields: Rendering) -> Prompt:
        """See `from_messages`. Too slow for the event loop."""
        chat = self.chat()
        open_ended = bool(fields.continue_final_message)
        generate = not open_ended if fields.add_generation_prompt is None else fields.add_generation_prompt
        if open_ended and (generate or messages[-1].role != "assistant"):
            raise RequestError(
                "continue_final_message needs a final assistant message and no add_generation_prompt",
                param="continue_final_message",
                code="invalid_value",
            )
        text = chat.render(
            [self._shielded(message) for message in messages],
            fields.call_plan(),
            add_generation_prompt=generate,
            variables=chat.variables(fields.chat_template_kwargs, fields.reasoning_effort),
        )
        if open_ended:
            text = _cut_after(text, messages[-1].text().strip())
        self._refuse_hopeless(text, "messages")
        ids = self.tokenizer.encode_prompt(text, add_special=fields.add_special_tokens)
        return Prompt(ids, self.tokenizer.unshielded(text))

    def _shielded(self, message: Message) -> dict[str, Any]:
        """A message for the template. Control tokens may stand in the assistant's own words only."""
        variables = message.variables()
        if message.role == "assistant":
            return variables
        content = message.content
        if message.name:
            [variables["name"]] = self.tokenizer.shielded([message.name])
        if isinstance(content, str):
            [variables["content"]] = self.tokenizer.shielded([content])
        elif content:
            texts = self.tokenizer.shielded([part["text"] for part in content])
            variables["content"] = [{**part, "text": text} for part, text in zip(content, texts, strict=True)]
        return variables

    async def from_items(self, items: Sequence[str | list[int]], param: str = "prompt") -> list[Prompt]:
        """Tokenizes prompts of completions or inputs of embeddings; ids are checked. `param` is their field."""
        return await self.run(lambda: [self._item(item, param) for item in items])

    async def around(self, items: Sequence[str | list[int]], suffix: str) -> list[Prompt]:
        """Prompts that ask for what stands between each item and the suffix. RequestError if the model cannot."""
        return await self.run(lambda: [self._around(item, suffix) for item in items])

    def _around(self, item: str | list[int], suffix: str) -> Prompt:
        self._refuse_hopeless(suffix, "suffix")
        if isinstance(item, str):
            self._refuse_hopeless(item, "prompt")
        ids = self.tokenizer.encode_gap(item if isinstance(item, str) else self._item(item, "prompt").token_ids, suffix)
        if ids is None:
            raise RequestError(
                "suffix: this model has no fill-in-the-middle tokens, so it cannot write what stands before a suffix",
                param="suffix",
                code="unsupported_parameter",
            )
        return Prompt(ids, None)

    async def from_text(self, text: str, add_special: bool) -> Prompt:
        """Tokenizes one text."""
        return await self.run(lambda: self._encoded(text, add_special, "prompt"))

    def _item(self, item: str | list[int], param: str) -> Prompt:
        if isinstance(item, str):
            return self._encoded(item, add_special=True, param=param)
        limit = self.tokenizer.vocab_size
        bad = next((token for token in item if not 0 <= token < limit), None)
        if bad is not None:
            raise RequestError(f"{param}: {bad} is not a token id below {limit}", param=param, code="invalid_value")
        return Prompt(item, None)

    @cached_property
    def _longest_token(self) -> int:
        """Bytes. A pass over the vocabulary, made when a text is first so long that it matters."""
        tokenizer = self.tokenizer
        return max(len(tokenizer.token_bytes(token, special=True)) for token in range(tokenizer.vocab_size))

    def _refuse_hopeless(self, text: str, param: str | None = None) -> None:
        """Megabytes that cannot fit are not worth tokenizing: no token covers more bytes than the longest."""
        if len(text) > _SURELY_FITS * self.max_context and len(text) > self._longest_token * self.max_context:
            raise RequestError(
                f"{CONTEXT} {self.max_context} tokens; a text of {len(text)} characters cannot fit",
                param=param,
                code="context_length_exceeded",
            )

    def _encoded(self, text: str, add_special: bool, param: str | None = None) -> Prompt:
        self._refuse_hopeless(text, param)
        return Prompt(self.tokenizer.encode(text, add_special=add_special, parse_special=True), text)

    def answer_limit(
        self, prompt: Prompt, asked: int | None, default: int | None, *, param: str, limit_param: str
    ) -> int:
        """Tokens an answer may have. RequestError when the prompt is empty or it and the asked length do not fit.

        The error names `param`, the prompt's field, if the prompt alone is too long, else `limit_param`, the length's.
        """
        length = len(prompt.token_ids)
        if length == 0:
            raise RequestError("The prompt has no tokens", param=param, code="invalid_value")
        room = self.max_context - length
        least = 1 if asked is None else min(asked, 1)
        if room < least:
            raise RequestError(
                f"{CONTEXT} {self.max_context} tokens; the request has {length} prompt tokens, which leave no room "
                "for an answer: shorten the prompt",
                param=param,
                code="context_length_exceeded",
            )
        if asked is not None and asked > room:
            raise RequestError(
                f"{CONTEXT} {self.max_context} tokens; the request has {length} prompt tokens and {limit_param} asks "
                f"for {asked} more: lower it to at most {room}, or leave it out",
                param=limit_param,
                code="context_length_exceeded",
            )
        if asked is not None:
            return asked
        return room if default is None else min(room, default)


def _cut_after(text: str, last: str) -> str:
    """The rendered conversation up to the end of its final message's content, so that the model goes on with it."""
    at = text.rfind(last)
    if not last or at < 0:
        raise RequestError(
            "The chat template does not show the final message as it is, so it cannot be continued",
            param="continue_final_message",
            code="invalid_value",
        )
    return text[: at + len(last)]
