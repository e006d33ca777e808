"""What people call the quantisation of a whole file."""

from __future__ import annotations

from .gguf import GgufFile

_GUESSED = 1024  # flag: the writer was not told the type and guessed
_LABELS = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K", 11: "Q3_K_S", 12: "Q3_K_M",
    13: "Q3_K_L", 14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S", 17: "Q5_K_M", 18: "Q6_K", 21: "Q2_K_S", 25: "IQ4_NL",
    30: "IQ4_XS", 32: "BF16", 38: "MXFP4_MOE",
}  # fmt: skip


def bytes_by_type(file: GgufFile) -> dict[str, int]:
    """Bytes of weights in each stored type, largest first."""
    totals: dict[str, int] = {}
    for tensor in file.tensors.values():
        totals[tensor.type.name] = totals.get(tensor.type.name, 0) + tensor.data.size
    return dict(sorted(totals.items(), key=lambda item: -item[1]))


def file_type_label(file: GgufFile) -> str:
    """The mixture's name as the file gives it, or the stored type that takes most of its bytes."""
    stored = file.metadata.int("general.file_type", None)
    if stored is not None and stored & ~_GUESSED in _LABELS:
        return _LABELS[stored & ~_GUESSED]
    return next(iter(bytes_by_type(file)), "empty")
