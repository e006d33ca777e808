"""`POST /v1/chat/completions`."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, cast

from fastapi import APIRouter, Request
from starlette.responses import Response

from ...engine.request import Output
from ..bridge import Choice
from ..choices import ENDING, TokenNames, chat_logprobs, ending, finish_reason, prompt_logprobs
from ..chunks import Chunk, ChunkedAnswer, Header, Usage
from ..conversation import prepared
from ..deltas import Delta, DeltaParser, merge_delta
from ..openapi import takes
from ..prompts import Prompt
from ..reply import reply
from ..schema.chat import ChatRequest
from ..schema.sampling import choice_seed
from ..service import Service, new_id, service_of
from ..structured import constraint_of

router = APIRouter()


@router.post("/v1/chat/completions", openapi_extra=takes(ChatRequest))
async def create_chat_completion(request: Request) -> Response:
    """Answers a conversation."""
    service = service_of(request)
    tenant = service.gate.tenant(request)
    body = await service.read(request, ChatRequest)
    model = service.model.check(body.model)
    service.bridge.admit(body.num_choices())
    talk = await prepared(
        service,
        body.messages,
        body,
        answer=constraint_of(body),
        continued=body.continued(),
        reasoning_limit=body.reasoning_limit(),
    )
    asked, spelling = body.token_limit()
    limit = service.prompter.answer_limit(talk.prompt, asked, None, param="messages", limit_param=spelling)
    seed, wishes = body.drawn_seed(), body.speculation_wishes()
    choices = [
        Choice(
            talk.prompt.token_ids,
            body.generation_params(
                seed=choice_seed(seed, index),
                max_tokens=limit,
                vocab_size=service.model.vocab_size,
                num_logprobs=body.num_logprobs(),
                prompt_logprobs=body.prompt_logprobs if index == 0 else None,  # the prompt is the same for all
                visible_ids=talk.chat.visible_ids(talk.plan),
                grammar=talk.grammar,
            ),
            wishes,
        )
        for index in range(body.num_choices())
    ]
    header = Header(new_id("chatcmpl"), "chat.completion.chunk", int(time.time()), model, service.engine.fingerprint)
    show = body.include_reasoning is not False
    parsers = [
        talk.chat.parser(talk.plan, talk.begin, constrained=talk.constrained, show_reasoning=show) for _ in choices
    ]
    answer = ChatAnswer(header, body, talk.prompt, seed, parsers, service)
    generation = service.bridge.open(header.id, choices, tenant.cache_salt(body.cache_salt), body.priority or 0)
    return await reply(request, generation, answer, bool(body.stream), service.settings.times)


@dataclass(slots=True)
class _ChoiceState:
    parser: DeltaParser
    held: Output | None = None  # what no chunk has shown yet, so that no chunk is empty
    spoke: bool = False  # it has given a delta


class ChatAnswer(ChunkedAnswer):
    """The chunks of a chat completion."""

    def __init__(
        self,
        header: Header,
        body: ChatRequest,
        prompt: Prompt,
        seed: int,
        parsers: Sequence[DeltaParser],
        service: Service,
    ) -> None:
        super().__init__(header, Usage([len(prompt.token_ids)], body.num_choices()), body.wants_usage())
        self._body = body
        self._prompt = prompt
        self._seed = seed
        self._names = TokenNames(service.model.tokenizer, bool(body.return_tokens_as_token_ids))
        self._states = [_ChoiceState(parser) for parser in parsers]
        self._num_open = len(self._states)

    @property
    def done(self) -> bool:
        """Every choice has ended."""
        return not self._num_open

    def start(self) -> list[Chunk]:
        """A chunk with the role per choice. The first also has what an answer has once: seed and prompt ids."""
        # An answer that may be only a call begins without content: who adds up its deltas then has null, not "".
        opening: Delta = {"role": "assistant", "content": None if self._body.may_call() else ""}
        chunks: list[Chunk] = [{"choices": [self._choice(index, opening, None)]} for index in range(len(self._states))]
        chunks[0]["seed"] = self._seed
        if self._body.return_token_ids:
            chunks[0]["prompt_token_ids"] = list(self._prompt.token_ids)
        return chunks

    def feed(self, index: int, output: Output) -> list[Chunk]:
        """See Answer.feed. Log-probabilities and ids go with the first delta after their tokens."""
        state, finish = self._states[index], output.finish
        shown = output if state.held is None else state.held.then(output)
        deltas = state.parser.feed(output.text)
        reason = ""
        if finish is not None:
            rest, reason = state.parser.end(finish_reason(finish))
            deltas = deltas + rest or [{} if state.spoke else {"content": ""}]  # an empty answer is a text
        state.held = None if deltas else shown
        if not deltas:
            return []
        state.spoke = True
        choices = [self._choice(index, delta, shown if at == 0 else None) for at, delta in enumerate(deltas)]
        if finish is not None:
            choices[-1] |= {"finish_reason": reason, **ending(finish)}
            self._num_open -= 1
            self.usage.add(index, finish)
        chunks: list[Chunk] = [{"choices": [choice]} for choice in choices]
        if shown.prompt_draws is not None and self._body.prompt_logprobs is not None:
            chunks[0]["prompt_logprobs"] = prompt_logprobs(shown.prompt_draws, self._body.prompt_logprobs, self._names)
        return chunks

    def _choice(self, index: int, delta: Delta, shown: Output | None) -> dict[str, object]:
        logprobs = chat_logprobs(shown.draws, self._names) if shown is not None and shown.draws else None
        choice: dict[str, object] = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": None}
        if self._body.return_token_ids and shown is not None:
            choice["token_ids"] = shown.token_ids
        return choice

    def fold(self, chunks: Iterable[Chunk]) -> dict[str, object]:
        """A `chat.completion` object."""
        whole = self.header.fields()
        choices: dict[int, dict[str, Any]] = {}
        for chunk in cast(Iterable[dict[str, Any]], chunks):
            whole.update({**chunk, "choices": []})
            for part in chunk["choices"]:
                _fold_choice(choices.setdefault(part["index"], _empty_choice(part["index"])), part)
        for choice in choices.values():
            if choice["message"].get("tool_calls"):  # a message that only calls has no content
                choice["message"]["content"] = choice["message"]["content"] or None
        return {**whole, "object": "chat.completion", "choices": [choices[index] for index in sorted(choices)]}


def _empty_choice(index: int) -> dict[str, Any]:
    message = {"role": "assistant", "content": "", "refusal": None}
    return {"index": index, "message": message, "logprobs": None, "finish_reason": None}


def _fold_choice(whole: dict[str, Any], part: dict[str, Any]) -> None:
    merge_delta(whole["message"], part["delta"])
    if part["logprobs"] is not None:
        whole["logprobs"] = whole["logprobs"] or {"content": [], "refusal": None}
        whole["logprobs"]["content"] += part["logprobs"]["content"]
    whole["finish_reason"] = part["finish_reason"] or whole["finish_reason"]
    whole |= {name: part[name] for name in ENDING if name in part}
    if "token_ids" in part:
        whole["token_ids"] = whole.get("token_ids", []) + part["token_ids"]
