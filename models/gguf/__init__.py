"""GGUF files: an untrusted container opened over a memory map. Knows no architecture and no tokenizer."""

from .file import GgufFile, Tensor
from .metadata import Metadata

__all__ = ["GgufFile", "Metadata", "Tensor"]
