"""Embeddings of real files beside those that llama.cpp's server gave (see tests/record_embeddings.py).

Both sides round activations to 8 bits, in different blocks, so the vectors cannot be equal; the bound is about twice
the largest distance measured (0.0042, Gemma's last row), and every vector is far nearer to its own than to any other.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path

import numpy as np
import pytest
from engine_drive import Drive, params
from harness import DATA
from real_models import real_model

from surefoot.engine.pooling import normalised
from surefoot.kernels.registry import create_backend, has_native_module
from surefoot.models.load import load_model
from surefoot.models.pooling import Pooling

WORST = 0.008  # 1 - cosine
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not has_native_module(), reason="the native module was not built"),
]


@pytest.mark.parametrize("record", sorted((DATA / "embeddings").glob("*.json")), ids=lambda path: path.stem)
def test_vectors_are_those_of_another_server(record: Path) -> None:
    path = real_model(record.stem)
    data = json.loads(record.read_text())
    model = load_model(path)
    assert [model.tokenizer.encode(text, add_special=True, parse_special=True) for text in data["texts"]] == data["ids"]
    engine = Drive(model, create_backend("cpu"), context_length=1024, poison_freed=False)
    for name, vectors in data["vectors"].items():
        recorded = np.stack([np.frombuffer(base64.b64decode(vector), "<f4") for vector in vectors])
        answers = [engine.add(ids, params(max_tokens=0), pooling=Pooling(name)) for ids in data["ids"]]
        engine.run()
        ours = np.stack([normalised(answer.embedding, 1 << 20) for answer in answers if answer.embedding is not None])
        distances = 1 - ours @ recorded.T
        assert np.diag(distances).max() < WORST
        assert (distances + np.diag([9.0] * len(ours))).min() > 3 * WORST
