"""Faults of looking up: one path, or one part of the key, leads to what others have left."""

from collections.abc import Sequence as Several
from dataclasses import replace
from typing import Any

from kvfence.reference_impl.cache import KVCache
from kvfence.reference_impl.defects.defect import Sentinel, defect
from kvfence.reference_impl.defects.hashes import hashed
from kvfence.reference_impl.defects.layout import placed
from kvfence.reference_impl.defects.trusting import TrustingPool, TrustingTree
from kvfence.reference_impl.key import Media, Namespace
from kvfence.reference_impl.radix import PrefixTree
from kvfence.reference_impl.runner import Packed, Runner
from kvfence.reference_impl.sequence import Row, Sequence
from kvfence.reference_impl.settings import Parts
from kvfence.reference_impl.storage import Storage

SAMPLED = 3  # every so many tokens one enters the hash


@defect(
    "key-hash.sampled",
    "KEY-HASH",
    "openvinotoolkit/openvino.genai#3722",
    "Blocks are found by a hash of every third of their tokens; the others are not compared.",
    subtle="two blocks must differ between the tokens that count",
)
def _sampled(ran: Sentinel) -> Parts:
    return hashed(ran, lambda tokens: hash(tokens[::SAMPLED]))


@defect(
    "key-lora.tail",
    "KEY-LORA",
    "vllm-project/vllm#3264",
    "What a request leaves when it lets go of its blocks is published without its adapter.",
)
def _tail(ran: Sentinel) -> Parts:
    class Publishes(KVCache):
        def publish(self, sequence: Sequence, tail: bool = False) -> None:
            own = sequence.namespace
            if tail and own.adapter is not None and sequence.written > sequence.published:
                ran()
                sequence.namespace = replace(own, adapter=None)
            super().publish(sequence, tail)
            sequence.namespace = own

    return Parts(cache=Publishes, pool=TrustingPool, tree=TrustingTree)


@defect(
    "key-mm.encoder",
    "KEY-MM",
    "vllm-project/vllm#49975",
    "What was made of a media item is kept under its place in the prompt, and given for the next item in that place.",
    subtle="the prefix pool tells the items apart: there is no wrong hit",
)
def _encoder(ran: Sentinel) -> Parts:
    class Keeps(Runner):
        def __init__(self, model: Any, buckets: Several[int] = (), kernel: bool = False) -> None:
            super().__init__(model, buckets, kernel)
            self._made: dict[int, str] = {}

        def pack(self, storage: Storage, rows: Several[Row]) -> Packed:
            packed = super().pack(storage, rows)
            packed.media.clear()
            for row, _, _, first in placed(packed):
                for item in row.sequence.namespace.media:
                    if row.start <= item.position < row.stop:
                        made = self._made.setdefault(item.position, item.content)
                        if made != item.content:
                            ran()
                        packed.media.append((first + item.position - row.start, made))
            return packed

    return Parts(runner=Keeps)


@defect(
    "key-salt.fallback",
    "KEY-SALT",
    "vllm-project/vllm#53194",
    "A tenant for whom nothing is cached is given what is cached for requests without a salt.",
    subtle="the same tokens have the same K/V whoever asks: only the hits are wrong, and in one direction",
)
def _fallback(ran: Sentinel) -> Parts:
    class FallsBack(TrustingTree):
        def match(self, namespace: Namespace, tokens: Several[int]) -> tuple[list[int], int]:
            blocks, length = super().match(namespace, tokens)
            if namespace.salt is not None and length < self.block_size:
                others, more = super().match(replace(namespace, salt=None), tokens)
                if more >= self.block_size:
                    ran()
                    return others, more
            return blocks, length

    return Parts(tree=FallsBack, pool=TrustingPool)


@defect(
    "key-epoch.leaves",
    "KEY-EPOCH",
    "NVIDIA-NeMo/RL#4018",
    "New weights do not change the key, and of each prefix they take only the last block out of the pool.",
    foreign=False,
)
def _leaves(ran: Sentinel) -> Parts:
    class Prunes(PrefixTree):
        def __init__(self, block_size: int) -> None:
            super().__init__(block_size)
            self._epochs: dict[int, int] = {}

        def match(self, namespace: Namespace, tokens: Several[int]) -> tuple[list[int], int]:
            blocks, length = super().match(replace(namespace, epoch=0), tokens)
            if any(self._epochs[block] != namespace.epoch for block in blocks):
                ran()
            return blocks, length

        def insert(self, namespace: Namespace, tokens: Several[int], blocks: Several[int]) -> list[int]:
            added = super().insert(replace(namespace, epoch=0), tokens, blocks)
            self._epochs |= dict.fromkeys(added, namespace.epoch)
            return added

        def clear(self) -> list[int]:
            leaves = [block for block, node in self._nodes.items() if not node.children]
            gone = [gone for block in leaves for gone in self.remove(block)]
            if self._nodes:
                ran()
            return gone

    return Parts(tree=Prunes)


@defect(
    "slot-reuse.picture",
    "SLOT-REUSE",
    "ollama/ollama#17475",
    "The media that were shown in a row of the batch stay there: a request without any sees them in its own prompt.",
    subtle="the key is right, and no K/V are shared",
)
def _picture(ran: Sentinel) -> Parts:
    class Leaves(Runner):
        def __init__(self, model: Any, buckets: Several[int] = (), kernel: bool = False) -> None:
            super().__init__(model, buckets, kernel)
            self._shown: dict[int, tuple[Media, ...]] = {}  # by place in the batch

        def pack(self, storage: Storage, rows: Several[Row]) -> Packed:
            packed = super().pack(storage, rows)
            for row, _, _, first in placed(packed):
                place, media = rows.index(row), row.sequence.namespace.media
                if media:
                    self._shown[place] = media
                    continue
                for item in self._shown.get(place, ()):
                    if row.start <= item.position < min(row.stop, row.sequence.prompt):
                        ran()
                        packed.media.append((first + item.position - row.start, item.content))
            return packed

    return Parts(runner=Leaves)
