"""The example in docs/backends.md runs as it stands there: an engine serves with it, token for token the reference."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from engine_drive import Drive, params
from harness import ORACLE

from surefoot.kernels.registry import create_backend
from surefoot.models.load import load_model

DOCS = Path(__file__).parents[2] / "docs" / "backends.md"
PROMPT = list(range(20, 50))


def served(backend: Any) -> list[int]:
    drive = Drive(load_model(ORACLE / "llama" / "model.gguf"), backend, context_length=128, kv_memory=8 << 20)
    return drive.one(PROMPT, params(max_tokens=6, ignore_eos=True)).token_ids


def test_the_example_backend_serves_and_counts() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(code, str(DOCS), "exec"), names)
    backend = names["CountingBackend"]()
    assert served(backend) == served(create_backend("reference"))
    assert backend.rows >= len(PROMPT) + 5
