"""`POST /v1/embeddings`: every input is a prompt of prefill work in the engine's ordinary batches."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence

import numpy as np
from fastapi import APIRouter, Request
from numpy.typing import NDArray
from starlette.responses import Response

from ...engine.pooling import normalised
from ...engine.request import GenerationParams, Output
from ...kernels.errors import RequestError
from ..bridge import Choice
from ..choices import check_finish
from ..chunks import Chunk
from ..openapi import takes
from ..prompts import CONTEXT, Prompt
from ..reply import whole_reply
from ..schema.embeddings import EmbeddingRequest
from ..service import new_id, service_of

router = APIRouter()

_MAX_TOKENS = 300_000  # of all inputs together; OpenAI's
_PARAMS = GenerationParams(max_tokens=0, seed=0)


@router.post("/v1/embeddings", openapi_extra=takes(EmbeddingRequest))
async def create_embeddings(request: Request) -> Response:
    """One vector of length 1 for each input."""
    service = service_of(request)
    tenant = service.gate.tenant(request)
    body = await service.read(request, EmbeddingRequest)
    model = service.model.check(body.model)
    pooling = service.model.embedding.check()
    size = service.model.embedding.chosen_size(body.dimensions)
    at_once = service.bridge.at_most(service.settings.embeddings_at_once)
    service.bridge.admit(min(len(body.input), at_once))
    prompts = await service.prompter.from_items(body.input, "input")
    _check_lengths(prompts, service.model.max_context)
    answer = EmbeddingAnswer(model, prompts, size, body.encoding_format == "base64")
    generation = service.bridge.open(
        new_id("embd"),
        [Choice(prompt.token_ids, _PARAMS, pooling=pooling) for prompt in prompts],
        tenant.cache_salt(body.cache_salt),
        body.priority or 0,
        at_once=at_once,
    )
    return await whole_reply(request, generation, answer, service.settings.times)


def _check_lengths(prompts: Sequence[Prompt], longest: int) -> None:
    """RequestError for an input without tokens, one that does not fit, or too much in all. Nothing is ever cut."""
    for index, prompt in enumerate(prompts):
        length = len(prompt.token_ids)
        if not 0 < length <= longest:
            raise RequestError(
                f"{CONTEXT} {longest} tokens; entry {index} of input has {length}",
                param="input",
                code="context_length_exceeded" if length else "invalid_value",
            )
    total = sum(len(prompt.token_ids) for prompt in prompts)
    if total > _MAX_TOKENS:
        raise RequestError(
            f"input: {total} tokens are more than a request may have in all ({_MAX_TOKENS})",
            param="input",
            code="too_many_tokens",
        )


class EmbeddingAnswer:
    """The one chunk of an embeddings answer: what each input gave."""

    def __init__(self, model: str, prompts: Sequence[Prompt], size: int, as_base64: bool) -> None:
        self._model = model
        self._size = size
        self._as_base64 = as_base64
        self._tokens = sum(len(prompt.token_ids) for prompt in prompts)
        self._embeddings: list[object] = [None] * len(prompts)
        self._left = len(prompts)

    @property
    def done(self) -> bool:
        """See Answer."""
        return not self._left

    def start(self) -> list[Chunk]:
        """See Answer."""
        return []

    def feed(self, index: int, output: Output) -> list[Chunk]:
        """See Answer."""
        if output.finish is not None:
            check_finish(output.finish)
            assert output.embedding is not None, "a pooled prompt has an embedding"
            self._embeddings[index] = self._written(normalised(output.embedding, self._size))
            self._left -= 1
        return []

    def _written(self, values: NDArray[np.float32]) -> object:
        """Base64 of little-endian float32, or numbers with all the digits of theirs."""
        return base64.b64encode(values.astype("<f4").tobytes()).decode() if self._as_base64 else values.tolist()

    def end(self) -> list[Chunk]:
        """See Answer."""
        return []

    def fold(self, chunks: Iterable[Chunk]) -> dict[str, object]:
        """OpenAI's list of embeddings."""
        return {
            "object": "list",
            "data": [
                {"object": "embedding", "index": index, "embedding": embedding}
                for index, embedding in enumerate(self._embeddings)
            ],
            "model": self._model,
            "usage": {"prompt_tokens": self._tokens, "total_tokens": self._tokens},
        }
