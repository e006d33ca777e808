"""Writes GGUF files for tests from plain values, and a smallest `llama` model to damage."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from surefoot.models.gguf import GgufFile

Value: TypeAlias = "bool | int | float | str | list[str] | NDArray[np.generic]"
Tensors: TypeAlias = "dict[str, tuple[int, tuple[int, ...], bytes]]"  # type id, shape slowest first, data
_ARRAY_TYPES = {"u1": 0, "i1": 1, "u2": 2, "i2": 3, "u4": 4, "i4": 5, "f4": 6, "b1": 7, "u8": 10, "i8": 11, "f8": 12}


def pack(values: Mapping[str, Value], tensors: Tensors, *, alignment: int = 32, version: int = 3) -> bytes:
    """A whole file."""
    out = [b"GGUF", struct.pack("<IQQ", version, len(tensors), len(values))]
    out += [pack_text(key) + pack_value(value) for key, value in values.items()]
    data = bytearray()
    for name, (type_id, shape, raw) in tensors.items():
        data += bytes(-len(data) % alignment)
        dims = struct.pack(f"<I{len(shape)}Q", len(shape), *reversed(shape))
        out.append(pack_text(name) + dims + struct.pack("<IQ", type_id, len(data)))
        data += raw
    header = b"".join(out)
    return header + bytes(-len(header) % alignment) + bytes(data)


def pack_text(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def pack_value(value: Value) -> bytes:
    match value:
        case bool():
            return struct.pack("<I?", 7, value)
        case int():
            return struct.pack("<II", 4, value) if 0 <= value < 1 << 32 else struct.pack("<Iq", 11, value)
        case float():
            return struct.pack("<If", 6, value)
        case str():
            return struct.pack("<I", 8) + pack_text(value)
        case list():
            return struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(pack_text, value))
        case _:
            kind = _ARRAY_TYPES[value.dtype.str[1:]]
            return struct.pack("<IIQ", 9, kind, value.size) + value.tobytes()


def f32(*shape: int, seed: int = 0) -> tuple[int, tuple[int, ...], bytes]:
    """A float32 tensor of small random numbers."""
    return 0, shape, np.random.default_rng(seed).normal(size=shape).astype("<f4").tobytes()


def tiny_llama() -> tuple[dict[str, Value], Tensors]:
    """Settings and tensors of a `llama` of one layer: hidden 8, two heads, one KV head, feed-forward 12, 5 tokens."""
    values: dict[str, Value] = {
        "general.architecture": "llama",
        "general.name": "tiny",
        "llama.block_count": 1,
        "llama.context_length": 64,
        "llama.embedding_length": 8,
        "llama.feed_forward_length": 12,
        "llama.attention.head_count": 2,
        "llama.attention.head_count_kv": 1,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": ["a", "b", "ab", "Grüße", ""],
        "tokenizer.ggml.token_type": np.array([1, 1, 1, 1, 3], "<i4"),
        "tokenizer.ggml.merges": ["a b"],
    }
    tensors = {
        "token_embd.weight": f32(5, 8, seed=1),
        "output_norm.weight": f32(8, seed=2),
        "blk.0.attn_norm.weight": f32(8, seed=3),
        "blk.0.attn_q.weight": f32(8, 8, seed=4),
        "blk.0.attn_k.weight": f32(4, 8, seed=5),
        "blk.0.attn_v.weight": f32(4, 8, seed=6),
        "blk.0.attn_output.weight": f32(8, 8, seed=7),
        "blk.0.ffn_norm.weight": f32(8, seed=8),
        "blk.0.ffn_gate.weight": f32(12, 8, seed=9),
        "blk.0.ffn_up.weight": f32(12, 8, seed=10),
        "blk.0.ffn_down.weight": f32(8, 12, seed=11),
    }
    return values, tensors


def unpack(file: GgufFile) -> tuple[dict[str, Value], Tensors]:
    """Settings and tensors of a file, to be changed and packed again."""
    values: dict[str, Value] = {}
    for key in file.metadata:
        readers = (file.metadata.bool, file.metadata.int, file.metadata.float, file.metadata.str)
        values[key] = _array(file, key) if file.metadata.is_array(key) else _first(readers, key)
    tensors = {t.name: (t.type.type_id, t.shape, t.data.tobytes()) for t in file.tensors.values()}
    return values, tensors


def _array(file: GgufFile, key: str) -> Value:
    from surefoot.kernels.errors import ModelFileError

    try:
        return file.metadata.array(key)
    except ModelFileError:
        return file.metadata.strings(key)


def _first(readers, key: str) -> Value:  # type: ignore[no-untyped-def]
    from surefoot.kernels.errors import ModelFileError

    for read in readers[:-1]:
        try:
            return read(key)
        except ModelFileError:
            continue
    return readers[-1](key)
