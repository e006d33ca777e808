"""Architectures by the name a file gives itself. Adding one is a file beside this one and a line here."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TypeAlias, cast

from .checkpoint import Checkpoint
from .config import Definition

Builder: TypeAlias = Callable[[Checkpoint], Definition]

ARCHITECTURES: dict[str, str] = {
    "gemma3": "gemma3:build",
    "llama": "llama:build",
    "qwen2": "qwen2:build",
    "qwen3": "qwen3:build",
    "qwen35": "qwen35:build",
    "qwen3moe": "qwen3moe:build",
}


def build(checkpoint: Checkpoint) -> Definition:
    """Builds the checkpoint's program. Raises ModelFileError: architecture unknown, or refusing the file."""
    if checkpoint.architecture not in ARCHITECTURES:
        known = ", ".join(sorted(ARCHITECTURES))
        message = f"architecture {checkpoint.architecture!r} is not supported (known: {known})"
        raise checkpoint.file.metadata.error("general.architecture", message)
    module, function = ARCHITECTURES[checkpoint.architecture].split(":")
    builder = cast("Builder", getattr(import_module(f".{module}", __package__), function))
    return builder(checkpoint)
