"""`POST /v1/responses`: its body."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias, cast

from pydantic import BeforeValidator, Field, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from .chat import BudgetFields, Effort
from .response_items import InputItem, ItemId
from .sampling import WHAT_FITS, DrawingFields, Strict, Whole
from .structured import ResponsesTextFormat, TextFormat
from .tools import AUTO, MAX_TOOLS, CallPlan, FunctionDefinition, ToolChoice, check_definitions, chosen, planned

_MAX_ITEMS = 4096
_LOGPROBS = "message.output_text.logprobs"
_INCLUDABLE = (_LOGPROBS, "reasoning.encrypted_content")  # the text of reasoning is never hidden, so needs no cipher
_MAX_PAIRS, _MAX_KEY, _MAX_VALUE = 16, 64, 512  # OpenAI's limits of `metadata`


def _as_items(value: Any) -> Any:
    return [{"role": "user", "content": value}] if isinstance(value, str) else value


_Limit: TypeAlias = Annotated[int, Field(ge=1, lt=2**31)] | Literal[-1] | None


def _limit(value: Any) -> Any:
    return None if value == WHAT_FITS else value


def _hosted(tool: Any) -> Any:
    if isinstance(tool, dict):
        kind = cast("dict[str, Any]", tool).get("type")
        if isinstance(kind, str) and kind != "function":
            problem = "tools of type '{kind}' are not supported by this server, only functions"
            raise PydanticCustomError("tool", problem, {"kind": kind[:40]})
    return cast("object", tool)


class FunctionTool(FunctionDefinition):
    """One of `tools`: a function, whose definition is not wrapped as in chat completions."""

    type: Literal["function"]

    def public(self) -> dict[str, Any]:
        """The tool as the API shows it."""
        shown = self.model_dump(include={"type", "name", "description", "parameters"})
        return {**shown, "strict": bool(self.strict)}


class TextConfig(Strict):
    """`text`: what the text of the answer looks like."""

    format: ResponsesTextFormat | None = None
    verbosity: Literal["medium"] | None = None

    def public(self) -> dict[str, Any]:
        """The setting as the API shows it."""
        made = (self.format or TextFormat(type="text")).model_dump(by_alias=True)
        return {"format": {name: value for name, value in made.items() if value is not None}, "verbosity": "medium"}


class ReasoningConfig(Strict):
    """`reasoning`. No summaries are written: the reasoning itself is in the output."""

    effort: Effort | None = None
    summary: Literal["auto"] | None = None
    generate_summary: Literal["auto"] | None = None
    context: Literal["auto"] | None = None  # which of it a later turn sees is for the template to say
    mode: Literal["standard"] | None = None


class ResponseStreamOptions(Strict):
    """`stream_options`. Obfuscation pads the events so that their sizes tell less about the text."""

    include_obfuscation: bool | None = None


class ResponseRequest(DrawingFields, BudgetFields):
    """Input to respond to."""

    input: Annotated[
        list[InputItem],
        BeforeValidator(_as_items, json_schema_input_type=str | list[InputItem]),
        Field(max_length=_MAX_ITEMS, json_schema_extra={"description": "Text, or a list of input items"}),
    ]
    instructions: str | None = None
    previous_response_id: ItemId | None = None
    store: bool | None = None
    metadata: dict[str, str] | None = None
    max_output_tokens: Annotated[
        Annotated[Whole, Field(ge=1, lt=2**31)] | None,
        BeforeValidator(_limit, json_schema_input_type=_Limit),
    ] = Field(None, description="-1 asks for what fits, as null does")
    include: list[str] | None = None
    top_logprobs: Whole | None = Field(None, ge=0, le=20)
    tools: Annotated[list[Annotated[FunctionTool, BeforeValidator(_hosted)]], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: Any = Field(
        None, json_schema_extra={"description": "auto, none, required, a named function, or allowed_tools"}
    )
    parallel_tool_calls: bool | None = None
    text: TextConfig | None = None
    reasoning: ReasoningConfig | None = None
    truncation: Literal["auto", "disabled"] | None = None
    stream_options: ResponseStreamOptions | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    @field_validator("metadata")
    @classmethod
    def _bounded(cls, metadata: dict[str, str] | None) -> dict[str, str] | None:
        pairs = (metadata or {}).items()
        if len(pairs) > _MAX_PAIRS or any(len(key) > _MAX_KEY or len(value) > _MAX_VALUE for key, value in pairs):
            problem = "at most {pairs} pairs, keys of {key} and values of {value} characters"
            limits = {"pairs": _MAX_PAIRS, "key": _MAX_KEY, "value": _MAX_VALUE}
            raise PydanticCustomError("metadata", problem, limits)
        return metadata

    @field_validator("include")
    @classmethod
    def _known(cls, include: list[str] | None) -> list[str] | None:
        for name in include or ():
            if name not in _INCLUDABLE:
                problem = "'{name}' is not supported by this server"
                raise PydanticCustomError("include", problem, {"name": name[:80]})
        return include

    @field_validator("top_logprobs")
    @classmethod
    def _needs_include(cls, top_logprobs: int | None, info: ValidationInfo) -> int | None:
        if top_logprobs and _LOGPROBS not in (info.data.get("include") or ()):
            raise PydanticCustomError("top_logprobs", "needs '{name}' in include", {"name": _LOGPROBS})
        return top_logprobs

    @field_validator("tools")
    @classmethod
    def _distinct(cls, tools: list[FunctionTool] | None) -> list[FunctionTool] | None:
        check_definitions(tools or ())
        return tools

    @field_validator("tool_choice")
    @classmethod
    def _choice(cls, choice: Any, info: ValidationInfo) -> ToolChoice:
        if "tools" not in info.data:  # they are wrong themselves, which is said of them
            return AUTO
        tools = cast("list[FunctionTool] | None", info.data["tools"])
        return chosen(choice, [tool.name for tool in tools or ()])

    def choice(self) -> ToolChoice:
        """How tools may be called."""
        return self.tool_choice or AUTO

    def text_config(self) -> TextConfig:
        """What the text looks like."""
        return self.text or TextConfig()

    def num_logprobs(self) -> int | None:
        """Alternatives per token, or None without log-probabilities."""
        return (self.top_logprobs or 0) if _LOGPROBS in (self.include or ()) else None

    # What a conversation's rendering asks for (see prompts.Rendering)

    @property
    def reasoning_effort(self) -> str | None:
        """See Rendering."""
        return None if self.reasoning is None else self.reasoning.effort

    @property
    def add_generation_prompt(self) -> None:
        """See Rendering."""

    @property
    def continue_final_message(self) -> None:
        """See Rendering."""

    @property
    def add_special_tokens(self) -> None:
        """See Rendering."""

    def call_plan(self) -> CallPlan | None:
        """What the answer may call; None: nothing, and the model sees no tools."""
        return planned(self.tools or (), self.choice(), self.parallel_tool_calls)
