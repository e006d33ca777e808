"""The dialects by name, and which one a chat template teaches its model."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module

from ...kernels.errors import ConfigError
from .dialect import Dialect

_DIALECTS: Mapping[str, str] = {
    "hermes": "hermes:Hermes",
    "qwen_coder": "qwen_coder:QwenCoder",
    "llama3_json": "llama3_json:Llama3Json",
    "pythonic": "pythonic:Pythonic",
    "lfm2": "pythonic:Lfm2",
    "llama4_pythonic": "pythonic:Llama4",
    "mistral": "mistral:MistralList",
    "mistral_v11": "mistral:MistralNamed",
    "gemma": "gemma:Gemma",
    "functiongemma": "gemma:FunctionGemma",
    "glm": "glm:Glm",
    "glm_compact": "glm:GlmCompact",
    "deepseek_v3": "deepseek:DeepSeekFenced",
    "deepseek_v31": "deepseek:DeepSeekJson",
    "deepseek_v32": "deepseek:DeepSeekMarkup",
    "deepseek_v4": "deepseek:DeepSeekMarkup4",
    "nemotron": "nemotron:Nemotron",
}

# What a template that teaches a dialect contains, all of it. The first that fits is taken, so the particular come
# before the general.
_SIGNS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("gemma", ("<|tool_call>", "call:")),
    ("functiongemma", ("<start_function_call>",)),
    ("qwen_coder", ("<function=", "<parameter=")),
    ("glm_compact", ("<tool_call>{function-name}<arg_key>",)),
    ("glm", ("<tool_call>", "<arg_key>")),
    ("deepseek_v4", ("\uff5cDSML\uff5c", "tool_calls>")),
    ("deepseek_v32", ("\uff5cDSML\uff5c",)),
    ("deepseek_v3", ("<\uff5ctool▁calls▁begin\uff5c>", "```json")),
    ("deepseek_v31", ("<\uff5ctool▁calls▁begin\uff5c>",)),
    ("nemotron", ("<TOOLCALL>",)),
    ("mistral_v11", ("[TOOL_CALLS]", "[ARGS]")),
    ("mistral", ("[TOOL_CALLS]",)),
    ("lfm2", ("<|tool_call_start|>",)),
    ("llama4_pythonic", ("<|python_start|>",)),
    ("pythonic", ("func_name1(params_name1",)),
    ("hermes", ("<tool_call>", "arguments")),
    ("llama3_json", ('"parameters": ', "dictionary of argument name and its value")),
    ("llama3_json", ("<|python_tag|>", '"parameters"')),
)

NAMES = tuple(_DIALECTS)
FALLBACK = "hermes"  # for models whose template knows no tools: its format is described in the system message


@cache
def load(name: str) -> Dialect:
    """The dialect of a name. ConfigError lists the known ones."""
    if name not in _DIALECTS:
        raise ConfigError(f"there is no tool parser '{name}'; known: {', '.join(NAMES)}")
    module, _, attribute = _DIALECTS[name].partition(":")
    return getattr(import_module(f".{module}", __package__), attribute)()


def detect(template: str) -> str | None:
    """The name of the dialect that a template's text teaches, or None."""
    return next((name for name, signs in _SIGNS if all(sign in template for sign in signs)), None)
