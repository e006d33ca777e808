"""Damaged and hostile files: every one ends in a ModelFileError of one line, in bounded time and memory, or opens."""

from __future__ import annotations

import os
import resource
import struct
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from gguf_bytes import f32, pack, pack_text, pack_value, tiny_llama
from harness import ORACLE
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from surefoot.kernels.errors import ModelFileError
from surefoot.models.checkpoint import Checkpoint
from surefoot.models.gguf import GgufFile
from surefoot.models.registry import build

TINY = pack(*tiny_llama())


def open_all(path: Path) -> GgufFile:
    """Opens a file and reads everything that anybody reads."""
    file = GgufFile.open(path)
    build(Checkpoint(file))
    for key in file.metadata:
        if file.metadata.is_array(key):
            try:
                file.metadata.strings(key)
            except ModelFileError:
                file.metadata.array(key)
    file.fingerprint()
    return file


def assert_safe(path: Path, content: bytes) -> bool:
    """Whether a file opens; if not, the error is of the right kind and shape. Bounded in time and memory."""
    path.write_bytes(content)
    before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    try:
        open_all(path)
        return True
    except ModelFileError as error:
        assert str(error).startswith(str(path))
        assert "\n" not in str(error)
        assert len(str(error)) < 1000
        return False
    finally:
        assert time.process_time() - start < 2.0
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 * 1024  # KiB


def test_the_tiny_model_is_sound(tmp_path: Path) -> None:
    assert assert_safe(tmp_path / "m.gguf", TINY)


def header(num_tensors: int = 0, num_keys: int = 0, *, version: int = 3, magic: bytes = b"GGUF") -> bytes:
    return magic + struct.pack("<IQQ", version, num_tensors, num_keys)


def key(name: str, kind: int, raw: bytes) -> bytes:
    return pack_text(name) + struct.pack("<I", kind) + raw


def record(name: str, dims: list[int], type_id: int = 0, offset: int = 0) -> bytes:
    shape = struct.pack(f"<I{len(dims)}Q", len(dims), *dims)
    return pack_text(name) + shape + struct.pack("<IQ", type_id, offset)


PAD = bytes(256)
HUGE = (1 << 64) - 1
BAD_FILES: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "too short"),
    "other magic": (b"PK\x03\x04" + PAD, "not a GGUF file"),
    "version 1": (header(version=1) + PAD, "version 1 is not supported"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 1, 1) + PAD, "big-endian"),
    "key count": (header(0, HUGE) + PAD, "claims 18,446,744,073,709,551,615 keys"),
    "tensor count": (header(HUGE, 0) + PAD, "claims 18,446,744,073,709,551,615 tensors"),
    "tensor count beyond the file": (header(100, 0) + PAD, "claims 100 tensors"),
    "key length": (header(0, 1) + struct.pack("<Q", HUGE) + PAD, "key 0: a name of"),
    "key without name": (header(0, 1) + PAD, "key 0: a name of 0 bytes"),
    "key not UTF-8": (header(0, 1) + struct.pack("<Q", 2) + b"\xff\xfe" + PAD, "not valid UTF-8"),
    "key unprintable": (header(0, 1) + pack_text("a\x1b[2Jb") + PAD, "unprintable"),
    "value type": (header(0, 1) + key("k", 99, PAD), "k: unknown value type 99"),
    "bool": (header(0, 1) + key("k", 7, b"\x02" + PAD), "k: a truth value is stored as 2"),
    "string length": (header(0, 1) + key("k", 8, struct.pack("<Q", HUGE) + PAD), "k: a string of"),
    "string beyond the end": (header(0, 1) + key("k", 8, struct.pack("<Q", 999) + PAD), "k: the file ends here"),
    "nested array": (header(0, 1) + key("k", 9, struct.pack("<IQ", 9, 1) + PAD), "k: arrays of arrays"),
    "array type": (header(0, 1) + key("k", 9, struct.pack("<IQ", 77, 1) + PAD), "k: unknown array element type 77"),
    "array count": (header(0, 1) + key("k", 9, struct.pack("<IQ", 4, HUGE) + PAD), "k: the file ends here"),
    "array of bool": (header(0, 1) + key("k", 9, struct.pack("<IQ", 7, 2) + b"\1\3" + PAD), "k: a truth value"),
    "string array count": (header(0, 1) + key("k", 9, struct.pack("<IQ", 8, HUGE) + PAD), "k: an array of"),
    "string array cut": (
        header(0, 1) + key("k", 9, struct.pack("<IQ", 8, 2) + pack_text("a") + struct.pack("<Q", 900) + PAD),
        "k: entry 1 reaches beyond",
    ),
    "key twice": (header(0, 2) + 2 * (pack_text("k") + pack_value(1)) + PAD, "k: the key is there twice"),
    "alignment": (
        header(0, 1) + pack_text("general.alignment") + pack_value(48) + PAD,
        "general.alignment: is 48, must be a power of two",
    ),
    "tensor name": (header(1, 0) + struct.pack("<Q", 5000) + PAD, "tensor 0: a name of 5,000 bytes"),
    "no dimensions": (header(1, 0) + record("t", []) + PAD, "t: has 0 dimensions"),
    "many dimensions": (header(1, 0) + record("t", [1] * 5) + PAD, "t: has 5 dimensions"),
    "absurd dimensions": (header(1, 0) + pack_text("t") + struct.pack("<I", 1 << 31) + PAD, "dimensions"),
    "empty dimension": (header(1, 0) + record("t", [4, 0]) + PAD, "t: has an empty dimension"),
    "overflowing dimensions": (header(1, 0) + record("t", [1 << 33, 1 << 33]) + PAD, "t: needs bytes"),
    "unknown type": (header(1, 0) + record("t", [4], 99) + PAD, "t: stored as type 99"),
    "known type": (header(1, 0) + record("t", [256], 16) + PAD, r"t: stored as IQ2_XXS \(type 16\)"),
    "blocks": (header(1, 0) + record("t", [33], 8) + PAD, "t: rows of 33 values do not divide into Q8_0 blocks"),
    "offset": (header(1, 0) + record("t", [4], 0, 1 << 40) + PAD, "t: needs bytes"),
    "last offset": (header(1, 0) + record("t", [4], 0, (1 << 64) - 32) + PAD, "t: needs bytes"),
    "misaligned": (header(1, 0) + record("t", [4], 0, 8) + PAD, "t: offset 8 is not a multiple of 32"),
    "end": (header(1, 0) + record("t", [65]) + PAD, "t: needs bytes"),
    "overlap": (header(2, 0) + record("s", [16]) + record("t", [16], 0, 32) + PAD, "t: at offset 32 it overlaps"),
    "tensor twice": (header(2, 0) + record("t", [4]) + record("t", [4], 0, 32) + PAD, "t: the tensor is there twice"),
    "no architecture": (header() + PAD, "general.architecture: the key is missing"),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_bad_file(name: str, tmp_path: Path) -> None:
    content, message = BAD_FILES[name]
    path = tmp_path / "bad.gguf"
    assert not assert_safe(path, content)
    with pytest.raises(ModelFileError, match=message):
        open_all(path)


def test_what_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path, message in (
        (tmp_path / "none", "No such file"),
        (tmp_path, "a folder"),
        (tmp_path / "pipe", "not a"),
    ):
        with pytest.raises(ModelFileError, match=message):
            GgufFile.open(path)


def test_every_truncation(tmp_path: Path) -> None:
    end = TINY.index(tiny_llama()[1]["token_embd.weight"][2])
    for length in [*range(0, end, 2), *range(end, len(TINY), 97), len(TINY) - 1]:
        assert not assert_safe(tmp_path / "m.gguf", TINY[:length]), length


def test_every_byte_flipped(tmp_path: Path) -> None:
    opened = 0
    end = TINY.index(tiny_llama()[1]["token_embd.weight"][2])
    for place in range(end):
        content = bytearray(TINY)
        content[place] ^= (0xFF, 0x80, 0x01)[place % 3]
        opened += assert_safe(tmp_path / "m.gguf", bytes(content))
    assert opened > 0  # a flip inside a token's text is no damage


INTERESTING = [0, 1, 7, 255, 256, 1 << 16, (1 << 31) - 1, 1 << 31, 1 << 32, (1 << 63) - 1, 1 << 63, HUGE - 31, HUGE]


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(4, 1600), st.sampled_from(INTERESTING)), min_size=1, max_size=3), st.booleans())
@example([(8, HUGE)], False)
def test_absurd_numbers_anywhere(tmp_path: Path, edits: list[tuple[int, int]], narrow: bool) -> None:
    content = bytearray(TINY)
    for place, number in edits:
        raw = struct.pack("<Q", number)[: 4 if narrow else 8]
        content[place : place + len(raw)] = raw
    assert_safe(tmp_path / "m.gguf", bytes(content))


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=400), st.integers(0, 60), st.integers(0, 60))
def test_noise_after_a_good_prologue(tmp_path: Path, noise: bytes, tensors: int, keys: int) -> None:
    assert_safe(tmp_path / "m.gguf", header(tensors, keys) + noise)


@pytest.mark.parametrize(
    "path", sorted(ORACLE.glob("*/model*.gguf")), ids=lambda path: f"{path.parent.name}/{path.stem}"
)
def test_damaged_real_headers(path: Path, tmp_path: Path) -> None:
    sound = path.read_bytes()
    end = sound.index(b"blk.0.attn_norm") + 4000
    rng = np.random.default_rng(len(sound))
    for _ in range(40):
        content = bytearray(sound)
        for place in rng.integers(0, end, rng.integers(1, 4)):
            content[place] = int(rng.integers(0, 256))
        assert_safe(tmp_path / "m.gguf", bytes(content))
    for length in rng.integers(0, len(sound), 20):
        assert not assert_safe(tmp_path / "m.gguf", sound[:length])


Damage = Callable[[dict[str, object], dict[str, tuple[int, tuple[int, ...], bytes]]], object]
REFUSED: dict[str, tuple[Damage, str]] = {
    "unknown architecture": (
        lambda v, t: v.update({"general.architecture": "mamba"}),
        "general.architecture: architecture 'mamba' is not supported (known: gemma3, llama, "
        "qwen2, qwen3, qwen35, qwen3moe)",
    ),
    "not a model": (lambda v, t: v.update({"general.type": "adapter"}), "general.type: the file holds a 'adapter'"),
    "setting": (
        lambda v, t: v.update({"llama.attention.clamp_kqv": 3.0}),
        "llama.attention.clamp_kqv: the setting is not implemented",
    ),
    "settings": (
        lambda v, t: v.update({"llama.one": 1, "llama.two": 2}),
        "llama.one: the setting is not implemented (and 1 more like it)",
    ),
    "rope scaling": (
        lambda v, t: v.update({"llama.rope.scaling.type": "longrope", "llama.rope.scaling.factor": 2.0}),
        "llama.rope.scaling.type: 'longrope' is not implemented",
    ),
    "rope factor": (
        lambda v, t: v.update({"llama.rope.scaling.type": "linear"}),
        "llama.rope.scaling.factor: is 0.0, must be greater than 0",
    ),
    "wrong type": (
        lambda v, t: v.update({"llama.block_count": "three"}),
        "llama.block_count: must be an integer, not a string",
    ),
    "no finite number": (
        lambda v, t: v.update({"llama.rope.freq_base": float("nan")}),
        "llama.rope.freq_base: is nan, must be finite",
    ),
    "absurd layers": (lambda v, t: v.update({"llama.block_count": 1 << 31}), "llama.block_count: is 2147483648"),
    "absurd head": (lambda v, t: v.update({"llama.attention.key_length": 1 << 30}), "llama.attention.key_length: is"),
    "heads": (
        lambda v, t: v.update({"llama.attention.head_count": 3}),
        "llama.attention.head_count: is 3, which does not divide embedding_length 8",
    ),
    "KV heads": (
        lambda v, t: v.update({"llama.attention.head_count": 4, "llama.attention.head_count_kv": 3}),
        "llama.attention.head_count_kv: is 3, which does not divide 4 heads",
    ),
    "per-layer length": (
        lambda v, t: v.update({"llama.feed_forward_length": np.array([12, 12], "<i4")}),
        "llama.feed_forward_length: has 2 entries for 1 layers",
    ),
    "missing tensor": (lambda v, t: t.pop("blk.0.ffn_up.weight"), "blk.0.ffn_up.weight: the tensor is missing"),
    "missing layer": (lambda v, t: v.update({"llama.block_count": 2}), "blk.1.attn_norm.weight: the tensor is missing"),
    "misshapen tensor": (
        lambda v, t: t.update({"blk.0.attn_k.weight": f32(8, 4)}),
        "blk.0.attn_k.weight: has shape 8 x 4, the settings ask for 4 x 8",
    ),
    "extra tensor": (
        lambda v, t: t.update({"blk.0.attn_q_norm.weight": f32(4)}),
        "blk.0.attn_q_norm.weight: architecture 'llama' as implemented here has no such tensor",
    ),
    "companion scale": (
        lambda v, t: t.update({"blk.0.attn_q.scale": f32(1)}),
        "blk.0.attn_q.scale: architecture 'llama' as implemented here has no such tensor",
    ),
    "vocabulary": (
        lambda v, t: v.update({"tokenizer.ggml.tokens": ["a"]}),
        "tokenizer.ggml.tokens: has 1 entries for the 5 rows of token_embd.weight",
    ),
    "quantised norm": (
        lambda v, t: t.update({"output_norm.weight": (8, (32,), bytes(34))}),
        "output_norm.weight: has shape 32, the settings ask for 8",
    ),
    "no text generation": (
        lambda v, t: v.update({"llama.attention.causal": False}),
        "llama.attention.causal: is false",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_by_name(name: str, tmp_path: Path) -> None:
    damage, message = REFUSED[name]
    values, tensors = tiny_llama()
    damage(values, tensors)  # type: ignore[arg-type]
    path = tmp_path / "m.gguf"
    path.write_bytes(pack(values, tensors))
    with pytest.raises(ModelFileError) as caught:
        open_all(path)
    assert str(caught.value).startswith(f"{path}: {message}")
    assert caught.value.subject == message.split(":")[0]
