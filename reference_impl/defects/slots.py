"""Faults of slots that are used again: a request starts where another one has ended."""

from kvfence.reference_impl.cache import KVCache
from kvfence.reference_impl.defects.defect import Sentinel, defect
from kvfence.reference_impl.defects.trusting import TrustingPool, TrustingTree
from kvfence.reference_impl.pool import SCRATCH
from kvfence.reference_impl.scheduler import Scheduler
from kvfence.reference_impl.sequence import Sequence
from kvfence.reference_impl.settings import Parts
from kvfence.reference_impl.trace import Kind


def _reusing(ran: Sentinel) -> type[KVCache]:
    """A cache that gives a request without a hit the table of the last one that ended, with its length."""

    class Reuses(KVCache):
        last: tuple[list[int], int] = ([], 0)

        def release(self, sequence: Sequence, keep: bool = True) -> None:
            blocks, written = list(sequence.table.blocks), sequence.written
            super().release(sequence, keep)
            if sequence.finish:
                self.last = blocks, written

        def adopt(self, sequence: Sequence) -> int:
            blocks, written = self.last
            n = min(written, len(sequence.tokens) - 1, len(blocks) * self.block_size)
            if _known(self, sequence) >= self.block_size or not n or SCRATCH in blocks:
                return super().adopt(sequence)
            ran()
            self.last = [], 0
            self._share(sequence, blocks[: -(-n // self.block_size)], n, Kind.SHARE)
            return n

    return Reuses


def _known(cache: KVCache, sequence: Sequence) -> int:
    """Length of what is published of a prompt; in less than a block there is little more than how all begin."""
    return cache.tree.match(sequence.namespace, sequence.tokens[:-1])[1]


@defect(
    "slot-reuse.length",
    "SLOT-REUSE",
    "ggml-org/llama.cpp#27052",
    "A request that finds no block of its prefix gets the table of one that has ended, whose length is not reset.",
)
def _length(ran: Sentinel) -> Parts:
    return Parts(cache=_reusing(ran), pool=TrustingPool, tree=TrustingTree)


@defect(
    "slot-reuse.no-match",
    "SLOT-REUSE",
    "ggml-org/llama.cpp#27148",
    "Where nothing matches, restoring a prefix counts as done and the old one is not cleared; no hit is told.",
    subtle="the request counts no cached token",
)
def _no_match(ran: Sentinel) -> Parts:
    cache = _reusing(ran)

    class Silent(Scheduler):
        def _admit(self, sequence: Sequence, budget: int) -> bool:
            known = _known(self.cache, sequence)
            admitted = super()._admit(sequence, budget)
            sequence.cached = min(sequence.cached, known)
            return admitted

    return Parts(cache=cache, scheduler=Silent, pool=TrustingPool, tree=TrustingTree)
