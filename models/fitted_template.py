"""One chat template, with messages brought into the form that it takes.

OpenAI's messages allow more than one form of the same thing, and every template knows one or two of them. Which ones is
found out by rendering a probe when it first matters: nothing is guessed from names, and nothing is dropped in silence.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

from ..kernels.errors import RequestError
from .template_sandbox import RENDER_ERRORS, CompiledTemplate, RanTooLong

Message = Mapping[str, Any]

_SYSTEM_ROLES = ("system", "developer")
_PROBE = "surefoot-probe"
_PROBE_TOOL: Mapping[str, object] = {
    "type": "function",
    "function": {"name": "f", "description": "d", "parameters": {"type": "object", "properties": {}, "required": []}},
}


@dataclass(frozen=True, slots=True)
class CallForm:
    """How a template takes a message with tool calls."""

    as_object: bool  # arguments as an object, which the template writes out; else as JSON text
    null_content: bool  # absent content as null; else as an empty text


_CALL_FORMS = (CallForm(True, True), CallForm(True, False), CallForm(False, True), CallForm(False, False))


class FittedTemplate:
    """Renders messages in OpenAI's form with one template, in any thread."""

    def __init__(self, source: str, special_texts: Mapping[str, str]) -> None:
        """Raises jinja2.TemplateSyntaxError."""
        self._compiled = CompiledTemplate(source)
        self._special_texts = special_texts
        self._knows_developers = "developer" in source
        self.variables = self._compiled.variables

    def render(self, messages: Sequence[Message], variables: Mapping[str, object]) -> str:
        """The text; RequestError 400 if the template refuses the messages or has no form for a part of them."""
        try:
            if any(message.get("role") in _SYSTEM_ROLES for message in messages) and not self._takes_system:
                messages = _with_system_in_user(messages)
            return self._render([self._prepare(message) for message in messages], variables)
        except RENDER_ERRORS as error:
            reason = str(error) or type(error).__name__
            raise RequestError(f"the chat template refused the messages: {reason}", param="messages") from error

    def _render(self, messages: Sequence[Message], variables: Mapping[str, object]) -> str:
        return self._compiled.render({**self._special_texts, **variables, "messages": messages})

    def _prepare(self, message: Message) -> dict[str, Any]:
        prepared = dict(message)
        if prepared.get("role") == "developer" and not self._knows_developers:
            prepared["role"] = "system"
        calls, content = message.get("tool_calls"), message.get("content")
        if content is not None:
            prepared["content"] = self._content(content)
        elif not calls:
            prepared["content"] = ""
        if calls:
            form = self._call_form
            if form is None:
                raise RequestError("the model's chat template has no form for tool calls", param="messages")
            prepared["tool_calls"] = [_with_arguments(call, as_object=form.as_object) for call in calls]
            if content is None:
                prepared["content"] = None if form.null_content else ""
        return prepared

    def _content(self, content: str | Sequence[Mapping[str, Any] | str]) -> str | list[dict[str, str]]:
        takes_text, takes_parts = self._content_forms
        texts = _texts(content)
        if takes_parts and not (takes_text and isinstance(content, str)):
            return [{"type": "text", "text": text} for text in texts]
        return "\n".join(texts)

    @cached_property
    def _takes_system(self) -> bool:
        return _PROBE in self._try([{"role": "system", "content": _PROBE}, {"role": "user", "content": "x"}])

    @cached_property
    def _content_forms(self) -> tuple[bool, bool]:
        """Whether the template takes content as text, and as parts. Parts must give what the text gives."""
        as_text = self._try([{"role": "user", "content": _PROBE}])
        as_parts = self._try([{"role": "user", "content": [{"type": "text", "text": _PROBE}]}])
        takes_text = _PROBE in as_text
        return takes_text, _PROBE in as_parts and (as_parts == as_text or not takes_text)

    @cached_property
    def _call_form(self) -> CallForm | None:
        """The first form in which arguments appear in the prompt as JSON or by field, not as Python writes them."""
        for form in _CALL_FORMS:
            text = self._try(_call_probe(form))
            by_python = f"'{_PROBE}'" in text or (form.null_content and "None" in text)
            if _PROBE in text and not by_python:
                return form
        return None

    def _try(self, messages: Sequence[Message]) -> str:
        """What a probe renders to, without tools or else with one; empty if the template refuses it."""
        for tools in (None, [_PROBE_TOOL]):
            try:
                return self._render(messages, {"tools": tools, "documents": None, "add_generation_prompt": False})
            except RanTooLong:
                raise
            except RENDER_ERRORS:
                continue
        return ""


def _call_probe(form: CallForm) -> list[Message]:
    arguments = {_PROBE: 1} if form.as_object else json.dumps({_PROBE: 1})
    call = {"id": "call00001", "type": "function", "function": {"name": "f", "arguments": arguments}}
    return [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": None if form.null_content else "", "tool_calls": [call]},
        {"role": "tool", "content": "y", "tool_call_id": "call00001", "name": "f"},
    ]


def _with_system_in_user(messages: Sequence[Message]) -> list[Message]:
    """For a template that knows no system role: its text goes before that of the user message that follows."""
    folded: list[Message] = []
    waiting: list[str] = []
    for message in messages:
        if message.get("role") in _SYSTEM_ROLES:
            waiting += _texts(message.get("content") or "")
        elif waiting and message.get("role") == "user":
            folded.append({**message, "content": "\n".join([*waiting, *_texts(message.get("content") or "")])})
            waiting = []
        else:
            folded.append(message)
    return [*folded, {"role": "user", "content": "\n".join(waiting)}] if waiting else folded


def _texts(content: str | Sequence[Mapping[str, Any] | str]) -> list[str]:
    return [content] if isinstance(content, str) else [_text_of(part) for part in content]


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
