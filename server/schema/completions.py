"""`POST /v1/completions`: its body."""

from __future__ import annotations

from typing import Any, ClassVar, cast

from pydantic import Field, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from .sampling import PromptScoreFields, SamplingFields, Whole
from .structured import StructuredFields

PromptItem = str | list[int]

# For the OpenAPI document; the shapes are checked by hand.
_IDS_SCHEMA: dict[str, Any] = {"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 0}}
ITEMS_SCHEMA: dict[str, Any] = {
    "anyOf": [
        {"type": "string"},
        _IDS_SCHEMA,
        {"type": "array", "minItems": 1, "items": {"anyOf": [{"type": "string"}, _IDS_SCHEMA]}},
    ]
}


class CompletionRequest(SamplingFields, PromptScoreFields, StructuredFields):
    """A prompt, or several, to continue."""

    other_defaults: ClassVar[frozenset[str]] = frozenset({"n_predict"})  # to the end, but here 16 tokens

    prompt: Any = Field(json_schema_extra={"description": "Text, token ids, or a list of either", **ITEMS_SCHEMA})
    suffix: str | None = Field(None, description="The answer fits between the prompt and this")
    echo: bool | None = Field(None, description="Show the prompt before the answer")
    logprobs: Whole | None = Field(None, ge=0, le=20, description="Alternatives per token")
    best_of: Whole | None = Field(None, ge=1, description="Accepted where it equals n")

    @field_validator("prompt")
    @classmethod
    def _shape(cls, prompt: Any) -> list[PromptItem]:
        """Any of OpenAI's four shapes as a list of prompts. By hand: a union would check long id lists twice."""
        if isinstance(prompt, str):
            return [prompt]
        if isinstance(prompt, list) and prompt:
            prompt = cast(list[Any], prompt)
            if is_ids(prompt):
                return [prompt]
            if all(isinstance(item, str) or is_ids(item) for item in prompt):
                return prompt
        raise PydanticCustomError(
            "prompt_shape",
            "must be a string, a list of token ids, or a non-empty list of strings or of lists of token ids",
        )

    @field_validator("echo")
    @classmethod
    def _no_echo_of_a_gap(cls, echo: bool | None, info: ValidationInfo) -> bool | None:
        if echo and info.data.get("suffix"):
            raise PydanticCustomError(
                "echo_suffix", "cannot be combined with suffix: the answer does not follow the prompt"
            )
        return echo

    @field_validator("best_of")
    @classmethod
    def _best_of_is_n(cls, best_of: int | None, info: ValidationInfo) -> int | None:
        if best_of is not None and best_of != (info.data.get("n") or 1):
            raise PydanticCustomError(
                "best_of", "must equal n: drawing more choices than are returned is not supported"
            )
        return best_of

    def num_prompt_logprobs(self) -> int | None:
        """Alternatives per prompt token, enough for everybody who shows them; None if nobody does."""
        echoed = self.logprobs if self.echo else None
        return max((number for number in (echoed, self.prompt_logprobs) if number is not None), default=None)


def is_ids(value: Any) -> bool:
    """Whether a value is a non-empty list of token ids."""
    if not isinstance(value, list):
        return False
    items = cast(list[Any], value)
    return bool(items) and all(type(item) is int and item >= 0 for item in items)
