"""`POST /tokenize` and `POST /detokenize`."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from ...kernels.errors import RequestError
from ..choices import TokenNames
from ..encoding import json_response
from ..openapi import takes
from ..schema.tokens import DetokenizeRequest, TokenizeRequest
from ..service import service_of

router = APIRouter()


@router.post("/tokenize", openapi_extra=takes(TokenizeRequest))
async def tokenize(request: Request) -> Response:
    """Ids of a text or of a rendered conversation."""
    service = service_of(request)
    service.gate.tenant(request)
    body = await service.read(request, TokenizeRequest)
    service.model.check(body.model)
    if body.messages is not None:
        prompt = await service.prompter.from_messages(body.messages, body)
    else:
        prompt = await service.prompter.from_text(body.prompt or "", body.add_special_tokens is not False)
    names = TokenNames(service.model.tokenizer, as_ids=False)
    return json_response(
        {
            "count": len(prompt.token_ids),
            "max_model_len": service.model.max_context,
            "tokens": list(prompt.token_ids),
            "token_strs": [names(token) for token in prompt.token_ids] if body.return_token_strs else None,
        }
    )


@router.post("/detokenize", openapi_extra=takes(DetokenizeRequest))
async def detokenize(request: Request) -> Response:
    """Text of ids, special tokens written out."""
    service = service_of(request)
    service.gate.tenant(request)
    body = await service.read(request, DetokenizeRequest)
    service.model.check(body.model)
    tokenizer = service.model.tokenizer
    bad = next((token for token in body.tokens if token >= tokenizer.vocab_size), None)
    if bad is not None:
        raise RequestError(
            f"tokens: {bad} is not a token id below {tokenizer.vocab_size}", param="tokens", code="invalid_value"
        )
    text = await service.prompter.run(lambda: tokenizer.decode(body.tokens, skip_special=False))
    return json_response({"prompt": text})
