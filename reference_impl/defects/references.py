"""Faults of reference counts: a block is given away while somebody holds it."""

from collections.abc import Iterable

from kvfence.reference_impl.cache import KVCache
from kvfence.reference_impl.defects.defect import Sentinel, defect
from kvfence.reference_impl.defects.trusting import TrustingPool, TrustingTree
from kvfence.reference_impl.holding import Draining
from kvfence.reference_impl.pool import SCRATCH, BlockPool
from kvfence.reference_impl.sequence import Finish, Sequence
from kvfence.reference_impl.settings import Parts
from kvfence.reference_impl.trace import Kind


def _parts(cache: type[KVCache] = KVCache, pool: type[BlockPool] = TrustingPool) -> Parts:
    return Parts(cache=cache, pool=pool, tree=TrustingTree)


@defect(
    "refcount.twice",
    "REFCOUNT",
    "vllm-project/vllm#3347",
    "Who lets go of a block that others hold gives it back twice.",
)
def _twice(ran: Sentinel) -> Parts:
    class Twice(TrustingPool):
        def release(self, block: int) -> None:
            if self.references[block] > 1:
                ran()
                super().release(block)
            super().release(block)

    return _parts(pool=Twice)


@defect(
    "refcount.share",
    "REFCOUNT",
    "sgl-project/sglang#25805",
    "A block that is held already is shared without being counted again.",
)
def _share(ran: Sentinel) -> Parts:
    class Uncounted(TrustingPool):
        def share(self, block: int) -> None:
            if self.references[block]:
                ran()
            else:
                super().share(block)

    return _parts(pool=Uncounted)


def _regardless(ran: Sentinel, cache: KVCache, blocks: Iterable[int]) -> None:
    """Have blocks be free, or idle, after one release, whoever else holds them."""
    for block in blocks:
        if block != SCRATCH and cache.pool.references[block] > 1:
            ran()
            cache.pool.references[block] = 1


@defect(
    "refcount.exception",
    "REFCOUNT",
    "NVIDIA/TensorRT-LLM#12667",
    "Where a request cannot go on, for want of room or after a failure, its blocks are freed whoever else holds them.",
)
def _exception(ran: Sentinel) -> Parts:
    class Regardless(KVCache):
        def release(self, sequence: Sequence, keep: bool = True) -> None:
            if not keep:
                _regardless(ran, self, sequence.table.blocks)
            super().release(sequence, keep)

    return _parts(Regardless)


@defect(
    "refcount.cancel",
    "REFCOUNT",
    "vllm-project/vllm#33377",
    "The blocks of a request that is cancelled are freed whoever else holds them.",
)
def _cancel(ran: Sentinel) -> Parts:
    class Regardless(KVCache):
        def release(self, sequence: Sequence, keep: bool = True) -> None:
            if sequence.finish is Finish.CANCELLED:
                _regardless(ran, self, sequence.table.blocks)
            super().release(sequence, keep)

    return _parts(Regardless)


@defect(
    "refcount.null-block",
    "REFCOUNT",
    "vllm-project/vllm#18411",
    "The scratch block, which stands for what a window has left behind, is freed with the table that names it.",
    window=True,
)
def _null_block(ran: Sentinel) -> Parts:
    class Frees(KVCache):
        def _free(self, draining: Draining) -> None:
            super()._free(draining)
            if SCRATCH in draining.blocks and SCRATCH not in self.pool.free:
                ran()
                self.pool.free.append(SCRATCH)

    return _parts(Frees)


@defect(
    "refcount.fork",
    "REFCOUNT",
    "sgl-project/sglang#38941",
    "A fork counts its parent's full blocks, and not the one that is filled in part.",
)
def _fork(ran: Sentinel) -> Parts:
    class Floors(KVCache):
        def fork(self, parent: Sequence, child: Sequence) -> None:
            super().fork(parent, child)
            if parent.written % self.block_size:
                ran()
                self.pool.references[child.table.blocks[-1]] -= 1

    return _parts(Floors)


@defect(
    "refcount.two-writers",
    "REFCOUNT",
    "sgl-project/sglang#27038",
    "Two requests that take a block in one step read the head of the free list before either has removed it.",
    racy=True,
)
def _two_writers(ran: Sentinel) -> Parts:
    class Races(KVCache):
        head: tuple[int, str, int] | None = None  # step, request and block of the last one that was taken

        def _allocate(self, request: str) -> int:
            if self.head and self.head[0] == self.clock.now and self.head[1] != request:
                block, self.head = self.head[2], None
                if self.pool.references[block] == 1:
                    ran()
                    self._note(Kind.ALLOCATE, request, block)
                    return block
            block = super()._allocate(request)
            self.head = (self.clock.now, request, block)
            return block

    return _parts(Races)


@defect(
    "refcount.copied",
    "REFCOUNT",
    "sgl-project/sglang-omni#1607",
    "After a copy-on-write the block that was copied is let go of twice.",
)
def _copied(ran: Sentinel) -> Parts:
    class Twice(KVCache):
        def _copy_on_write(self, sequence: Sequence) -> None:
            before = list(sequence.table.blocks)
            super()._copy_on_write(sequence)
            for old, new in zip(before, sequence.table.blocks, strict=True):
                if old != new and self.pool.references[old]:
                    ran()
                    self.pool.release(old)

    return _parts(Twice)
