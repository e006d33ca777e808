"""`POST /v1/responses`, and what can be done with a response that is stored."""

from __future__ import annotations

import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from fastapi import APIRouter, Request
from starlette.exceptions import HTTPException
from starlette.responses import Response

from ...kernels.errors import RequestError
from ...models.tokenizer import StreamDecoder
from ..bridge import Choice
from ..choices import TokenNames
from ..conversation import Conversation, prepared
from ..encoding import json_response
from ..openapi import takes
from ..reply import reply
from ..responses.answer import ResponseAnswer, ResponseHeader
from ..responses.context import Context, context_of, found
from ..responses.output import Json, item_id
from ..responses.reading import AnswerReader
from ..responses.store import Shelf
from ..responses.truncation import shortened
from ..schema.chat import Message
from ..schema.responses import ResponseRequest
from ..service import Service, service_of
from ..structured import format_constraint

router = APIRouter()

_PARAMS = {"messages": "input", "reasoning_effort": "reasoning.effort"}  # what chat calls a field, and what we do
_MAX_LISTED = 100
_ANSWERS_SHARE = 8  # with truncation, an answer of unknown length is left this part of the context


@router.post("/v1/responses", openapi_extra=takes(ResponseRequest))
async def create_response(request: Request) -> Response:
    """Responds to items, going on from an earlier response or not."""
    service = service_of(request)
    tenant = service.gate.tenant(request)
    asked = await service.read(request, ResponseRequest)
    model = service.model.check(asked.model)
    if asked.store and not service.responses.keeps:
        raise RequestError("This server stores no responses", param="store", code="unsupported_parameter")
    service.bridge.admit(1)
    shelf = service.responses.shelf(tenant)
    context = context_of(asked, shelf)
    talk, limit = await _conversation(service, context, asked)
    header = ResponseHeader(
        item_id("resp"),
        int(time.time()),
        model,
        service.engine.fingerprint,
        asked.drawn_seed(),
        service.responses.keeps and asked.store is not False,
    )
    choice = _choice(service, talk, asked, header.seed, limit)
    answer = _answer(service, talk, asked, header, context, shelf)
    generation = service.bridge.open(header.id, [choice], tenant.cache_salt(asked.cache_salt), asked.priority or 0)
    return await reply(request, generation, answer, bool(asked.stream), service.settings.times)


@router.post("/v1/responses/input_tokens", openapi_extra=takes(ResponseRequest))
async def count_input_tokens(request: Request) -> Response:
    """How many tokens the input of a request would have."""
    service = service_of(request)
    tenant = service.gate.tenant(request)
    asked = await service.read(request, ResponseRequest)
    service.model.check(asked.model)
    context = context_of(asked, service.responses.shelf(tenant))
    with _our_names():
        messages = await service.prompter.run(lambda: _shown(service, context, asked))
        prompt = await service.prompter.from_messages(messages, asked)
    return json_response({"object": "response.input_tokens", "input_tokens": len(prompt.token_ids)})


@router.api_route("/v1/responses/input_tokens", methods=["GET", "DELETE"], include_in_schema=False)
async def refuse_input_tokens(request: Request) -> Response:
    """It is no response's id, as which the routes below would take it."""
    raise HTTPException(405, headers={"Allow": "POST"})


@contextmanager
def _our_names() -> Generator[None]:
    """Errors of the chat machinery name the fields that responses have."""
    try:
        yield
    except RequestError as error:
        error.param = _PARAMS.get(error.param or "", error.param)
        raise


async def _conversation(service: Service, context: Context, asked: ResponseRequest) -> tuple[Conversation, int]:
    """The conversation and the most tokens of the answer."""
    wanted = format_constraint(asked.text_config().format, "text.format")
    with _our_names():
        messages = await service.prompter.run(lambda: _shown(service, context, asked))
        talk = await prepared(service, messages, asked, answer=wanted, reasoning_limit=asked.reasoning_limit())
        return talk, service.prompter.answer_limit(
            talk.prompt, asked.max_output_tokens, None, param="input", limit_param="max_output_tokens"
        )


def _shown(service: Service, context: Context, asked: ResponseRequest) -> Sequence[Message]:
    """The messages that the model is shown: all, unless the request lets the oldest go."""
    messages = context.messages()
    if asked.truncation != "auto":
        return messages
    prompter = service.prompter
    answer = asked.max_output_tokens or prompter.max_context // _ANSWERS_SHARE

    def fits(some: Sequence[Message]) -> bool:
        try:
            length = len(prompter.render(some, asked).token_ids)
        except RequestError as error:
            if error.code == "context_length_exceeded":
                return False
            raise
        return length + answer <= prompter.max_context

    return shortened(messages, fits)


def _choice(service: Service, talk: Conversation, asked: ResponseRequest, seed: int, limit: int) -> Choice:
    params = asked.generation_params(
        seed=seed,
        max_tokens=limit,
        vocab_size=service.model.vocab_size,
        num_logprobs=asked.num_logprobs(),
        visible_ids=talk.chat.visible_ids(talk.plan),
        grammar=talk.grammar,
    )
    return Choice(talk.prompt.token_ids, params, asked.speculation_wishes())


def _answer(
    service: Service,
    talk: Conversation,
    asked: ResponseRequest,
    header: ResponseHeader,
    context: Context,
    shelf: Shelf,
) -> ResponseAnswer:
    tokenizer = service.model.tokenizer
    reader = AnswerReader(
        talk.chat.reader(talk.plan, talk.begin, constrained=talk.constrained),
        StreamDecoder(tokenizer, talk.prompt.token_ids, visible_ids=talk.chat.visible_ids(talk.plan)),
        with_draws=asked.num_logprobs() is not None,
    )

    def keep(response: Json) -> None:
        if header.is_stored:
            shelf.put(context.stored(response))

    names = TokenNames(tokenizer, bool(asked.return_tokens_as_token_ids))
    return ResponseAnswer(header, asked, talk.prompt.token_ids, reader, names, keep)


@router.get("/v1/responses/{response_id}")
async def get_response(request: Request, response_id: str) -> Response:
    """A stored response."""
    stored = found(_shelf(request), response_id)
    if request.query_params.get("stream", "false").lower() not in ("false", "0"):
        raise RequestError("A stored response is not streamed again", param="stream", code="unsupported_parameter")
    return json_response(stored.body())


@router.delete("/v1/responses/{response_id}")
async def delete_response(request: Request, response_id: str) -> Response:
    """Forgets a stored response. Those that went on from it keep what they were shown."""
    shelf = _shelf(request)
    found(shelf, response_id)
    shelf.remove(response_id)
    return json_response({"id": response_id, "object": "response", "deleted": True})


@router.post("/v1/responses/{response_id}/cancel")
async def cancel_response(request: Request, response_id: str) -> Response:
    """Refused: responses run while their connection is open, and end with it."""
    found(_shelf(request), response_id)
    raise RequestError(
        "Only background responses can be cancelled, and this server runs none; close the connection instead",
        code="not_cancellable",
    )


@router.get("/v1/responses/{response_id}/input_items")
async def list_input_items(request: Request, response_id: str) -> Response:
    """What the model was shown, page by page, the latest first unless asked otherwise."""
    stored = found(_shelf(request), response_id)
    return json_response(_page(stored.inputs(), request.query_params))


def _shelf(request: Request) -> Shelf:
    service = service_of(request)
    return service.responses.shelf(service.gate.tenant(request))


def _page(items: Sequence[Json], query: Mapping[str, str]) -> dict[str, Any]:
    """A part of the items. RequestError 400 for a query that makes no sense."""
    order, limit, after = query.get("order", "desc"), query.get("limit", "20"), query.get("after")
    if order not in ("asc", "desc"):
        raise RequestError("order: must be 'asc' or 'desc'", param="order", code="invalid_value")
    if not limit.isascii() or not limit.isdecimal() or not 1 <= int(limit[:9]) <= _MAX_LISTED:
        raise RequestError(f"limit: must be 1 to {_MAX_LISTED}", param="limit", code="invalid_value")
    ordered = list(items if order == "asc" else reversed(items))
    start = 0
    if after is not None:
        ids = [item["id"] for item in ordered]
        if after not in ids:
            raise RequestError("after: is not one of the items", param="after", code="invalid_value")
        start = ids.index(after) + 1
    shown = ordered[start : start + int(limit)]
    return {
        "object": "list",
        "data": shown,
        "first_id": shown[0]["id"] if shown else None,
        "last_id": shown[-1]["id"] if shown else None,
        "has_more": start + len(shown) < len(ordered),
    }
