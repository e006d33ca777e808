"""Choosing a backend: by name, by default, and when the native module was not built."""

from __future__ import annotations

import logging

import pytest

from surefoot.kernels import registry
from surefoot.kernels.errors import ConfigError


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"'cuda9' is not known \(known: cpu, reference\)"):
        registry.create_backend("cuda9")


def test_reference_by_name_keeps_its_thread_count() -> None:
    import torch

    before = torch.get_num_threads()
    try:
        backend = registry.create_backend("reference", threads=1)
        assert (backend.name, backend.rows_exact, torch.get_num_threads()) == ("reference", False, 1)
    finally:
        torch.set_num_threads(before)


def test_without_the_native_module_the_default_is_reference_and_says_so_loudly(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(registry, "_NATIVE", ".cpu.not_built")
    with caplog.at_level(logging.WARNING):
        assert registry.create_backend().name == "reference"
    assert "NATIVE KERNELS ARE MISSING" in caplog.text
    with pytest.raises(ConfigError, match="compiler"):
        registry.create_backend("cpu")


def test_with_the_native_module_the_default_is_cpu(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(registry, "_NATIVE", ".registry")  # any module that is there
    assert registry.default_backend() == "cpu"
    assert not caplog.text


def test_every_entry_names_a_factory_that_is_there() -> None:
    """Also catches a renamed class. The native one is skipped, visibly, where it was not built."""
    for name in registry.BACKENDS:
        if name == "cpu" and not registry.has_native_module():
            pytest.skip("native module not built")
        assert registry.create_backend(name).name == name
