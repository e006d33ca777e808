"""`POST /v1/completions`."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any, cast

from fastapi import APIRouter, Request
from starlette.responses import Response

from ...engine.grammar.matcher import Grammar
from ...engine.request import Output
from ..bridge import Choice
from ..choices import (
    ENDING,
    CompletionLogprobs,
    Judged,
    TokenNames,
    ending,
    finish_reason,
    prompt_logprobs,
)
from ..chunks import Chunk, ChunkedAnswer, Header, Usage
from ..offsets import AnswerOffsets, Echo
from ..openapi import takes
from ..ports import Tokenizer
from ..prompts import Prompt
from ..reply import reply
from ..schema.completions import CompletionRequest
from ..schema.sampling import WHAT_FITS, choice_seed
from ..service import Service, new_id, service_of
from ..structured import compiled, constraint_of

router = APIRouter()

_DEFAULT_MAX_TOKENS = 16  # OpenAI's


@router.post("/v1/completions", openapi_extra=takes(CompletionRequest))
async def create_completion(request: Request) -> Response:
    """Continues one or several prompts."""
    service = service_of(request)
    tenant = service.gate.tenant(request)
    body = await service.read(request, CompletionRequest)
    model = service.model.check(body.model)
    service.bridge.admit(len(body.prompt) * body.num_choices())
    if body.suffix:
        prompts = await service.prompter.around(body.prompt, body.suffix)
    else:
        prompts = await service.prompter.from_items(body.prompt)
    seed = body.drawn_seed()
    grammar = await compiled(service.engine, constraint_of(body))
    choices = [choice for prompt in prompts for choice in _choices_of(prompt, body, seed, grammar, service)]
    header = Header(new_id("cmpl"), "text_completion", int(time.time()), model, service.engine.fingerprint)
    answer = CompletionAnswer(header, body, prompts, seed, service)
    generation = service.bridge.open(header.id, choices, tenant.cache_salt(body.cache_salt), body.priority or 0)
    return await reply(request, generation, answer, bool(body.stream), service.settings.times)


def _choices_of(
    prompt: Prompt, body: CompletionRequest, seed: int, grammar: Grammar | None, service: Service
) -> list[Choice]:
    """The n choices of one prompt. Their seeds do not depend on the other prompts of the request."""
    asked, default = (None, None) if body.max_tokens == WHAT_FITS else (body.max_tokens, _DEFAULT_MAX_TOKENS)
    limit = service.prompter.answer_limit(prompt, asked, default, param="prompt", limit_param="max_tokens")
    wishes = body.speculation_wishes()
    return [
        Choice(
            prompt.token_ids,
            body.generation_params(
                seed=choice_seed(seed, index),
                max_tokens=limit,
                vocab_size=service.model.vocab_size,
                num_logprobs=body.logprobs,
                prompt_logprobs=body.num_prompt_logprobs(),
                grammar=grammar,
            ),
            wishes,
        )
        for index in range(body.num_choices())
    ]


class _ChoiceState:
    """One choice's progress. With `echo` its first chunk begins with the prompt."""

    def __init__(self, tokenizer: Tokenizer, prompt: Prompt, echo: bool, logprobs: CompletionLogprobs | None) -> None:
        self._echo = Echo(tokenizer, prompt) if echo else None
        self._held = None if self._echo is None else Output(text=self._echo.text)  # what no chunk has shown yet
        self._logprobs = logprobs
        self._offsets = None  # nobody asks where tokens lie
        if logprobs is not None:
            self._offsets = AnswerOffsets(
                tokenizer, prompt.token_ids, 0 if self._held is None else len(self._held.text)
            )
        self._judged: list[Judged] = []  # tokens whose log-probabilities no chunk has shown yet
        self.started = False  # a chunk has shown something

    def add(self, output: Output) -> Output | None:
        """Takes an output. Returns what the chunk shows that is due; None: none is."""
        if self._echo is not None:
            self._add_echo(self._echo, output)
        if self._offsets is not None:
            self._judged += self._offsets.judged(output.token_ids, output.draws)
        shown = output if self._held is None else self._held.then(output)
        is_due = output.finish is not None or shown.text
        self._held = None if is_due else shown
        return shown if is_due else None

    def _add_echo(self, echo: Echo, output: Output) -> None:
        """What an output says of the prompt."""
        joint = echo.joint(output)
        if joint:
            self._held = (self._held or Output()).then(Output(text=joint))
        if self._offsets is not None:
            self._offsets.skip(len(joint))
            if output.prompt_draws is not None:
                self._judged += echo.judged(output.prompt_draws)

    def logprobs(self) -> dict[str, list[object]] | None:
        """Those of the chunk that is due."""
        if self._logprobs is None:
            return None
        judged, self._judged = self._judged, []
        return self._logprobs.body(judged)


class CompletionAnswer(ChunkedAnswer):
    """The chunks of a text completion. Choice p * n + j is choice j of prompt p."""

    def __init__(
        self, header: Header, body: CompletionRequest, prompts: Sequence[Prompt], seed: int, service: Service
    ) -> None:
        usage = Usage([len(prompt.token_ids) for prompt in prompts], body.num_choices())
        super().__init__(header, usage, body.wants_usage())
        self._body, self._prompts, self._seed = body, prompts, seed
        self._first = True
        tokenizer = service.model.tokenizer
        self._names = TokenNames(tokenizer, bool(body.return_tokens_as_token_ids))
        self._states = [
            _ChoiceState(
                tokenizer,
                prompt,
                bool(body.echo),
                None if body.logprobs is None else CompletionLogprobs(self._names, body.logprobs),
            )
            for prompt in prompts
            for _ in range(body.num_choices())
        ]
        self._num_open = len(self._states)

    @property
    def done(self) -> bool:
        """Every choice has ended."""
        return not self._num_open

    def start(self) -> list[Chunk]:
        """Nothing: a completion's first chunk is its first text."""
        return []

    def feed(self, index: int, output: Output) -> list[Chunk]:
        """See Answer.feed."""
        state = self._states[index]
        shown = state.add(output)
        if shown is None:
            return []
        choice: dict[str, object] = {
            "index": index,
            "text": shown.text,
            "logprobs": state.logprobs(),
            "finish_reason": None,
        }
        if self._body.return_token_ids:
            if not state.started:
                choice["prompt_token_ids"] = list(self._prompts[index // self._body.num_choices()].token_ids)
            choice["token_ids"] = shown.token_ids
        if shown.prompt_draws is not None and self._body.prompt_logprobs is not None:
            choice["prompt_logprobs"] = prompt_logprobs(shown.prompt_draws, self._body.prompt_logprobs, self._names)
        state.started = True
        if output.finish is not None:
            choice |= {"finish_reason": finish_reason(output.finish), **ending(output.finish)}
            self._num_open -= 1
            self.usage.add(index, output.finish)
        chunk: Chunk = {"choices": [choice]}
        if self._first:
            self._first = False
            chunk["seed"] = self._seed
        return [chunk]

    def fold(self, chunks: Iterable[Chunk]) -> dict[str, object]:
        """A `text_completion` object."""
        whole = self.header.fields()
        choices: dict[int, dict[str, Any]] = {}
        for chunk in cast(Iterable[dict[str, Any]], chunks):
            whole.update({**chunk, "choices": []})
            for part in chunk["choices"]:
                _fold_choice(choices.setdefault(part["index"], {"index": part["index"], "text": ""}), part)
        return {**whole, "choices": [choices[index] for index in sorted(choices)]}


def _fold_choice(whole: dict[str, Any], part: dict[str, Any]) -> None:
    whole["text"] += part["text"]
    if part["logprobs"] is None:
        whole["logprobs"] = None
    else:
        logprobs = whole.setdefault("logprobs", {name: [] for name in part["logprobs"]})
        for name, values in part["logprobs"].items():
            logprobs[name] += values
    whole["finish_reason"] = part["finish_reason"]
    for name in (*ENDING, "prompt_token_ids", "prompt_logprobs"):
        if name in part:
            whole[name] = part[name]
    if "token_ids" in part:
        whole["token_ids"] = whole.get("token_ids", []) + part["token_ids"]
