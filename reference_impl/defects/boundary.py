"""Faults of counting by one: at the end of a hit, of a block, of what was written."""

from collections.abc import Sequence as Several

from kvfence.reference_impl.cache import KVCache
from kvfence.reference_impl.defects.defect import Sentinel, defect
from kvfence.reference_impl.defects.layout import placed
from kvfence.reference_impl.defects.trusting import TrustingPool, TrustingTree
from kvfence.reference_impl.key import Namespace
from kvfence.reference_impl.runner import Packed, Runner
from kvfence.reference_impl.sequence import Row, Sequence
from kvfence.reference_impl.settings import Parts
from kvfence.reference_impl.storage import Storage


@defect(
    "off-by-one.position",
    "OFF-BY-ONE",
    "ml-explore/mlx-lm#1100",
    "After a hit the first row's positions are one too many.",
    subtle="the owner tags say nothing of rotations",
    foreign=False,
)
def _position(ran: Sentinel) -> Parts:
    class Shifts(Runner):
        def pack(self, storage: Storage, rows: Several[Row]) -> Packed:
            packed = super().pack(storage, rows)
            for row, group, _, first in placed(packed):
                if row.start and row.start == row.sequence.cached:
                    ran()
                    packed.positions[first : first + group.shape[1]] += 1
            return packed

    return Parts(runner=Shifts)


@defect(
    "off-by-one.hit",
    "OFF-BY-ONE",
    "vllm-project/vllm#11186",
    "A hit that ends within a block is taken to be one token longer.",
)
def _hit(ran: Sentinel) -> Parts:
    class Exceeds(TrustingTree):
        def match(self, namespace: Namespace, tokens: Several[int]) -> tuple[list[int], int]:
            blocks, length = super().match(namespace, tokens)
            if length % self.block_size and length < len(tokens):
                ran()
                length += 1
            return blocks, length

    return Parts(tree=Exceeds, pool=TrustingPool)


@defect(
    "off-by-one.tail",
    "OFF-BY-ONE",
    "vllm-project/vllm-metal#144",
    "A finished request is published with its last token, whose K/V were never computed.",
    subtle="who goes on from exactly there sees it",
)
def _tail(ran: Sentinel) -> Parts:
    class Exceeds(KVCache):
        def publish(self, sequence: Sequence, tail: bool = False) -> None:
            more = int(tail and not sequence.in_flight() and self._fits(sequence))
            if more:
                ran()
            sequence.written += more
            super().publish(sequence, tail)
            sequence.written -= more

        def _fits(self, sequence: Sequence) -> bool:
            return sequence.written % self.block_size > 0 and sequence.written < len(sequence.tokens)

    return Parts(cache=Exceeds, pool=TrustingPool, tree=TrustingTree)


@defect(
    "off-by-one.slot",
    "OFF-BY-ONE",
    "nobodywho-ooo/nobodywho#688",
    "A decoded token that begins a block is written to the slot before it.",
    subtle="a single slot",
)
def _slot(ran: Sentinel) -> Parts:
    class Lags(Runner):
        def pack(self, storage: Storage, rows: Several[Row]) -> Packed:
            packed = super().pack(storage, rows)
            size = storage.block_size
            for row, _, _, first in placed(packed):
                if row.sequence.output and row.stop - row.start == 1 and row.start % size == 0 and row.start:
                    ran()
                    packed.batch.slots[first] = row.blocks[row.start // size - 1] * size + size - 1
            return packed

    return Parts(runner=Lags)


@defect(
    "off-by-one.whole-hit",
    "OFF-BY-ONE",
    "ml-explore/mlx-lm#1215",
    "Where all but the last token of a prompt are cached, that token is computed at the position before its own.",
    subtle="an exact repeat only",
    foreign=False,
)
def _whole_hit(ran: Sentinel) -> Parts:
    class Lags(Runner):
        def pack(self, storage: Storage, rows: Several[Row]) -> Packed:
            packed = super().pack(storage, rows)
            for row, _, _, first in placed(packed):
                if row.start and row.start == row.sequence.cached == row.sequence.prompt - 1:
                    ran()
                    packed.positions[first] -= 1
            return packed

    return Parts(runner=Lags)
