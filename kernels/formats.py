"""Weight and KV-cache number formats: names, GGUF type ids, block sizes. Knows no arithmetic."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


@dataclass(frozen=True, slots=True)
class BlockLayout:
    """`block` consecutive values of a row are stored in `bytes` bytes."""

    type_id: int
    block: int
    bytes: int


class WeightType(Enum):
    """Formats in which a weight can be stored; values are the layouts that the GGUF format defines."""

    F32 = BlockLayout(0, 1, 4)
    F16 = BlockLayout(1, 1, 2)
    Q4_0 = BlockLayout(2, 32, 18)
    Q4_1 = BlockLayout(3, 32, 20)
    Q5_0 = BlockLayout(6, 32, 22)
    Q5_1 = BlockLayout(7, 32, 24)
    Q8_0 = BlockLayout(8, 32, 34)
    Q2_K = BlockLayout(10, 256, 84)
    Q3_K = BlockLayout(11, 256, 110)
    Q4_K = BlockLayout(12, 256, 144)
    Q5_K = BlockLayout(13, 256, 176)
    Q6_K = BlockLayout(14, 256, 210)
    IQ4_NL = BlockLayout(20, 32, 18)
    IQ4_XS = BlockLayout(23, 256, 136)
    BF16 = BlockLayout(30, 1, 2)
    MXFP4 = BlockLayout(39, 32, 17)

    @property
    def block(self) -> int:
        """Values per block along a row."""
        return self.value.block

    @property
    def type_id(self) -> int:
        """The id in a GGUF tensor record."""
        return self.value.type_id

    def row_bytes(self, width: int) -> int:
        """Bytes of one row of `width` values. Raises ValueError when blocks do not divide the row."""
        if width % self.value.block:
            raise ValueError(f"{self.name} rows must be a multiple of {self.value.block} wide, not {width}")
        return width // self.value.block * self.value.bytes


WEIGHT_TYPES: dict[int, WeightType] = {t.type_id: t for t in WeightType}


class KvType(Enum):
    """Formats of a cached key or value row; q8_0 keeps int8 values and one float16 scale per 32."""

    F32 = "f32"
    F16 = "f16"
    BF16 = "bf16"
    Q8_0 = "q8_0"
