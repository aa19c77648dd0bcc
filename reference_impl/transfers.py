"""Transfers: prefixes that the remote store holds and the pool does not are brought to the pool.

A request's fetch starts when it is submitted: it waits for a place in the batch anyway. SGLang's HiCache does so.
"""

from functools import partial

from kvfence.reference_impl.cache import KVCache
from kvfence.reference_impl.clock import Stream
from kvfence.reference_impl.remote import Key, TransferError
from kvfence.reference_impl.sequence import Sequence, Status
from kvfence.reference_impl.trace import Kind, Trace


class Transfers:
    """Fetches of waiting sequences, each an operation that lands `delay` ticks later."""

    def __init__(self, cache: KVCache, delay: int, trace: Trace | None = None) -> None:
        self._cache, self._delay, self._trace = cache, delay, trace

    def fetch(self, sequence: Sequence) -> bool:
        """Start to fetch what is stored of a sequence's prefix, for one that holds no blocks.

        False, and nothing done, if the pool has no less of it or no room. Else the sequence is FETCHING, its table has
        what the pool holds and the blocks that the rest will come to; when it has come the sequence is WAITING.
        """
        cache = self._cache
        keys = self.missing(sequence)
        if sequence.table.blocks or not keys:
            return False
        cache.adopt(sequence)
        # Whole blocks only: one that the pool holds in part comes anew.
        sequence.computed = sequence.written = sequence.published
        cache.trim(sequence)
        first = len(sequence.table.blocks)
        if len(keys) > cache.pool.available:
            cache.release(sequence, keep=False)
            return False
        cache.reserve(sequence, (first + len(keys)) * cache.block_size)
        sequence.status = Status.FETCHING
        slots = [cache.remote.pin(key) for key in keys]
        arrive = partial(self._arrive, sequence, first, sequence.table.blocks[first:], slots)
        sequence.operations.append(cache.launch(Stream.TRANSFERS, arrive, self._delay))
        return True

    def missing(self, sequence: Sequence) -> list[Key]:
        """Keys of the stored blocks that continue what the pool holds of a sequence's prefix."""
        cache, tokens = self._cache, sequence.tokens[:-1]
        if not cache.remote.capacity:
            return []
        known = cache.tree.match(sequence.namespace, tokens)[1]
        return cache.remote.match(sequence.namespace, tokens, known // cache.block_size, cache.block_size)

    def _arrive(self, sequence: Sequence, first: int, blocks: list[int], slots: list[int]) -> None:
        """A transfer lands, also where its sequence was withdrawn: the blocks are reserved for it until then.

        They are those from the `first` of its table on.
        """
        cache = self._cache
        try:
            for i, (block, slot) in enumerate(zip(blocks, slots, strict=True), first):
                cache.storage.restore([block], cache.remote.read(slot))
                if self._trace:
                    size = cache.block_size
                    self._trace.add(Kind.FETCH, sequence.id, block, length=size, position=i * size)
        except TransferError:
            self._failed(sequence)
        finally:
            for slot in slots:
                cache.remote.unpin(slot)
        if sequence.status is Status.FETCHING:
            self._succeeded(sequence)

    def _succeeded(self, sequence: Sequence) -> None:
        sequence.status = Status.WAITING
        sequence.computed = sequence.written = sequence.cached = sequence.table.capacity
        self._cache.publish(sequence)

    def _failed(self, sequence: Sequence) -> None:
        """What has come is not used; the sequence computes it."""
        if sequence.status is Status.FETCHING:
            sequence.status = Status.WAITING
            self._cache.release(sequence, keep=False)
