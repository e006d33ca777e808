"""`POST /v1/chat/completions`: its body."""

from __future__ import annotations

from typing import Annotated, Any, Literal, cast

from pydantic import Field, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from .sampling import WHAT_FITS, PromptScoreFields, SamplingFields, Strict, Whole
from .structured import WHOLE_ANSWER, StructuredFields
from .tools import HistoryCalls, ToolChoice, ToolFields

_MAX_MESSAGES = 4096


class Message(Strict):
    """One message of a conversation. `content` is text, text parts, or nothing."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: Any = Field(
        None,
        json_schema_extra={
            "anyOf": [
                {"type": "string"},
                {"type": "array", "items": {"type": "object", "required": ["type"]}},
                {"type": "null"},
            ]
        },
    )
    name: str | None = None
    tool_calls: HistoryCalls | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None

    @field_validator("content")
    @classmethod
    def _shape(cls, content: Any) -> str | list[dict[str, str]] | None:
        if content is None or isinstance(content, str):
            return content
        if isinstance(content, list):
            return [{"type": "text", "text": _part_text(part)} for part in cast(list[Any], content)]
        raise PydanticCustomError("content", "must be a string or a list of parts")

    def variables(self) -> dict[str, Any]:
        """The message as chat templates expect it: the fields that are there."""
        return {**self.model_dump(exclude_none=True), "content": self.content}

    def text(self) -> str:
        """The content as one text."""
        if isinstance(self.content, str):
            return self.content
        return "\n".join(part["text"] for part in self.content or ())


def _part_text(part: Any) -> str:
    match part:
        case {"type": "text" | "input_text" | "output_text", "text": str(text)}:
            return text
        case {"type": "refusal", "refusal": str(text)}:
            return text
        case {"type": str(kind)}:
            problem = "content parts of type '{kind}' are not supported, or lack their text"
            raise PydanticCustomError("content_part", problem, {"kind": kind[:40]})
        case _:
            raise PydanticCustomError("content_part", "a content part must be an object with a 'type'")


Messages = Annotated[list[Message], Field(min_length=1, max_length=_MAX_MESSAGES)]


Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


class TemplateFields(ToolFields):
    """How a conversation becomes a prompt."""

    add_generation_prompt: bool | None = Field(None, description="Whether the template opens an answer; it does")
    continue_final_message: bool | None = Field(None, description="Go on with the last message, the assistant's")
    add_special_tokens: bool | None = Field(
        None, description="Whether the model's own special tokens are put around; as needed by default"
    )
    chat_template_kwargs: dict[str, Any] | None = Field(None, description="Further variables of the chat template")
    reasoning_effort: Effort | None = None


class BudgetFields(Strict):
    """A limit for the tokens of the reasoning, in three spellings."""

    thinking_token_budget: Whole | None = Field(None, ge=0, lt=2**31, description="Most tokens of the reasoning")
    thinking_budget_tokens: Whole | None = Field(None, ge=-1, lt=2**31, description="The same; -1: no limit")
    reasoning_budget: Whole | None = Field(None, ge=-1, lt=2**31, description="The same; -1: no limit")

    def reasoning_limit(self) -> int | None:
        """The smallest that is given and not -1."""
        given = (self.thinking_token_budget, self.thinking_budget_tokens, self.reasoning_budget)
        return min((limit for limit in given if limit is not None and limit >= 0), default=None)


class ChatRequest(SamplingFields, PromptScoreFields, TemplateFields, BudgetFields, StructuredFields):
    """A conversation to answer."""

    messages: Messages
    max_completion_tokens: Whole | None = Field(None, ge=WHAT_FITS, lt=2**31, description="-1 asks for what fits")
    logprobs: bool | None = None
    top_logprobs: Whole | None = Field(None, ge=0, le=20)
    include_reasoning: bool | None = Field(None, description="Whether the answer shows the reasoning; it does")

    @field_validator("top_logprobs")
    @classmethod
    def _needs_logprobs(cls, top_logprobs: int | None, info: ValidationInfo) -> int | None:
        if top_logprobs and not info.data.get("logprobs"):
            raise PydanticCustomError("top_logprobs", "needs logprobs to be true")
        return top_logprobs

    @field_validator("tool_choice")
    @classmethod
    def _calls_or_text(cls, choice: ToolChoice, info: ValidationInfo) -> ToolChoice:
        text = next((name for name in WHOLE_ANSWER if info.data.get(name) is not None), None)
        if choice.required and text is not None:
            raise PydanticCustomError("tool_choice", "allows only calls, so '{text}' cannot hold", {"text": text})
        return choice

    def token_limit(self) -> tuple[int | None, str]:
        """The smaller of the two spellings, and its name; None where neither sets a limit."""
        given = {"max_completion_tokens": self.max_completion_tokens, "max_tokens": self.max_tokens}
        limits = [(limit, name) for name, limit in given.items() if limit is not None and limit != WHAT_FITS]
        return min(limits, default=(None, "max_completion_tokens"))

    def continued(self) -> str | None:
        """The assistant's message that the answer goes on with, if it does."""
        return self.messages[-1].text() if self.continue_final_message else None

    def num_logprobs(self) -> int | None:
        """Alternatives per token, or None without log-probabilities."""
        return (self.top_logprobs or 0) if self.logprobs else None
