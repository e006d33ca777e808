"""Loading, split files, fingerprints, and what `inspect` prints."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from gguf_bytes import Value, f32, pack, tiny_llama, unpack
from harness import ORACLE

from surefoot.kernels.errors import ModelFileError
from surefoot.kernels.formats import KvType
from surefoot.kernels.program import KvGroup
from surefoot.models.gguf import GgufFile
from surefoot.models.inspect import describe, kv_bytes_per_token
from surefoot.models.load import load_model
from surefoot.models.pooling import Pooling, read_pooling

LLAMA = ORACLE / "llama" / "model.gguf"
HYBRID = ORACLE / "qwen35" / "model.gguf"


def test_load_model() -> None:
    model = load_model(LLAMA)
    assert (model.config.architecture, model.config.context_length, model.config.vocab_size) == ("llama", 2048, 1024)
    assert model.program.vocab_size == 1024
    assert model.file_type == "F32"
    assert model.tensor_bytes == 4 * 260_544
    assert model.paths == (str(LLAMA),)
    assert model.chat_template is not None
    assert model.tokenizer.end_of_generation_ids
    assert load_model(ORACLE / "gemma3" / "model.gguf").chat_template is None


def test_released_pages_can_be_read_again() -> None:
    file = GgufFile.open(LLAMA)
    before = {name: tensor.data.tobytes() for name, tensor in file.tensors.items()}
    file.release_pages()
    assert {name: tensor.data.tobytes() for name, tensor in file.tensors.items()} == before


def test_loading_imports_no_torch() -> None:
    script = "import sys, surefoot.models.load as load; load.load_model(sys.argv[1]); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script, str(LLAMA)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_fingerprint_sees_weights_and_metadata(tmp_path: Path) -> None:
    values, tensors = tiny_llama()
    path = tmp_path / "m.gguf"
    seen: set[str] = set()
    for changed_values, changed_tensors in (
        (values, tensors),
        ({**values, "general.name": "tinY"}, tensors),
        (values, {**tensors, "blk.0.attn_k.weight": f32(4, 8, seed=77)}),
    ):
        path.write_bytes(pack(changed_values, changed_tensors))
        seen.add(GgufFile.open(path).fingerprint())
        assert GgufFile.open(path).fingerprint() in seen
    assert len(seen) == 3


def write_split(folder: Path, count: int, changes: dict[int, dict[str, Value]] | None = None) -> list[Path]:
    """The oracle's llama in parts, metadata in the first; `changes` are to the keys of single parts."""
    values, tensors = unpack(GgufFile.open(LLAMA))
    names = list(tensors)
    size = -(-len(names) // count)
    paths: list[Path] = []
    for number in range(count):
        part: dict[str, Value] = dict(values) if number == 0 else {}
        part |= {"split.no": number, "split.count": count, "split.tensors.count": len(names)}
        part |= (changes or {}).get(number, {})
        chosen = {name: tensors[name] for name in names[number * size : (number + 1) * size]}
        paths.append(folder / f"m-{number + 1:05d}-of-{count:05d}.gguf")
        paths[-1].write_bytes(pack(part, chosen))
    return paths


@pytest.mark.parametrize("given", [0, 2])
def test_split_files_open_by_any_part(tmp_path: Path, given: int) -> None:
    paths = write_split(tmp_path, 3)
    model, whole = load_model(paths[given]), GgufFile.open(LLAMA)
    assert model.paths == tuple(map(str, paths))
    assert model.tensor_bytes == whole.tensor_bytes
    assert set(model.file.tensors) == set(whole.tensors)
    assert all(model.file.tensors[n].data.tobytes() == whole.tensors[n].data.tobytes() for n in whole.tensors)
    assert "in 3 parts" in describe(paths[given])


def test_split_files_that_do_not_fit(tmp_path: Path) -> None:
    paths = write_split(tmp_path, 2, {1: {"split.no": 0}})
    with pytest.raises(ModelFileError, match=re.escape(f"{paths[1]}: split.no: is 0, but the file is named as part 2")):
        load_model(paths[0])
    paths = write_split(tmp_path, 2, {1: {"split.count": 5}})
    with pytest.raises(ModelFileError, match=r"split\.count: is 5 in one of 2 parts"):
        load_model(paths[0])
    paths = write_split(tmp_path, 2, {0: {"split.tensors.count": 99}})
    with pytest.raises(ModelFileError, match=r"split\.tensors\.count: is 99, but the parts hold 30 tensors"):
        load_model(paths[0])
    paths = write_split(tmp_path, 2)
    paths[1].unlink()
    with pytest.raises(ModelFileError, match=re.escape(f"{paths[1]}: No such file")):
        load_model(paths[0])
    moved = paths[0].rename(tmp_path / "other.gguf")
    with pytest.raises(ModelFileError, match=r"one of 2 parts, but it is not named"):
        load_model(moved)


def test_describe() -> None:
    facts = dict(line.split(maxsplit=1) for line in describe(LLAMA).splitlines() if " " in line)
    assert facts["architecture"] == "llama"
    assert facts["parameters"] == "260,544"
    assert facts["context"] == "2,048 tokens"
    assert facts["attention"] == "4 heads, 2 KV heads of 16"
    assert facts["vocabulary"] == "1,024 tokens (gpt2, llama-bpe)"
    assert "can be served   yes" in describe(LLAMA)
    assert "window          64 tokens in 5 of 6 layers" in describe(ORACLE / "gemma3" / "model.gguf")
    assert "recurrent       3 of 4 layers, 4 heads of 16 x 16, a state of 16.9 kB" in describe(HYBRID)
    assert "draft head      yes" in describe(HYBRID)
    assert "2 of 8 experts" in describe(ORACLE / "qwen3moe" / "model.gguf")


def test_describe_a_file_that_cannot_be_served(tmp_path: Path) -> None:
    values, tensors = tiny_llama()
    path = tmp_path / "m.gguf"
    path.write_bytes(pack({**values, "general.architecture": "mamba", "general.name": "evil\x1b[2J"}, tensors))
    text = describe(path)
    assert "can be served   no: general.architecture: architecture 'mamba' is not supported" in text
    assert "model           evil?[2J" in text


@pytest.mark.parametrize(("kv_type", "size"), [("f32", 1536), ("f16", 768), ("bf16", 768), ("q8_0", 408)])
def test_kv_bytes(kv_type: str, size: int) -> None:
    assert kv_bytes_per_token(KvGroup("full", 2, 3, 32, 32), KvType(kv_type)) == size


def test_q8_0_needs_heads_of_whole_blocks() -> None:
    assert kv_bytes_per_token(KvGroup("full", 1, 1, 16, 32), KvType.Q8_0) is None


@pytest.mark.parametrize(
    ("stored", "pooling"),
    [(0, Pooling.NONE), (1, Pooling.MEAN), (2, Pooling.CLS), (3, Pooling.LAST), (4, Pooling.NONE), (None, None)],
)
def test_pooling_is_read_from_the_file(stored: int | None, pooling: Pooling | None, tmp_path: Path) -> None:
    values, tensors = tiny_llama()
    path = tmp_path / "m.gguf"
    path.write_bytes(pack(values if stored is None else {**values, "llama.pooling_type": stored}, tensors))
    assert read_pooling(GgufFile.open(path).metadata.section("llama.")) is pooling


def test_an_unknown_pooling_is_refused(tmp_path: Path) -> None:
    values, tensors = tiny_llama()
    path = tmp_path / "m.gguf"
    path.write_bytes(pack({**values, "llama.pooling_type": 9}, tensors))
    with pytest.raises(ModelFileError, match=r"llama\.pooling_type"):
        read_pooling(GgufFile.open(path).metadata.section("llama."))
