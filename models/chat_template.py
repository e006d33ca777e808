"""Chat messages to prompt text by the model file's own template. Knows no HTTP shapes beyond OpenAI's messages."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

from jinja2 import TemplateSyntaxError

from ..kernels.errors import RequestError
from .template_sandbox import RENDER_ERRORS, CompiledTemplate
from .tokenizer import Tokenizer

if TYPE_CHECKING:
    from .gguf import Metadata

logger = logging.getLogger(__name__)

Message = Mapping[str, Any]
KEY = "tokenizer.chat_template"
TOOL_TEMPLATE = "tool_use"
_PROBE = "surefoot-probe"
_RESERVED = frozenset({"messages", "tools", "documents", "add_generation_prompt"})


def load_chat_template(metadata: Metadata, tokenizer: Tokenizer) -> ChatTemplate | None:
    """The file's templates, or None if it has none. One that cannot be compiled fails when it is used, not before."""
    sources: dict[str, str] = {}
    default = metadata.str(KEY, None)
    if default is not None:
        sources["default"] = default
    for name in metadata.section(f"{KEY}."):
        sources[name] = metadata.str(f"{KEY}.{name}")
    metadata.mark_read("tokenizer.chat_templates")
    return ChatTemplate(sources, _special_texts(tokenizer), metadata.path) if sources else None


def _special_texts(tokenizer: Tokenizer) -> dict[str, str]:
    vocabulary = tokenizer.vocabulary
    ids = {
        "bos_token": vocabulary.bos_id,
        "eos_token": vocabulary.eos_id,
        "pad_token": vocabulary.padding_id,
        "unk_token": vocabulary.unknown_id,
    }
    return {name: vocabulary.texts[token] for name, token in ids.items() if token is not None}


class ChatTemplate:
    """The templates of one model. `render` may be called from any thread."""

    def __init__(self, sources: Mapping[str, str], special_texts: Mapping[str, str], path: str = "model") -> None:
        self._templates: dict[str, _Template] = {}
        self._broken: dict[str, str] = {}
        for name, source in sources.items():
            try:
                self._templates[name] = _Template(source, special_texts)
            except TemplateSyntaxError as error:
                self._broken[name] = f"line {error.lineno}: {error.message}"
                logger.warning("%s: chat template '%s' cannot be used: line %s: %s", path, name, error.lineno, error)

    @property
    def variables(self) -> frozenset[str]:
        """Every name that some template reads from outside: says whether `tools` or `enable_thinking` do anything."""
        return frozenset[str]().union(*(template.variables for template in self._templates.values()))

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt for messages in OpenAI's form. `variables` are further ones (`chat_template_kwargs`).

        RequestError 400 with the template's own words when it refuses the messages.
        """
        clash = sorted(_RESERVED & (variables or {}).keys())
        if clash:
            raise RequestError(f"'{clash[0]}' cannot be set here", param="chat_template_kwargs")
        template = self._choose(bool(tools))
        return template.render(
            messages,
            {
                **(variables or {}),
                "tools": list(tools) if tools else None,
                "documents": list(documents) if documents else None,
                "add_generation_prompt": add_generation_prompt,
            },
        )

    def _choose(self, with_tools: bool) -> _Template:
        name = TOOL_TEMPLATE if with_tools and TOOL_TEMPLATE in self._templates | self._broken else "default"
        if name in self._templates:
            return self._templates[name]
        if name in self._broken:
            raise RequestError(f"the model's chat template cannot be compiled: {self._broken[name]}", param="messages")
        known = ", ".join(sorted(self._templates))
        raise RequestError(f"the model has no default chat template, only: {known}", param="messages")


class _Template:
    """One template and what it expects of messages, found out by trying when it first matters."""

    def __init__(self, source: str, special_texts: Mapping[str, str]) -> None:
        self._compiled = CompiledTemplate(source)
        self._special_texts = special_texts
        self._knows_developers = "developer" in source
        self.variables = self._compiled.variables

    def render(self, messages: Sequence[Message], variables: Mapping[str, object]) -> str:
        prepared = [self._prepare(message) for message in messages]
        try:
            return self._render(prepared, variables)
        except RENDER_ERRORS as error:
            reason = str(error) or type(error).__name__
            raise RequestError(f"the chat template refused the messages: {reason}", param="messages") from error

    def _render(self, messages: Sequence[Message], variables: Mapping[str, object]) -> str:
        return self._compiled.render({**self._special_texts, **variables, "messages": messages})

    def _prepare(self, message: Message) -> dict[str, Any]:
        """A message as this template wants it: content as text or parts, arguments as an object or as JSON text."""
        prepared = dict(message)
        if prepared.get("role") == "developer" and not self._knows_developers:
            prepared["role"] = "system"
        calls = message.get("tool_calls")
        if calls:
            prepared["tool_calls"] = [_with_arguments(call, as_object=self._takes_objects) for call in calls]
        content = message.get("content")
        if content is None:
            prepared["content"] = None if calls and self._takes_null_content else ""
        elif isinstance(content, str):
            prepared["content"] = [{"type": "text", "text": content}] if self._takes_only_parts else content
        else:
            texts = [_text_of(part) for part in content]
            parts = [{"type": "text", "text": text} for text in texts]
            prepared["content"] = parts if self._takes_parts else "\n".join(texts)
        return prepared

    @cached_property
    def _takes_parts(self) -> bool:
        return self._shows([{"role": "user", "content": [{"type": "text", "text": _PROBE}]}])

    @cached_property
    def _takes_only_parts(self) -> bool:
        return not self._shows([{"role": "user", "content": _PROBE}]) and self._takes_parts

    @cached_property
    def _takes_objects(self) -> bool:
        """Whether arguments belong as an object, which the template itself writes out."""
        return self._shows(_call_with({_PROBE: 1})) or not self._shows(_call_with(json.dumps({_PROBE: 1})))

    @cached_property
    def _takes_null_content(self) -> bool:
        arguments = {_PROBE: 1} if self._takes_objects else json.dumps({_PROBE: 1})
        return self._shows(_call_with(arguments, content=None))

    def _shows(self, messages: Sequence[Message]) -> bool:
        """Whether these messages render, their probe in the text and nothing written out as Python writes it."""
        try:
            text = self._render(messages, {"tools": None, "documents": None, "add_generation_prompt": False})
        except RENDER_ERRORS:
            return False
        return _PROBE in text and not any(sign in text for sign in ("'type'", f"'{_PROBE}'", "None"))


def _call_with(arguments: object, content: str | None = "") -> list[Message]:
    call = {"id": "call00001", "type": "function", "function": {"name": "f", "arguments": arguments}}
    return [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": content, "tool_calls": [call]},
        {"role": "tool", "content": "y", "tool_call_id": "call00001", "name": "f"},
    ]


def _text_of(part: Mapping[str, Any] | str) -> str:
    if isinstance(part, str):
        return part
    if part.get("type") != "text" or not isinstance(part.get("text"), str):
        raise RequestError(f"content parts of type '{part.get('type')}' are not supported", param="messages")
    return part["text"]


def _with_arguments(call: Mapping[str, Any], *, as_object: bool) -> dict[str, Any]:
    """A tool call with its arguments in the wanted form."""
    function: object = call.get("function")
    if not isinstance(function, Mapping):
        return dict(call)
    fields = cast("Mapping[str, object]", function)
    convert = _parsed if as_object else _written
    return {**call, "function": {**fields, "arguments": convert(fields.get("arguments"))}}


def _parsed(arguments: object) -> object:
    """JSON text as the object that it holds; anything else is left as the model wrote it."""
    if not isinstance(arguments, str):
        return arguments
    try:
        parsed: object = json.loads(arguments)
    except ValueError:
        return arguments
    return cast("object", parsed) if isinstance(parsed, dict) else arguments


def _written(arguments: object) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
