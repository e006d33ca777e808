"""What embeddings the served model gives: how they are pooled, and in which sizes. Decided once, at start."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..engine.pooling import HIDDEN, Pooling
from ..kernels.errors import ConfigError, RequestError
from .settings import EmbeddingSettings

# Nearly every file that names no pooling holds a model in which only the last row has seen the whole text.
DEFAULT_POOLING = Pooling.LAST


@dataclass(frozen=True, slots=True)
class EmbeddingModel:
    """The embeddings of one model. `pooling` none: it gives none, and `refusal` says why."""

    pooling: Pooling
    size: int  # values of a whole embedding
    sizes: tuple[int, ...] = ()  # shorter ones that the model was trained for, as the operator says
    refusal: str = ""

    def check(self) -> Pooling:
        """How a text is pooled. RequestError if it is not."""
        if self.pooling is Pooling.NONE:
            raise RequestError(self.refusal, code="unsupported_endpoint")
        return self.pooling

    def chosen_size(self, dimensions: int | None) -> int:
        """Values that the client gets. RequestError for a size that the model was not trained for."""
        if dimensions is None or dimensions == self.size or dimensions in self.sizes:
            return dimensions or self.size
        known = ", ".join(map(str, (*self.sizes, self.size)))
        raise RequestError(
            f"dimensions: {dimensions} is no size of this model's embeddings ({known}): the first values of a longer "
            "one mean something only where the model was trained for it (--embedding-dimensions)",
            param="dimensions",
            code="invalid_value",
        )


def embedding_model(stated: Pooling | None, taps: Sequence[str], size: int, asked: EmbeddingSettings) -> EmbeddingModel:
    """The embeddings of a model whose file says `stated`, as the operator asked. Raises ConfigError."""
    wrong = [length for length in asked.dimensions if not 0 < length < size]
    if wrong:
        raise ConfigError(f"--embedding-dimensions: {wrong[0]} is not between 0 and this model's {size}")
    pooling, reason = stated or DEFAULT_POOLING, "its file says that it has none of whole texts; see --pooling"
    if asked.pooling is not None:
        known = {kind.value: kind for kind in Pooling}
        if asked.pooling not in known:
            raise ConfigError(f"--pooling '{asked.pooling}' is not known (known: {', '.join(known)})")
        pooling, reason = known[asked.pooling], "the server was started with --pooling none"
    if HIDDEN not in taps:
        pooling, reason = Pooling.NONE, "its program gives no hidden rows"
    refusal = f"This model gives no embeddings: {reason}" if pooling is Pooling.NONE else ""
    return EmbeddingModel(pooling, size, tuple(sorted(asked.dimensions)), refusal)
