"""The GGUF reader against the `gguf` package's, on every small file of the test data."""

from __future__ import annotations

import time
from pathlib import Path

import gguf
import numpy as np
import pytest
from real_models import real_model

from surefoot.kernels.errors import ModelFileError
from surefoot.models.gguf import GgufFile, Metadata
from surefoot.models.gguf.strings import OutOfBoundsError, StringArray, find_strings

ORACLE = Path(__file__).parents[1] / "data" / "oracle"
FILES = sorted(ORACLE.glob("*/*.gguf"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_same_as_gguf_package(path: Path) -> None:
    ours = GgufFile.open(path)
    theirs = gguf.GGUFReader(path)
    assert [key for key in theirs.fields if not key.startswith("GGUF.")] == list(ours.metadata)
    for key in ours.metadata:
        expected = theirs.fields[key].contents()
        match expected:
            case bool():
                assert ours.metadata.bool(key) is expected
            case int():
                assert ours.metadata.int(key) == expected
            case float():
                assert ours.metadata.float(key) == expected
            case str():
                assert ours.metadata.str(key) == expected
            case [str(), *_]:
                assert ours.metadata.strings(key) == expected
                assert ours.metadata.length(key) == len(expected)
            case _:
                assert ours.metadata.array(key).tolist() == expected
    assert ours.metadata.unread() == []
    assert set(ours.tensors) == {tensor.name for tensor in theirs.tensors}
    for tensor in theirs.tensors:
        read = ours.tensors[tensor.name]
        assert read.type.name == tensor.tensor_type.name
        assert list(read.shape) == tensor.shape[::-1].tolist()
        assert read.num_values == tensor.n_elements
        assert read.data.tobytes() == tensor.data.tobytes()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["smollm2-135m-instruct-q4_1", "gemma3-270m-q4_k_m"])
def test_large_vocabularies_cost_milliseconds(name: str) -> None:
    path = real_model(name)
    start = time.process_time()
    file = GgufFile.open(path)
    opened = time.process_time()
    tokens = file.metadata.strings("tokenizer.ggml.tokens")
    assert opened - start < 0.1
    assert time.process_time() - opened < 0.3
    field = gguf.GGUFReader(path).fields["tokenizer.ggml.tokens"]
    assert tokens == [bytes(field.parts[part]).decode() for part in field.data]


def encode(strings: list[bytes]) -> np.ndarray:
    return np.frombuffer(b"".join(len(s).to_bytes(8, "little") + s for s in strings), np.uint8)


LISTS = {
    "empty": [],
    "one": [b"a"],
    "blank": [b"", b"", b"a", b""],
    "long": [b"x" * 255, b"y" * 256, b"z" * 70_000, b"w"],
    "nul": [b"a\0b", b"\0", b"\0" * 20, b"c\0\0\0\0\0\0\0\0\0d", b"e"],
    "look-alike": [b"\x05" + b"\0" * 7 + b"hello", b"\x01" + b"\0" * 7, b"x"],
    "wide": ["Grüße".encode(), "你好".encode(), "🙂".encode(), b"plain"],
    "windows": [b"token%d" % i for i in range(150_000)],
    "windows and long": [b"t" * (1 + i % 400) for i in range(20_000)],
}


@pytest.mark.parametrize("name", LISTS)
@pytest.mark.parametrize("start", [0, 3])
def test_strings_are_found_and_decoded(name: str, start: int) -> None:
    strings = LISTS[name]
    data = np.concatenate([np.full(start, 7, np.uint8), encode(strings), np.zeros(40, np.uint8)])
    heads = find_strings(data, start, len(strings))
    assert heads[-1] == data.size - 40
    assert StringArray(data, heads).decode() == [s.decode() for s in strings]


@pytest.mark.parametrize("name", LISTS)
def test_strings_cut_off_are_out_of_bounds(name: str) -> None:
    data = encode(LISTS[name])
    for cut in range(1, min(data.size, 12)):
        with pytest.raises(OutOfBoundsError):
            find_strings(data[:-cut], 0, len(LISTS[name]))


def test_invalid_text_names_the_entry() -> None:
    data = encode([b"fine", b"bad\xff", b"fine"])
    metadata = Metadata("m.gguf", {"words": StringArray(data, find_strings(data, 0, 3))})
    with pytest.raises(ModelFileError, match=r"m\.gguf: words: entry 1 is not valid UTF-8"):
        metadata.strings("words")
