"""The storage of K and V: one tensor that all blocks and layers lie in."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kvfence.reference_impl.ledger import Shape
from kvfence.reference_impl.tags import OwnerTags


@dataclass(frozen=True)
class Pages:
    """A copy of some blocks' K/V that lies outside of the pool."""

    kv: Tensor  # [2, layers, blocks, block_size, kv_heads, head_dim]
    tags: NDArray[np.int64] | None  # [fields, blocks × block_size]


class Storage:
    """K and V [2, layers, blocks, block_size, kv_heads, head_dim], and beside them the owner tags, if kept."""

    def __init__(
        self, shape: Shape, blocks: int, block_size: int, dtype: torch.dtype, device: str, tags: OwnerTags | None = None
    ) -> None:
        self.shape, self.block_size, self.tags = shape, block_size, tags
        self.kv = torch.zeros(
            2, shape.layers, blocks, block_size, shape.kv_heads, shape.head_dim, dtype=dtype, device=device
        )

    def write(self, layer: int, slots: Tensor, key: Tensor, value: Tensor) -> None:
        """Write K and V [N, kv_heads, head_dim] of one layer to `slots` [N]: block × block_size + offset."""
        for part, new in enumerate((key, value)):
            self.kv[part, layer].flatten(0, 1).index_copy_(0, slots, new)

    def gather(self, layer: int, blocks: Tensor) -> tuple[Tensor, Tensor]:
        """K and V [R, T, kv_heads, head_dim] of one layer in the `blocks` [R, T / block_size] of R requests."""
        rows, columns = blocks.shape
        pages = (self.kv[part, layer].index_select(0, blocks.reshape(-1)) for part in (0, 1))
        key, value = (p.view(rows, columns * self.block_size, *p.shape[-2:]) for p in pages)
        return key, value

    def pages(self, layer: int) -> tuple[Tensor, Tensor]:
        """All K and V [blocks, block_size, kv_heads, head_dim] of one layer."""
        return self.kv[0, layer], self.kv[1, layer]

    def copy(self, source: int, target: int) -> None:
        """Copy all of one block to another."""
        self.kv[:, :, target] = self.kv[:, :, source]
        if self.tags:
            self.tags.copy(source, target)

    def read(self, blocks: Sequence[int]) -> Pages:
        """A copy of blocks, in the host's memory."""
        tags = self.tags.read(blocks) if self.tags else None
        return Pages(self.kv[:, :, list(blocks)].cpu(), tags)

    def restore(self, blocks: Sequence[int], pages: Pages) -> None:
        """Write a copy of blocks back, to these ones."""
        self.kv[:, :, list(blocks)] = pages.kv.to(self.kv.device)
        if self.tags and pages.tags is not None:
            self.tags.restore(blocks, pages.tags)
