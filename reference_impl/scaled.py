"""Quantised storage: K and V in int8, with one scale for a block's K and one for its V in each layer.

Scales are powers of two. An int8 times one of them is exact in every dtype; and since a scale that is raised at least
doubles, the roundings of all requantisations of a value add up to less than one step of the last scale.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kvfence.reference_impl.ledger import Shape
from kvfence.reference_impl.storage import Pages, Storage
from kvfence.reference_impl.tags import OwnerTags

LARGEST = 127  # of int8, on both sides of 0
TINIEST = 2.0**-100  # a scale of a block of zeros must not be 0


@dataclass(frozen=True)
class ScaledPages(Pages):
    """A copy of some blocks' int8 K/V and of their scales."""

    scales: Tensor  # [2, layers, blocks]


class ScaledStorage(Storage):
    """K and V, int8, and beside them scales [2, layers, blocks], float32: a value is its int8 times its block's scale.

    A value is off by less than one scale, and that is at most 2 / 127 of the largest value written to its block since
    the block's first slot was. A write to that slot begins the block anew: what was there before, and its scale, are
    somebody else's or rejected.
    """

    def __init__(
        self, shape: Shape, blocks: int, block_size: int, dtype: torch.dtype, device: str, tags: OwnerTags | None = None
    ) -> None:
        super().__init__(shape, blocks, block_size, torch.int8, device, tags)
        self.scales = torch.zeros(2, shape.layers, blocks, device=device)
        self._dtype = dtype

    def write(self, layer: int, slots: Tensor, key: Tensor, value: Tensor) -> None:
        """Write K and V [N, kv_heads, head_dim] of one layer to `slots` [N], requantising blocks that it must."""
        blocks, place = torch.unique(slots // self.block_size, return_inverse=True)
        begun = place[slots % self.block_size == 0]
        for part, new in enumerate((key.float(), value.float())):
            largest = new.new_zeros(len(blocks)).scatter_reduce(0, place, new.abs().amax((1, 2)), "amax")
            before = self.scales[part, layer, blocks].index_fill(0, begun, 0)
            scales = torch.maximum(before, scale_of(largest))
            self._requantise(part, layer, blocks, before / scales)
            self.scales[part, layer, blocks] = scales
            steps = new / scales[place, None, None]
            self.kv[part, layer].flatten(0, 1).index_copy_(0, slots, steps.round().to(torch.int8))

    def _requantise(self, part: int, layer: int, blocks: Tensor, ratio: Tensor) -> None:
        """Bring blocks to other scales; `ratio` [blocks] is old over new."""
        raised = blocks[ratio != 1]
        steps = self.kv[part, layer, raised] * ratio[ratio != 1, None, None, None]
        self.kv[part, layer, raised] = steps.round().to(torch.int8)

    def gather(self, layer: int, blocks: Tensor) -> tuple[Tensor, Tensor]:
        """K and V [R, T, kv_heads, head_dim], in the model's dtype, of one layer in `blocks` [R, T / block_size]."""
        key, value = super().gather(layer, blocks)
        scales = self.scales[:, layer, blocks].to(self._dtype).repeat_interleave(self.block_size, -1)[..., None, None]
        return key * scales[0], value * scales[1]

    def pages(self, layer: int) -> tuple[Tensor, Tensor]:
        """All K and V [blocks, block_size, kv_heads, head_dim], in the model's dtype, of one layer."""
        scales = self.scales[:, layer, :, None, None, None].to(self._dtype)
        return self.kv[0, layer] * scales[0], self.kv[1, layer] * scales[1]

    def copy(self, source: int, target: int) -> None:
        """Copy all of one block, its scales too, to another."""
        super().copy(source, target)
        self.scales[:, :, target] = self.scales[:, :, source]

    def read(self, blocks: Sequence[int]) -> ScaledPages:
        """A copy of blocks with their scales, in the host's memory."""
        pages = super().read(blocks)
        return ScaledPages(pages.kv, pages.tags, self.scales[:, :, list(blocks)].cpu())

    def restore(self, blocks: Sequence[int], pages: Pages) -> None:
        """Write a copy of blocks and scales back, to these ones."""
        assert isinstance(pages, ScaledPages)
        super().restore(blocks, pages)
        self.scales[:, :, list(blocks)] = pages.scales.to(self.scales.device)


def scale_of(largest: Tensor) -> Tensor:
    """The smallest power of two of which `largest` [n], float32, is at most `LARGEST`."""
    steps = (largest / LARGEST).clamp(min=TINIEST)
    mantissa, exponent = torch.frexp(steps)
    return torch.ldexp(torch.ones_like(steps), exponent - (mantissa == 0.5).int())
