"""The reference KV pool: float32 storage whose values are rounded, as they are written, to what the type can hold."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from ..formats import KvType
from ..program import BLOCK, KvGroup

_Q8_BLOCK = 32  # values that share a scale


def _round_q8_0(x: Tensor) -> Tensor:
    """int8 values with one float16 scale per 32 values of a head: q = round(x * 127 / max), ties to even."""
    dim = x.shape[-1]
    groups = functional.pad(x, (0, -dim % _Q8_BLOCK)).reshape(*x.shape[:-1], -1, _Q8_BLOCK)
    scale = groups.abs().amax(-1, keepdim=True) / 127
    quantised = torch.round(groups / torch.where(scale == 0, 1.0, scale))
    return (quantised * scale.half().float()).reshape(*x.shape[:-1], -1)[..., :dim]


_ROUNDING: dict[KvType, Callable[[Tensor], Tensor]] = {
    KvType.F32: lambda x: x,
    KvType.F16: lambda x: x.half().float(),
    KvType.BF16: lambda x: x.bfloat16().float(),
    KvType.Q8_0: _round_q8_0,
}


def block_bytes(group: KvGroup) -> int:
    """Bytes of a block over all layers: float32, whatever the type."""
    return 4 * group.num_layers * BLOCK * group.kv_heads * (group.key_dim + group.value_dim)


class ReferenceKvPool:
    """Blocks of one KV group. A row's key and value live at (block_table[slot, position // 32], position % 32)."""

    def __init__(self, group: KvGroup, kv_type: KvType, num_blocks: int, slots: int, max_blocks: int) -> None:
        self.group = group
        self._round = _ROUNDING[kv_type]
        self._table = np.zeros((slots, max_blocks), np.int32)
        # [blocks, layers, 32, kv heads, dim] f32, from numpy because its zeros touch no page until it is written
        shape = (num_blocks, group.num_layers, BLOCK, group.kv_heads)
        self._keys = torch.as_tensor(np.zeros((*shape, group.key_dim), np.float32))
        self._values = torch.as_tensor(np.zeros((*shape, group.value_dim), np.float32))

    @property
    def num_blocks(self) -> int:
        return len(self._keys)

    @property
    def block_bytes(self) -> int:
        return block_bytes(self.group)

    @property
    def block_table(self) -> NDArray[np.int32]:
        return self._table

    def fill(self, block: int, value: float) -> None:
        self._keys[block] = value
        self._values[block] = value

    def write(self, layer: int, slot: int, first: int, keys: Tensor, values: Tensor) -> None:
        """Stores rows [rows, kv heads * dim] at positions first, first + 1, ..."""
        block, offset = self._places(slot, first, first + len(keys))
        self._keys[block, layer, offset] = self._round(keys.reshape(len(keys), self.group.kv_heads, -1))
        self._values[block, layer, offset] = self._round(values.reshape(len(values), self.group.kv_heads, -1))

    def read(self, layer: int, slot: int, first: int, stop: int) -> tuple[Tensor, Tensor]:
        """Keys and values [positions, kv heads, dim] of positions [first, stop). No other position is touched."""
        block, offset = self._places(slot, first, stop)
        return self._keys[block, layer, offset], self._values[block, layer, offset]

    def holds(self, slot: int, first: int, stop: int) -> bool:
        """Whether the slot's block table has a block of the pool for every position of [first, stop)."""
        slots, max_blocks = self._table.shape
        if not 0 <= slot < slots or stop > max_blocks * BLOCK:
            return False
        blocks = self._table[slot, first // BLOCK : -(-stop // BLOCK)]
        return bool(((blocks >= 0) & (blocks < self.num_blocks)).all())

    def _places(self, slot: int, first: int, stop: int) -> tuple[Tensor, Tensor]:
        positions = np.arange(first, stop)
        blocks = self._table[slot, positions // BLOCK]
        return torch.as_tensor(blocks.astype(np.int64)), torch.as_tensor(positions % BLOCK)
