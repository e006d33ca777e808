"""A model file as its architecture reads it: settings and weights by name, each checked, and what was used remembered.

An architecture reads everything it needs and calls `finish`, which refuses what nobody read: a setting or a tensor that
is not implemented must not be approximated in silence.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from ..kernels.formats import WeightType
from ..kernels.program import Weight
from .gguf import GgufFile, Metadata

# Settings that change nothing in a forward pass.
_HARMLESS = frozenset(
    {
        "pooling_type",  # how an embedding of the whole text is taken
        "rope.scaling.finetuned",
        "tensor_data_layout",
        "vocab_size",  # the tensors say
    }
)


class Checkpoint:
    """Settings (`{architecture}.*` keys, asked for without the prefix) and weights of one file."""

    def __init__(self, file: GgufFile) -> None:
        self.file = file
        kind = file.metadata.str("general.type", "model")
        if kind != "model":
            raise file.metadata.error("general.type", f"the file holds a {kind!r}, not a model")
        self.architecture: str = file.metadata.str("general.architecture")
        self.settings: Metadata = file.metadata.section(f"{self.architecture}.")
        self._weights: dict[str, Weight] = {}
        self._left: set[str] = set()  # tensors that are known and not needed

    def has(self, name: str) -> bool:
        """Whether the file holds the tensor."""
        return name in self.file.tensors

    def weight(self, name: str, *shape: int) -> Weight:
        """A tensor that must be there, with this shape (slowest first). Asked for twice, it is the same object."""
        tensor = self.file.tensors.get(name)
        if tensor is None:
            raise self.file.error(name, "the tensor is missing")
        if tensor.shape != shape:
            raise self.file.error(name, f"has shape {_dims(tensor.shape)}, the settings ask for {_dims(shape)}")
        if name not in self._weights:
            self._weights[name] = Weight(name, tensor.type, tensor.shape, tensor.data)
        return self._weights[name]

    def vector(self, name: str, size: int) -> Weight:
        """A tensor of one dimension (a norm, a bias) as float32; half precision is widened, which is exact."""
        weight = self.weight(name, size)
        if weight.type is WeightType.F32:
            return weight
        widened = _widen(weight)
        if widened is None:
            raise self.file.error(name, f"is stored as {weight.type.name}, must be F32, F16 or BF16")
        self._weights[name] = float_weight(name, widened)
        return self._weights[name]

    def optional_vector(self, name: str, size: int) -> Weight | None:
        """As `vector`, or None when the file does not hold it."""
        return self.vector(name, size) if self.has(name) else None

    def leave(self, prefix: str) -> list[str]:
        """Tensors that are known, by the start of their names, and are not read. Returns their names."""
        names = [name for name in self.file.tensors if name.startswith(prefix)]
        self._left.update(names)
        return names

    def finish(self) -> None:
        """Refuses settings and tensors that were not read. Raises ModelFileError naming the first of them."""
        unread = [key for key in self.settings.unread() if key[len(self.architecture) + 1 :] not in _HARMLESS]
        if unread:
            name = unread[0][len(self.architecture) + 1 :]
            raise self.settings.error(name, "the setting is not implemented" + _and_more(unread))
        unused = [name for name in self.file.tensors if name not in self._weights and name not in self._left]
        if unused:
            message = f"architecture {self.architecture!r} as implemented here has no such tensor"
            raise self.file.error(unused[0], message + _and_more(unused))


def float_weight(name: str, values: NDArray[np.float32]) -> Weight:
    """Values computed or converted at load as a float32 weight."""
    data = np.ascontiguousarray(values, "<f4")
    return Weight(name, WeightType.F32, data.shape, data.reshape(-1).view(np.uint8))


def float_values(weight: Weight) -> NDArray[np.float32]:
    """The numbers of a float32 weight, in its shape."""
    assert weight.type is WeightType.F32, weight.name
    return weight.data.view("<f4").reshape(weight.shape)


def _widen(weight: Weight) -> NDArray[np.float32] | None:
    if weight.type is WeightType.F16:
        return weight.data.view("<f2").astype(np.float32)
    if weight.type is WeightType.BF16:
        return (weight.data.view("<u2").astype(np.uint32) << 16).view(np.float32)
    return None


def _dims(shape: Iterable[int]) -> str:
    return " x ".join(str(dim) for dim in shape)


def _and_more(names: list[str]) -> str:
    return f" (and {len(names) - 1} more like it)" if len(names) > 1 else ""
