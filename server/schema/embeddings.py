"""`POST /v1/embeddings`: its body."""

from __future__ import annotations

from typing import Any, Literal, cast

from pydantic import Field, field_validator
from pydantic_core import PydanticCustomError

from .completions import ITEMS_SCHEMA, PromptItem, is_ids
from .sampling import Strict, Whole

MAX_INPUTS = 2048  # OpenAI's


class EmbeddingRequest(Strict):
    """A text, or several, to embed."""

    model: str | None = None
    input: Any = Field(json_schema_extra={"description": "Text, token ids, or a list of either", **ITEMS_SCHEMA})
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Whole | None = Field(None, ge=1, lt=2**31)
    cache_salt: str | None = Field(None, min_length=1, max_length=1024)
    priority: Whole | None = Field(None, ge=-(2**31), lt=2**31)
    user: str | None = None  # accepted for the client's own books

    @field_validator("input")
    @classmethod
    def _shape(cls, value: Any) -> list[PromptItem]:
        """Any of OpenAI's four shapes as a list of inputs."""
        items = [value] if isinstance(value, str) or is_ids(value) else value
        if not isinstance(items, list) or not items:
            raise _unusable(
                "must be a string, a list of token ids, or a non-empty list of strings or of token id lists"
            )
        items = cast(list[Any], items)
        if len(items) > MAX_INPUTS:
            raise _unusable(f"has {len(items)} entries; {MAX_INPUTS} are allowed")
        for index, item in enumerate(items):
            if item == "":
                raise _unusable(f"entry {index} is empty")
            if not isinstance(item, str) and not is_ids(item):
                raise _unusable(f"entry {index} is neither a string nor a non-empty list of token ids")
        return items


def _unusable(message: str) -> PydanticCustomError:
    return PydanticCustomError("input_shape", "{message}", {"message": message})
