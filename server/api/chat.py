"""`POST /v1/chat/completions`."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, cast

from fastapi import APIRouter, Request
from starlette.responses import Response

from ...engine.request import Output
from ..bridge import Choice
from ..choices import Held, TokenNames, Usage, chat_logprobs, finish_reason
from ..prompts import Prompt
from ..reply import Chunk, reply
from ..schema.chat import ChatRequest
from ..schema.sampling import choice_seed
from ..service import Header, Service, new_id, service_of

router = APIRouter()


@router.post("/v1/chat/completions")
async def create_chat_completion(request: Request) -> Response:
    """Answers a conversation."""
    service = service_of(request)
    tenant = service.gate.tenant(request)
    body = await service.read(request, ChatRequest)
    model = service.model.check(body.model)
    prompt = await service.prompter.from_messages(body.messages, body)
    limit = service.prompter.answer_limit(prompt, body.token_limit(), None, "messages")
    seed = body.drawn_seed()
    choices = [
        Choice(
            prompt.token_ids,
            body.generation_params(
                seed=choice_seed(seed, index),
                max_tokens=limit,
                vocab_size=service.model.vocab_size,
                num_logprobs=body.num_logprobs(),
            ),
        )
        for index in range(body.num_choices())
    ]
    header = Header(new_id("chatcmpl"), "chat.completion.chunk", int(time.time()), model, service.engine.fingerprint)
    answer = ChatAnswer(header, body, prompt, seed, service)
    generation = service.bridge.open(header.id, choices, tenant.cache_salt(body.cache_salt), body.priority or 0)
    return await reply(request, generation, answer, bool(body.stream), service.settings.times)


@dataclass(slots=True)
class _ChoiceState:
    held: Held = field(default_factory=Held)
    done: bool = False


class ChatAnswer:
    """The chunks of a chat completion."""

    def __init__(self, header: Header, body: ChatRequest, prompt: Prompt, seed: int, service: Service) -> None:
        self._header = header
        self._body = body
        self._prompt = prompt
        self._seed = seed
        self._names = TokenNames(service.model.tokenizer, bool(body.return_tokens_as_token_ids))
        self._usage = Usage([len(prompt.token_ids)], body.num_choices())
        self._states = [_ChoiceState() for _ in range(body.num_choices())]

    @property
    def done(self) -> bool:
        """Every choice has ended."""
        return all(state.done for state in self._states)

    def start(self) -> list[Chunk]:
        """A chunk with the role per choice. The first also has what an answer has once: seed and prompt ids."""
        chunks = [self._chunk(index, {"role": "assistant", "content": ""}) for index in range(len(self._states))]
        chunks[0]["seed"] = self._seed
        if self._body.return_token_ids:
            chunks[0]["prompt_token_ids"] = list(self._prompt.token_ids)
        return chunks

    def feed(self, index: int, output: Output) -> list[Chunk]:
        """See Answer.feed."""
        state = self._states[index]
        state.held.add(output)
        finish = output.finish
        if finish is None and not state.held.text:
            return []
        reason = None if finish is None else finish_reason(finish)
        held, state.held = state.held, Held()
        chunk = self._chunk(index, {"content": held.text} if held.text else {}, held, reason)
        if finish is not None:
            state.done = True
            self._usage.add(index, finish)
            cast(list[dict[str, object]], chunk["choices"])[0]["stop_reason"] = finish.stop_reason
        return [chunk]

    def _chunk(
        self, index: int, delta: dict[str, object], held: Held | None = None, reason: str | None = None
    ) -> Chunk:
        logprobs = chat_logprobs(held.draws, self._names) if held is not None and held.draws else None
        choice: dict[str, object] = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": reason}
        if self._body.return_token_ids and held is not None:
            choice["token_ids"] = held.token_ids
        return self._header.chunk([choice])

    def end(self) -> list[Chunk]:
        """The usage chunk."""
        return [{**self._header.chunk([]), "usage": self._usage.body()}]

    def shown(self, chunks: Iterable[Chunk]) -> list[Chunk]:
        """See Answer.shown."""
        return with_usage(chunks, self._body.wants_usage())

    def fold(self, chunks: Iterable[Chunk]) -> dict[str, object]:
        """A `chat.completion` object."""
        whole: dict[str, Any] = {}
        choices: dict[int, dict[str, Any]] = {}
        for chunk in cast(Iterable[dict[str, Any]], chunks):
            whole.update({**chunk, "choices": []})
            for part in chunk["choices"]:
                _fold_choice(choices.setdefault(part["index"], _empty_choice(part["index"])), part)
        return {**whole, "object": "chat.completion", "choices": [choices[index] for index in sorted(choices)]}


def with_usage(chunks: Iterable[Chunk], wanted: bool) -> list[Chunk]:
    """OpenAI's rule for streams: with `include_usage` every chunk has the key, null but in the last; else none has."""
    if wanted:
        return [chunk if "usage" in chunk else {**chunk, "usage": None} for chunk in chunks]
    return [chunk for chunk in chunks if "usage" not in chunk]


def _empty_choice(index: int) -> dict[str, Any]:
    message = {"role": "assistant", "content": "", "refusal": None}
    return {"index": index, "message": message, "logprobs": None, "finish_reason": None}


def _fold_choice(whole: dict[str, Any], part: dict[str, Any]) -> None:
    for name, value in part["delta"].items():
        if name != "role":
            whole["message"][name] = whole["message"].get(name, "") + value
    if part["logprobs"] is not None:
        if whole["logprobs"] is None:
            whole["logprobs"] = {"content": [], "refusal": None}
        whole["logprobs"]["content"] += part["logprobs"]["content"]
    whole["finish_reason"] = part["finish_reason"] or whole["finish_reason"]
    if "stop_reason" in part:
        whole["stop_reason"] = part["stop_reason"]
    if "token_ids" in part:
        whole["token_ids"] = whole.get("token_ids", []) + part["token_ids"]
