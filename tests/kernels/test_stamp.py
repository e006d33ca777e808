"""Python and the native module are of one version, or nothing starts: installations made wrong on purpose."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import surefoot
from surefoot.kernels.cpu.stamp import STUB, digests, is_of
from surefoot.kernels.registry import has_native_module

MODEL = Path(__file__).parents[1] / "data" / "oracle" / "qwen3" / "model.gguf"
ROOT = Path(str(surefoot.__file__)).parent
needs_native = pytest.mark.skipif(not has_native_module(), reason="the native module is not built")


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """The kernels of an installation: Python, stub and module, no sources. Returns their folder."""
    package = tmp_path / "surefoot"
    package.mkdir()
    for name in ("engine", "models", "server"):
        (package / name).symlink_to(ROOT / name)
    shutil.copy(ROOT / "__init__.py", package)
    shutil.copytree(ROOT / "kernels", package / "kernels", ignore=shutil.ignore_patterns("*.cpp", "*.h", "*.so"))
    if has_native_module():
        from surefoot.kernels.cpu import _ops

        assert _ops.__file__ is not None
        shutil.copy(_ops.__file__, package / "kernels" / "cpu")
    return package / "kernels" / "cpu"


def run(installed: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    home = str(installed.parents[2])
    return subprocess.run(command, env={"PYTHONPATH": home}, capture_output=True, text=True, timeout=60, check=False)


def refusals(installed: Path) -> list[str]:
    """How the ways in are refused: the command, with every backend, and an import."""
    texts: list[str] = []
    for backend in ("cpu", "reference"):
        flags = ["serve", str(MODEL), "--port", "0", "--backend", backend]
        done = run(installed, "-m", "surefoot.server", *flags)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
        assert done.stderr.startswith("surefoot: the native module ")
        texts.append(done.stderr)
    done = run(installed, "-c", "import surefoot.kernels.cpu._ops")
    assert done.returncode == 1
    return [*texts, done.stderr.splitlines()[-1]]


@needs_native
def test_an_installation_without_sources_is_whole(installed: Path) -> None:
    code = (
        "from surefoot.kernels.registry import create_backend as c; import surefoot; print(c().name, surefoot.__file__)"
    )
    done = run(installed, "-c", code)
    assert done.stdout.split() == ["cpu", str(installed.parents[1] / "__init__.py")], done.stderr


@needs_native
def test_another_stub_is_refused_with_what_to_do(installed: Path) -> None:
    with (installed / STUB).open("a") as stub:
        stub.write("def added() -> int: ...\n")
    for text in refusals(installed):
        assert "was built from other sources" in text and "reinstall surefoot" in text


@needs_native
def test_no_stub_is_refused(installed: Path) -> None:
    (installed / STUB).unlink()
    assert all("reinstall surefoot" in text for text in refusals(installed))


@needs_native
def test_a_source_that_has_changed_since_is_refused(installed: Path) -> None:
    (installed / "pool.cpp").write_text("// newer\n")
    assert all("reinstall surefoot" in text for text in refusals(installed))


def test_a_module_that_is_none_is_refused(installed: Path) -> None:
    from importlib.machinery import EXTENSION_SUFFIXES

    (installed / f"_ops{EXTENSION_SUFFIXES[0]}").write_bytes(b"not a library")
    assert all("cannot be loaded" in text and "reinstall surefoot" in text for text in refusals(installed))


def test_a_module_without_a_stamp_is_of_another_version(installed: Path) -> None:
    assert is_of(digests(installed), installed)
    assert not is_of({}, installed)


def test_no_module_is_no_fault(installed: Path) -> None:
    for module in installed.glob("_ops.*.so"):
        module.unlink()
    code = "from surefoot.kernels.registry import default_backend as d, has_native_module as h; print(h(), d())"
    done = run(installed, "-c", code)
    assert done.stdout.split() == ["False", "reference"]
    assert "NATIVE KERNELS ARE MISSING" in done.stderr
