"""Cells: where a block of vLLM's cache has K and V of which position and head.

Backends lay blocks out as their kernels like it, some by the instructions of the processor. So the layout is learned:
the backend writes known numbers into a block of its own, and where they come to lie is read off.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from kvfence.adapters.observation import KV

BASE = 64  # numbers below it are exact in every dtype, so that an index is written digit by digit


class LayoutError(Exception):
    """A cache whose cells cannot be told apart; the message is one line."""


class Cells:
    """K and V in the blocks of a cache, by layer. Raises LayoutError if they are not kept as they are computed."""

    def __init__(self, layers: Mapping[int, Any]) -> None:
        self._layers = layers  # vLLM's attention layers by number
        first = layers[min(layers)]
        self._order = _learned(first)
        self._heads, self._width = first.num_kv_heads, first.head_size

    def read(self, layer: int, blocks: torch.Tensor, parts: slice = slice(None)) -> torch.Tensor:
        """K and V, or one of them, of the tokens in these blocks [n]: [parts, kv_heads, T, head_dim]."""
        cache = self._layers[layer].kv_cache
        order = self._order[parts].reshape(-1)
        flat = cache[blocks.to(cache.device)].reshape(len(blocks), -1)[:, order.to(cache.device)]
        # A block has its tokens before its heads, as the backend was given them.
        found = flat.reshape(len(blocks), -1, *self._order.shape[1:])
        read: torch.Tensor = found.permute(1, 3, 0, 2, 4).reshape(found.shape[1], self._heads, -1, self._width)
        return read

    def kv(self, blocks: Sequence[int], length: int) -> KV:
        """K and V of the first `length` tokens of a request's blocks, in all layers."""
        table = torch.tensor(blocks)
        both = torch.stack([self.read(layer, table)[:, :, :length] for layer in sorted(self._layers)])
        keys, values = (both[:, part].float().cpu().numpy() for part in (0, 1))
        return KV(keys, values)


@torch.inference_mode()
def _learned(layer: Any) -> torch.Tensor:
    """Places in a flat block of K and V of each position, head and dimension: [2, block, kv_heads, head_dim]."""
    scratch = torch.zeros_like(layer.kv_cache[:1])
    cells = 2 * layer.num_kv_heads * layer.head_size
    size, rest = divmod(scratch.numel(), cells)
    if rest:
        raise LayoutError("a block of the cache holds more than K and V")
    shape = (2, size, layer.num_kv_heads, layer.head_size)
    index = torch.arange(size * cells, device=scratch.device)
    found = torch.zeros_like(index)
    slots = torch.arange(size, device=scratch.device)
    for place in range(4):
        keys, values = (index // BASE**place % BASE).reshape(shape).to(layer.dtype)
        layer.impl.do_kv_cache_update(layer, keys, values, scratch, slots)
        found += scratch.reshape(-1).long() * BASE**place
    if not torch.equal(found.sort().values, index):
        raise LayoutError("the cache does not keep K and V as they are computed")
    return found.argsort().reshape(shape)
