"""Chat messages to prompt text by the model file's own template. Knows no HTTP shapes beyond OpenAI's messages."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from jinja2 import TemplateSyntaxError

from ..kernels.errors import RequestError
from .fitted_template import FittedTemplate, Message
from .tokenizer import Tokenizer

if TYPE_CHECKING:
    from .gguf import Metadata

_log = logging.getLogger(__name__)

KEY = "tokenizer.chat_template"
TOOL_TEMPLATE = "tool_use"
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
        self._sources = dict(sources)
        self._templates: dict[str, FittedTemplate] = {}
        self._broken: dict[str, str] = {}
        for name, source in sources.items():
            try:
                self._templates[name] = FittedTemplate(source, special_texts)
            except TemplateSyntaxError as error:
                self._broken[name] = f"line {error.lineno}: {error.message}"
                _log.warning("%s: chat template '%s' cannot be used: line %s: %s", path, name, error.lineno, error)

    @property
    def variables(self) -> frozenset[str]:
        """Every name that some template reads from outside: says whether `tools` or `enable_thinking` do anything."""
        return frozenset[str]().union(*(template.variables for template in self._templates.values()))

    def source(self, with_tools: bool = False) -> str:
        """The text of the template that renders conversations with tools or without: what it teaches about formats."""
        name = self._name(with_tools)
        return self._sources.get(name, "")

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
        if tools and "tools" not in template.variables:
            raise RequestError("the model's chat template has no place for tools", param="tools")
        return template.render(
            messages,
            {
                **(variables or {}),
                "tools": list(tools) if tools else None,
                "documents": list(documents) if documents else None,
                "add_generation_prompt": add_generation_prompt,
            },
        )

    def _name(self, with_tools: bool) -> str:
        return TOOL_TEMPLATE if with_tools and TOOL_TEMPLATE in self._sources else "default"

    def _choose(self, with_tools: bool) -> FittedTemplate:
        name = self._name(with_tools)
        if name in self._templates:
            return self._templates[name]
        if name in self._broken:
            raise RequestError(f"the model's chat template cannot be compiled: {self._broken[name]}", param="messages")
        known = ", ".join(sorted(self._templates))
        raise RequestError(f"the model has no default chat template, only: {known}", param="messages")
