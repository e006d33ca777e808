"""A model file made ready to serve: program, tokenizer, chat template and fingerprint. Imports no torch."""

from __future__ import annotations

import os
from dataclasses import dataclass

from ..kernels.program import Program
from .chat_template import ChatTemplate, load_chat_template
from .checkpoint import Checkpoint
from .config import ModelConfig
from .file_types import file_type_label
from .gguf import GgufFile
from .pooling import Pooling, read_pooling
from .registry import build
from .tokenizer import Tokenizer, load_tokenizer


@dataclass(frozen=True, eq=False, slots=True)
class LoadedModel:
    """A model that a backend can load. Its weights are views of the mapped file until the backend has packed them."""

    config: ModelConfig
    program: Program
    tokenizer: Tokenizer
    chat_template: ChatTemplate | None  # None: the file has none, chat is not possible
    pooling: Pooling | None  # of embeddings; None: the file does not say
    file_type: str  # for people: "Q4_K_M"
    fingerprint: str  # of the weights; see GgufFile.fingerprint
    tensor_bytes: int
    file: GgufFile

    @property
    def paths(self) -> tuple[str, ...]:
        """The file, or all parts of a split one."""
        return self.file.paths

    def release_pages(self) -> None:
        """To be called when the weights are packed: gives the file's pages back."""
        self.file.release_pages()


def load_model(path: str | os.PathLike[str]) -> LoadedModel:
    """Opens a GGUF file, or a split one by any of its parts, and builds what is needed to serve it. Raises
    ModelFileError."""
    file = GgufFile.open(path)
    definition = build(Checkpoint(file))
    tokenizer = load_tokenizer(file.metadata)
    return LoadedModel(
        config=definition.config,
        program=definition.program,
        tokenizer=tokenizer,
        chat_template=load_chat_template(file.metadata, tokenizer),
        pooling=read_pooling(file.metadata.section(f"{definition.config.architecture}.")),
        file_type=file_type_label(file),
        fingerprint=file.fingerprint(),
        tensor_bytes=file.tensor_bytes,
        file=file,
    )
