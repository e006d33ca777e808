"""What a person wants to know about a model file, supported or not, in lines of text."""

from __future__ import annotations

import os
from collections.abc import Iterator

from ..kernels.errors import ModelFileError
from ..kernels.formats import KvType
from ..kernels.program import KvGroup
from .checkpoint import Checkpoint
from .config import Definition
from .file_types import bytes_by_type, file_type_label
from .gguf import GgufFile
from .registry import build
from .tokenizer import load_tokenizer

_DRAFT_HEADS = frozenset({"dflash", "eagle3", "gemma4-assistant"})  # files that are nothing but a draft head
_MAX_TEXT = 200


def describe(path: str | os.PathLike[str]) -> str:
    """One labelled line per fact. Raises ModelFileError only for a file that cannot be read at all."""
    return "\n".join(f"{label:<16}{text}" for label, text in _facts(GgufFile.open(path)))


def kv_bytes_per_token(group: KvGroup, kv_type: KvType) -> int | None:
    """Bytes that one position takes over all layers of a group; None where the type does not fit the head sizes."""
    values = group.num_layers * group.kv_heads * (group.key_dim + group.value_dim)
    match kv_type:
        case KvType.F32:
            return 4 * values
        case KvType.F16 | KvType.BF16:
            return 2 * values
        case KvType.Q8_0:  # a float16 scale for every 32 int8 values of a head
            return None if group.key_dim % 32 or group.value_dim % 32 else values // 32 * 34


def _facts(file: GgufFile) -> Iterator[tuple[str, str]]:
    metadata = file.metadata
    definition, refusal = _try_build(file)
    parts = f" in {len(file.paths)} parts" if len(file.paths) > 1 else ""
    yield "model", _printable(metadata.str("general.name", "(no name)"))
    yield "file", f"{file.path} ({_size(file.num_bytes)}{parts})"
    yield "architecture", _printable(metadata.str("general.architecture", "(none)"))
    yield "can be served", "yes" if refusal is None else f"no: {refusal}"
    yield "parameters", _count(sum(tensor.num_values for tensor in file.tensors.values()))
    yield "weights", f"{_size(file.tensor_bytes)}, {file_type_label(file)} ({_mix(file)})"
    if definition is not None:
        yield from _shape(definition)
    yield "vocabulary", _vocabulary(file)
    template = metadata.str("tokenizer.chat_template", None)
    yield "chat template", "no" if template is None else f"yes, {len(template):,} characters"
    yield "draft head", _draft_head(file)
    yield "fingerprint", file.fingerprint()


def _try_build(file: GgufFile) -> tuple[Definition | None, str | None]:
    """The definition, if the architecture takes the file, and why it cannot be served, if it cannot."""
    definition = None
    try:
        definition = build(Checkpoint(file))
        load_tokenizer(file.metadata)
    except ModelFileError as error:
        return definition, str(error).removeprefix(f"{error.path}: ")
    return definition, None


def _shape(definition: Definition) -> Iterator[tuple[str, str]]:
    config, groups = definition.config, definition.program.kv_groups
    widths = sorted(set(config.ffn_widths))
    experts = f", {config.num_active_experts} of {config.num_experts} experts" if config.num_experts else ""
    yield "context", f"{config.context_length:,} tokens"
    yield (
        "layers",
        f"{config.num_layers}, hidden {config.hidden_size:,}, feed-forward "
        f"{' to '.join(f'{width:,}' for width in dict.fromkeys((widths[0], widths[-1])))}{experts}",
    )
    dims = f"{config.key_dim}" if config.key_dim == config.value_dim else f"{config.key_dim}/{config.value_dim}"
    yield "attention", f"{config.num_heads} heads, {config.num_kv_heads} KV heads of {dims}"
    for group in groups:
        if group.window is not None:
            yield "window", f"{group.window:,} tokens in {group.num_layers} of {config.num_layers} layers"
    recurrent = definition.program.recurrent
    if recurrent is not None:
        heads = f"{recurrent.value_heads} heads of {recurrent.key_dim} x {recurrent.value_dim}"
        layers = f"{recurrent.num_layers} of {config.num_layers} layers"
        yield "recurrent", f"{layers}, {heads}, a state of {_size(recurrent.state_bytes)}"
    for group in groups:
        sizes = [(kv_type.value, kv_bytes_per_token(group, kv_type)) for kv_type in KvType]
        bound = f" (at most {group.window:,} tokens)" if group.window is not None else ""
        text = ", ".join(f"{name} {size:,}" for name, size in sizes if size is not None)
        yield "KV bytes/token", f"{text}{bound}"


def _vocabulary(file: GgufFile) -> str:
    metadata = file.metadata
    if "tokenizer.ggml.tokens" not in metadata:
        return "none"
    kind = metadata.str("tokenizer.ggml.model", "unknown kind")
    pre = metadata.str("tokenizer.ggml.pre", None)
    names = _printable(kind if pre in (None, "default") else f"{kind}, {pre}")
    return f"{metadata.length('tokenizer.ggml.tokens'):,} tokens ({names})"


def _draft_head(file: GgufFile) -> str:
    architecture = file.metadata.str("general.architecture", "")
    if architecture in _DRAFT_HEADS:
        return "this file is one"
    layers = file.metadata.section(f"{architecture}.").int("nextn_predict_layers", 0)
    return "yes" if layers or any(".nextn." in name for name in file.tensors) else "no"


def _mix(file: GgufFile) -> str:
    total = max(file.tensor_bytes, 1)
    return ", ".join(f"{name} {100 * size / total:.1f} %" for name, size in bytes_by_type(file).items())


def _size(count: int) -> str:
    for unit, scale in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= scale:
            return f"{count / scale:.1f} {unit}"
    return f"{count} bytes"


def _count(count: int) -> str:
    for unit, scale in (("billion", 10**9), ("million", 10**6)):
        if count >= scale:
            return f"{count / scale:.2f} {unit}"
    return f"{count:,}"


def _printable(text: str) -> str:
    """Text from an untrusted file, safe for a terminal."""
    cleaned = "".join(character if character.isprintable() else "?" for character in text[:_MAX_TEXT])
    return cleaned + ("..." if len(text) > _MAX_TEXT else "")
