"""Block log: what happens to the blocks of vLLM's pool, and what they hold of a request at its end.

Noted by wrappers around methods of the block manager and the pool, which call them and change nothing. Where K/V are
written is told by the slots that the forward pass is given, not by the block tables of the scheduler.
"""

from collections.abc import Callable, Sequence
from typing import Any

from kvfence.adapters.hf_blocks import runs, wrap
from kvfence.adapters.observation import KV, Action, CacheEvent
from kvfence.adapters.vllm_cache import Cells
from kvfence.adapters.vllm_core import Core


class BlockLog:
    """Events of an engine with one kind of layers, and K/V by request where there are `cells` to read them from."""

    def __init__(self, core: Core, events: bool, cells: Cells | None) -> None:
        self._core, self._logging, self._cells = core, events, cells
        (self._manager,) = core.managers
        self._size = core.block_size
        self._held: dict[str, int] = {}  # tokens whose K/V a request's blocks hold, by vLLM's name
        self._events: list[CacheEvent] = []
        self._kv: dict[str, KV] = {}
        wrap(self._manager, "add_local_computed_blocks", self._reuse)
        wrap(self._manager, "allocate_new_blocks", self._allocate)
        wrap(self._manager, "pop_blocks_for_free", self._free)
        wrap(core.pool, "cache_full_blocks", self._publish)
        wrap(core.pool, "_remove_cached_block_hashes", self._evict)
        wrap(core.pool, "reset_prefix_cache", self._reset)

    def collect(self) -> tuple[tuple[CacheEvent, ...], dict[str, KV]]:
        """Events, and K/V by request, since the last call."""
        seen = tuple(self._events), self._kv
        self._events, self._kv = [], {}
        return seen

    def written(self, theirs: str, slots: Sequence[int], past: int) -> None:
        """Note that K/V of a request's tokens from `past` on go to these slots of the cache, tokens in all."""
        for begin, end in runs(slots, self._size):
            block, start = divmod(slots[begin], self._size)
            self._note(theirs, Action.WRITE, block, start, end - begin, past + begin)
        self._held[theirs] = past + len(slots)

    def _note(
        self, theirs: str, action: Action, block: int, start: int, length: int, position: int, key: str = ""
    ) -> None:
        if self._logging:
            request = self._core.ours.get(theirs, theirs)
            self._events.append(CacheEvent(self._core.passes, request, action, block, start, length, position, key))

    def _reuse(self, method: Callable[..., Any], request_id: str, new_computed_blocks: Any, *args: Any) -> None:
        method(request_id, new_computed_blocks, *args)
        self._held[request_id] = len(new_computed_blocks) * self._size
        # By the request's own keys: what they find need not have been published under them.
        keys = self._core.scheduler.requests[request_id].block_hashes
        for i, block in enumerate(new_computed_blocks):
            self._note(request_id, Action.REUSE, block.block_id, 0, self._size, i * self._size, keys[i].hex())

    def _allocate(self, method: Callable[..., Any], request_id: str, *args: Any, **kwargs: Any) -> Any:
        new = method(request_id, *args, **kwargs)
        first = len(self._manager.req_to_blocks[request_id]) - len(new)
        for i, block in enumerate(new, first):
            self._note(request_id, Action.ALLOCATE, block.block_id, 0, self._size, i * self._size)
        return new

    def _publish(self, method: Callable[..., Any], request: Any, blocks: Any, *args: Any, **kwargs: Any) -> None:
        before = [block.block_hash for block in blocks]
        method(request, blocks, *args, **kwargs)
        for i, (block, old) in enumerate(zip(blocks, before, strict=True)):
            if block.block_hash != old:
                position = i * self._size
                self._note(request.request_id, Action.PUBLISH, block.block_id, 0, self._size, position, _key(block))

    def _evict(self, method: Callable[..., Any], block: Any) -> Any:
        removed = method(block)
        if removed:
            self._note("", Action.EVICT, block.block_id, 0, self._size, 0)
        return removed

    def _reset(self, method: Callable[..., bool]) -> bool:
        cached = [block.block_id for block in self._core.pool.blocks if block.block_hash is not None]
        done = method()
        for block in cached if done else ():
            self._note("", Action.EVICT, block, 0, self._size, 0)
        return done

    def _free(self, method: Callable[..., Any], request_id: str) -> Any:
        held = self._held.pop(request_id, 0)
        blocks = [block.block_id for block in self._manager.req_to_blocks.get(request_id, ())]
        # Of one that is put back, blocks are taken to be computed again: this is not its end.
        if self._cells is not None and held and self._core.scheduler.requests[request_id].is_finished():
            self._kv[self._core.ours[request_id]] = self._cells.kv(blocks, held)
        for i, block in enumerate(blocks):
            begin = i * self._size
            self._note(request_id, Action.FREE, block, 0, min(max(held - begin, 0), self._size), begin)
        return method(request_id)


def _key(block: Any) -> str:
    """What a published block is found by."""
    from vllm.v1.core.kv_cache_utils import get_block_hash

    return str(get_block_hash(block.block_hash).hex())
