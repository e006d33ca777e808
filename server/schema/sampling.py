"""The request fields that every generating route shares, and their translation into engine parameters."""

from __future__ import annotations

import hashlib
import math
import re
import secrets
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

from ...engine.grammar.matcher import Grammar
from ...engine.repetition_guard import RepetitionLimit
from ...engine.request import GenerationParams, RequestSpeculation
from ...engine.speculation.policy import request_speculation
from ...kernels.errors import RequestError

_SEED_BITS = 64
_GREEDY_BELOW = 1e-5  # a temperature under this is greedy: dividing by it would overflow float32
_MAX_BIAS = 100  # of a logit: it and its negative are no numbers but a wish for nothing else, and a ban
_MAX_STOPS = 64
_MAX_STOP_LENGTH = 4096  # characters
WHAT_FITS = -1  # as a number of tokens; what llama.cpp and its clients write for "to the end"


def _integral(value: Any) -> Any:
    """JavaScript clients write 16.0."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


Whole = Annotated[int, BeforeValidator(_integral)]
StopString = Annotated[str, Field(min_length=1, max_length=_MAX_STOP_LENGTH)]
StopStrings = Annotated[list[StopString], Field(max_length=_MAX_STOPS)]
TokenId = Annotated[Whole, Field(ge=0, lt=2**31)]


class Strict(BaseModel):
    """A request object: no coercion of types, no NaN or infinity; unknown names are the field table's business."""

    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False, frozen=True)

    other_defaults: ClassVar[frozenset[str]] = frozenset()  # names of fields.REFUSED whose default would not hold here


def _is_on(value: bool) -> bool:
    if not value:
        raise PydanticCustomError("not_on", "must be true or left out")
    return value


def _is_off(value: bool) -> bool:
    if value:
        raise PydanticCustomError("not_off", "is not supported, so it must be false")
    return value


# Not literals: those take 0 for false and 1 for true.
On = Annotated[bool, AfterValidator(_is_on), WithJsonSchema({"type": "boolean", "const": True})]
Off = Annotated[bool, AfterValidator(_is_off), WithJsonSchema({"type": "boolean", "const": False})]


class StreamOptions(Strict):
    """`stream_options`. The last two change the chunks in ways that are not implemented, so they must be off."""

    include_usage: bool | None = None
    continuous_usage_stats: Off | None = None
    include_obfuscation: Off | None = None


class RepetitionGuardField(Strict):
    """`repetition_guard`: ends an answer whose last tokens are `repeats` copies of a block of up to `period` tokens."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    period: Whole = Field(ge=1, le=256)
    repeats: Whole = Field(ge=2, le=1024)


class DrawingFields(Strict):
    """Sampling, stopping and output fields of every generating route."""

    model: str | None = None
    stream: bool | None = None
    stop: Annotated[
        StopStrings | None, BeforeValidator(_as_list, json_schema_input_type=StopString | StopStrings | None)
    ] = None
    stop_token_ids: list[TokenId] | None = Field(None, description="Ids that end the answer as an end token does")
    ignore_eos: bool | None = Field(None, description="Go on over the model's end tokens")
    min_tokens: Whole | None = Field(
        None, ge=0, lt=2**31, description="Before so many tokens no end token, stop text or guard ends the answer"
    )
    repetition_guard: RepetitionGuardField | None = None
    seed: Whole | None = Field(
        None, ge=-(2**63), lt=2**64, description="The answer is a function of it; without one, or for -1, one is drawn"
    )
    temperature: float | None = Field(None, ge=0, le=100, description="0 is greedy; 1 by default")
    top_p: float | None = Field(None, ge=0, le=1)
    top_k: Whole | None = Field(None, ge=-1, lt=2**31, description="0 and -1 switch it off")
    min_p: float | None = Field(None, ge=0, le=1, description="Least probability, as a share of the best token's")
    repetition_penalty: float | None = Field(None, gt=0, le=100, description="Of tokens in prompt or answer; 1 is none")
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    logit_bias: dict[str, float] | None = Field(
        None, description="Token id to a number from -100, a ban, to 100, nothing else"
    )
    return_token_ids: bool | None = Field(None, description="Ids of prompt and answer beside the text")
    return_tokens_as_token_ids: bool | None = Field(None, description="Log-probabilities name tokens token_id:N")
    cache_salt: str | None = Field(
        None, min_length=1, max_length=1024, description="Only requests with the same one share cached prefixes"
    )
    priority: Whole | None = Field(None, ge=-(2**31), lt=2**31, description="Lower runs first; 0 by default")
    speculation: dict[str, Any] | None = Field(
        None, description="enabled and draft_tokens narrow the operator's policy; report returns what it did"
    )
    user: str | None = Field(None, description="For the client's own books")

    def speculation_wishes(self) -> RequestSpeculation:
        """What the request asks of speculation. RequestError 400 names an unknown or malformed setting."""
        return request_speculation(self.speculation)

    def drawn_seed(self) -> int:
        """The request's seed as 64 unsigned bits; a fresh one when there is none, or -1 as elsewhere.

        A fresh one has 53 bits, so that a JavaScript client can read it and send it back.
        """
        if self.seed is None or self.seed == -1:
            return secrets.randbits(53)
        return self.seed % 2**_SEED_BITS

    def generation_params(
        self,
        *,
        seed: int,
        max_tokens: int,
        vocab_size: int,
        num_logprobs: int | None,
        prompt_logprobs: int | None = None,
        visible_ids: frozenset[int] = frozenset(),
        grammar: Grammar | None = None,
    ) -> GenerationParams:
        """The engine's parameters of one choice."""
        if (self.min_tokens or 0) > max_tokens:
            raise RequestError(
                f"min_tokens: {self.min_tokens} is more than the {max_tokens} tokens to generate",
                param="min_tokens",
                code="invalid_value",
            )
        temperature = 1.0 if self.temperature is None else self.temperature
        guard = self.repetition_guard
        return GenerationParams(
            max_tokens=max_tokens,
            seed=seed,
            temperature=0.0 if temperature < _GREEDY_BELOW else temperature,
            top_k=max(self.top_k or 0, 0),
            top_p=1.0 if self.top_p is None else self.top_p,
            min_p=self.min_p or 0.0,
            repetition_penalty=1.0 if self.repetition_penalty is None else self.repetition_penalty,
            presence_penalty=self.presence_penalty or 0.0,
            frequency_penalty=self.frequency_penalty or 0.0,
            logit_bias=_logit_bias(self.logit_bias or {}, vocab_size),
            stop=tuple(self.stop or ()),
            stop_token_ids=tuple(self.stop_token_ids or ()),
            ignore_eos=bool(self.ignore_eos),
            min_tokens=self.min_tokens or 0,
            repetition_guard=None if guard is None else RepetitionLimit(guard.period, guard.repeats),
            visible_ids=visible_ids,
            grammar=grammar,
            num_logprobs=num_logprobs,
            prompt_logprobs=prompt_logprobs,
        )


class PromptScoreFields(Strict):
    """`prompt_logprobs`: what the model thought of the prompt's tokens."""

    prompt_logprobs: Whole | None = Field(None, ge=0, le=20, description="Alternatives per prompt token")


class SamplingFields(DrawingFields):
    """The fields that chat and completions share."""

    max_tokens: Whole | None = Field(None, ge=WHAT_FITS, lt=2**31, description="-1 asks for what fits")
    n: Whole | None = Field(None, ge=1, le=128)
    stream_options: StreamOptions | None = None
    metadata: dict[str, Any] | None = Field(None, description="For the client's own books")

    def num_choices(self) -> int:
        """Choices per prompt."""
        return self.n or 1

    def wants_usage(self) -> bool:
        """Whether a stream ends with a usage chunk."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)


def choice_seed(seed: int, choice: int) -> int:
    """The seed of choice `choice`: the request's own for the first, then hashes that no seed+i can meet by accident."""
    if choice == 0:
        return seed
    data = seed.to_bytes(8, "little") + choice.to_bytes(8, "little")
    return int.from_bytes(hashlib.blake2b(data, digest_size=8, person=b"surefoot choice").digest(), "little")


def _logit_bias(entries: dict[str, float], vocab_size: int) -> tuple[tuple[int, float], ...]:
    biases: dict[int, float] = {}
    for key, bias in entries.items():
        if not (
            re.fullmatch(r"0|[1-9][0-9]{0,9}", key) and int(key) < vocab_size
        ):  # "1" and "01" would be one id twice
            raise RequestError(
                f"logit_bias: '{key[:40]}' is not a token id below {vocab_size}",
                param="logit_bias",
                code="invalid_value",
            )
        if abs(bias) > _MAX_BIAS:
            raise RequestError(
                f"logit_bias: the bias of {key} must be between -100 and 100", param="logit_bias", code="invalid_value"
            )
        biases[int(key)] = bias if abs(bias) < _MAX_BIAS else math.copysign(math.inf, bias)
    return tuple(sorted(biases.items()))
