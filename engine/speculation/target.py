"""A loaded model as speculation's target."""

from __future__ import annotations

from collections.abc import Mapping

from ...kernels.backend import Backend
from ...models.load import LoadedModel
from ..pooling import HIDDEN
from .contract import DraftHead, Verdict

# Architectures whose verify was measured not to reproduce their decode where rows are not exact.
NEMOTRON = "its verify does not reproduce its decode on this backend, and an exact one costs what decoding costs"
REFUSED_WHERE_INEXACT: Mapping[str, str] = {"nemotron_h": NEMOTRON, "nemotron_h_moe": NEMOTRON}


class ModelTarget:
    """Implements contract.Target over a model's program."""

    def __init__(self, model: LoadedModel, backend: Backend) -> None:
        self.name = model.config.name
        self.vocab_size = model.program.vocab_size
        self.hidden_size = model.config.hidden_size
        refusal = None if backend.rows_exact else REFUSED_WHERE_INEXACT.get(model.config.architecture)
        self.verdict = Verdict(refusal=refusal)
        self.taps = model.program.tap_names
        self.hidden_tap = HIDDEN if HIDDEN in self.taps else None
        self.draft_head: DraftHead | None = None
