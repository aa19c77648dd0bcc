"""Block log: what happens to the blocks of transformers' paged cache, and what they hold of a request at its end.

Noted by wrappers around the methods of one allocator, which call them and change nothing.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from kvfence.adapters.observation import KV, Action, CacheEvent


class BlockLog:
    """Events and K/V of a full-attention allocator; `passes` counts the forward passes and is kept by the engine."""

    def __init__(self, allocator: Any, events: bool, kv: bool) -> None:
        self.passes = 0
        self._allocator, self._page = allocator, allocator.tokens_per_page
        self._logging, self._keeping = events, kv
        self._held: dict[str, int] = {}  # tokens whose K/V a request's blocks hold
        self._events: list[CacheEvent] = []
        self._kv: dict[str, KV] = {}
        wrap(allocator, "get_write_indices", self._write)
        wrap(allocator, "acquire_prefix_blocks", self._acquire)
        wrap(allocator, "mark_complete_blocks", self._mark)
        wrap(allocator, "free_blocks", self._free)

    def collect(self) -> tuple[tuple[CacheEvent, ...], dict[str, KV]]:
        """Events, and K/V by request, since the last call."""
        seen = tuple(self._events), self._kv
        self._events, self._kv = [], {}
        return seen

    def _note(
        self, request: str, action: Action, slot: int, start: int, length: int, position: int, key: str = ""
    ) -> None:
        if self._logging:
            self._events.append(CacheEvent(self.passes, request, action, slot, start, length, position, key))

    def _write(self, method: Callable[..., Any], request: str, past: int, length: int) -> Any:
        indices = method(request, past, length)
        stride = self._allocator.block_physical_stride
        # From the indices themselves and not the block table: they are what the forward pass writes to.
        for begin, end in runs(indices, stride):
            slot, start = divmod(indices[begin], stride)
            self._note(request, Action.WRITE, slot, start, end - begin, past + begin)
        self._held[request] = past + length
        return indices

    def _acquire(self, method: Callable[..., Any], request: str, length: int, blocks: Sequence[int]) -> None:
        method(request, length, blocks)
        self._held[request] = length
        for i, slot in enumerate(self._allocator.block_table[request]):
            self._whole(request, Action.REUSE, slot, i)

    def _mark(self, method: Callable[..., Any], request: str, tokens: Sequence[int], new: int) -> None:
        before = list(self._allocator.block_table[request])
        known = set(self._allocator.ledger.block_to_hash)
        method(request, tokens, new)
        for i, (old, slot) in enumerate(zip(before, self._allocator.block_table[request], strict=True)):
            if slot != old:
                self._note(request, Action.FREE, old, 0, self._page, i * self._page)
                self._whole(request, Action.REUSE, slot, i)
            elif slot not in known and slot in self._allocator.ledger.block_to_hash:
                self._whole(request, Action.PUBLISH, slot, i)

    def _whole(self, request: str, action: Action, slot: int, i: int) -> None:
        """Note something about a request's complete block `i`."""
        key = f"{self._allocator.ledger.block_to_hash[slot]:016x}"
        self._note(request, action, slot, 0, self._page, i * self._page, key)

    def _free(self, method: Callable[..., Any], request: str, no_cache: bool = False) -> None:
        held = self._held.pop(request, 0)
        # Without caching, blocks are taken from a request that will be run again: this is not its end.
        if self._keeping and held and not no_cache:
            self._kv[request] = self._read(request, held)
        for i, slot in enumerate(self._allocator.block_table.get(request, ())):
            begin = i * self._page
            self._note(request, Action.FREE, slot, 0, min(max(held - begin, 0), self._page), begin)
        method(request, no_cache)

    def _read(self, request: str, length: int) -> KV:
        """K and V of a request's first `length` tokens, as its next forward pass would read them."""
        views = self._allocator._kv_token_views
        indices = torch.tensor(
            self._allocator.get_read_indices(request, 0, length), device=self._allocator.cache_tensor.device
        )
        parts = (torch.stack([views[layer][part][indices] for layer in sorted(views)]) for part in (0, 1))
        keys, values = (part.transpose(1, 2).float().cpu().numpy() for part in parts)
        return KV(keys, values)


def wrap(thing: Any, name: str, wrapper: Callable[..., Any]) -> None:
    """Replace a method of this one object; `wrapper` is called with the method before its arguments."""
    method = getattr(thing, name)
    setattr(thing, name, lambda *args, **kwargs: wrapper(method, *args, **kwargs))


def runs(indices: Sequence[int], stride: int) -> Iterator[tuple[int, int]]:
    """Ranges [begin, end) of `indices` that follow each other within one block of `stride`."""
    begin = 0
    for i in range(1, len(indices) + 1):
        if i == len(indices) or indices[i] != indices[i - 1] + 1 or indices[i] % stride == 0:
            yield begin, i
            begin = i
