"""Real model files, where tests/fetch_real_models.py puts them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

HOME = Path(os.environ.get("TEST_MODELS_HOME", Path.home() / ".surefoot"))
SMOL = "smollm2-135m-instruct-q4_1"
CODER = "qwen2.5-coder-0.5b-instruct-q4_k_m"


def real_model(name: str) -> Path:
    """The file of a model. Skips the test, or whoever asks for its sake, where it is missing."""
    path = HOME / "models" / f"{name}.gguf"
    if not path.exists():
        pytest.skip(f"{path} is not there; tests/fetch_real_models.py fetches it")
    return path
