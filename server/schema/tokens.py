"""`POST /tokenize` and `/detokenize`: vLLM's shapes."""

from __future__ import annotations

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from .chat import Messages, TemplateFields
from .sampling import Strict, TokenId


class TokenizeRequest(TemplateFields):
    """Text, or a conversation to be rendered. Both get the special tokens that a completion or a chat would get."""

    model: str | None = None
    prompt: str | None = None
    messages: Messages | None = None
    return_token_strs: bool | None = None

    @model_validator(mode="after")
    def _one_source(self) -> TokenizeRequest:
        if (self.prompt is None) == (self.messages is None):
            raise PydanticCustomError("source", "exactly one of 'prompt' and 'messages' must be given")
        return self


class DetokenizeRequest(Strict):
    """Token ids to turn into text."""

    model: str | None = None
    tokens: list[TokenId] = Field(max_length=2**22)
