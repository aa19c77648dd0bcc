"""Faults of copy-on-write: a block is written to under those who share it, or its copy is not one."""

from kvfence.reference_impl.cache import KVCache
from kvfence.reference_impl.defects.defect import Sentinel, defect
from kvfence.reference_impl.defects.trusting import TrustingPool, TrustingTree
from kvfence.reference_impl.sequence import Sequence
from kvfence.reference_impl.settings import Parts
from kvfence.reference_impl.storage import Storage


def _about_to_be_copied(cache: KVCache, sequence: Sequence) -> bool:
    blocks = sequence.table.blocks[sequence.computed // cache.block_size :]
    return any(not cache.pool.writable(block) for block in blocks)


@defect(
    "cow.forgotten", "COW", "vllm-project/vllm#417", "A block that others share is written to without being copied."
)
def _forgotten(ran: Sentinel) -> Parts:
    class Forgets(KVCache):
        def _copy_on_write(self, sequence: Sequence) -> None:
            if _about_to_be_copied(self, sequence):
                ran()

    return Parts(cache=Forgets, pool=TrustingPool, tree=TrustingTree)


@defect("cow.fork", "COW", "ggml-org/llama.cpp#3802", "A fork writes to the block that it shares with its parent.")
def _fork(ran: Sentinel) -> Parts:
    class Forgets(KVCache):
        def _copy_on_write(self, sequence: Sequence) -> None:
            if not sequence.origin:
                super()._copy_on_write(sequence)
            elif _about_to_be_copied(self, sequence):
                ran()

    return Parts(cache=Forgets, pool=TrustingPool, tree=TrustingTree)


@defect(
    "cow.keys-only",
    "COW",
    "huggingface/transformers#34232",
    "The copy of a shared block gets its K and not its V.",
    subtle="K but not V: the owner tags are right",
)
def _keys_only(ran: Sentinel) -> Parts:
    class Halves(Storage):
        def copy(self, source: int, target: int) -> None:
            kept = self.kv[1, :, target].clone()
            super().copy(source, target)
            if not kept.equal(self.kv[1, :, target]):
                ran()
            self.kv[1, :, target] = kept

    return Parts(storage=Halves)


@defect(
    "cow.keys-for-values",
    "COW",
    "mlc-ai/mlc-llm#2374",
    "The copy of a shared block gets its K in the place of its V, too.",
    subtle="the owner tags are right",
    foreign=False,
)
def _keys_for_values(ran: Sentinel) -> Parts:
    class Doubles(Storage):
        def copy(self, source: int, target: int) -> None:
            ran()
            super().copy(source, target)
            self.kv[1, :, target] = self.kv[0, :, source]

    return Parts(storage=Doubles)


@defect(
    "cow.head",
    "COW",
    "mlc-ai/mlc-llm#2374",
    "The copy of a shared block is without the last KV head of the last layer.",
    subtle="one KV head of one layer: the owner tags are right",
)
def _head(ran: Sentinel) -> Parts:
    class Misses(Storage):
        def copy(self, source: int, target: int) -> None:
            kept = self.kv[:, -1, target, :, -1].clone()
            super().copy(source, target)
            if not kept.equal(self.kv[:, -1, target, :, -1]):
                ran()
            self.kv[:, -1, target, :, -1] = kept

    return Parts(storage=Misses)


@defect(
    "cow.first-slot",
    "COW",
    "jjang-ai/vmlx#198",
    "The copy of a shared block begins with its second slot.",
    subtle="a single slot",
)
def _first_slot(ran: Sentinel) -> Parts:
    class Skips(Storage):
        def copy(self, source: int, target: int) -> None:
            first = target * self.block_size
            kept = self.kv[:, :, target, 0].clone()
            tag = self.tags.values[:, first].copy() if self.tags else None
            super().copy(source, target)
            if not kept.equal(self.kv[:, :, target, 0]):
                ran()
            self.kv[:, :, target, 0] = kept
            if self.tags and tag is not None:
                self.tags.values[:, first] = tag

    return Parts(storage=Skips)


@defect(
    "cow.source",
    "COW",
    "vllm-project/vllm#417",
    "A block is copied from the source that the copy before it had.",
)
def _source(ran: Sentinel) -> Parts:
    class Lags(Storage):
        source: int | None = None

        def copy(self, source: int, target: int) -> None:
            before, self.source = self.source, source
            if before in (None, source, target):
                super().copy(source, target)
            else:
                ran()
                super().copy(before, target)

    return Parts(storage=Lags)
