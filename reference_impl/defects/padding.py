"""Faults of padding: rows see past their end, or padding is written where somebody's K/V lie."""

from collections.abc import Sequence as Several
from typing import Any

from kvfence.reference_impl.defects.defect import Sentinel, defect
from kvfence.reference_impl.defects.layout import padding, placed
from kvfence.reference_impl.pool import SCRATCH, BlockPool
from kvfence.reference_impl.runner import Packed, Runner
from kvfence.reference_impl.sequence import Row, Sequence
from kvfence.reference_impl.settings import Parts
from kvfence.reference_impl.storage import Storage

BUCKETS = {"buckets": (4, 8)}


@defect(
    "pad-read.longest",
    "PAD-READ",
    "Blaizzy/mlx-vlm#1946",
    "The rows of a batch are read up to the length of the longest.",
    subtle="what a row says depends on its neighbours' lengths",
)
def _longest(ran: Sentinel) -> Parts:
    class Pads(Runner):
        def pack(self, storage: Storage, rows: Several[Row]) -> Packed:
            packed = super().pack(storage, rows)
            for group in packed.batch.groups:
                longest = group.positions.max()
                if group.shape[1] == 1 and (group.positions < longest).any():
                    ran()
                    group.positions = longest.expand(group.shape)
            return packed

    return Parts(runner=Pads)


@defect(
    "pad-read.block",
    "PAD-READ",
    "ml-explore/mlx-lm#439",
    "A row reads its last block to the end.",
)
def _block(ran: Sentinel) -> Parts:
    class Rounds(Runner):
        def pack(self, storage: Storage, rows: Several[Row]) -> Packed:
            packed = super().pack(storage, rows)
            size = storage.block_size
            for group in packed.batch.groups:
                if group.shape[1] == 1:
                    whole = (group.positions // size + 1) * size - 1
                    if not whole.equal(group.positions):
                        ran()
                    group.positions = whole
            return packed

    return Parts(runner=Rounds)


@defect(
    "pad-write.last-slot",
    "PAD-WRITE",
    "m0at/rvllm#32",
    "Padding is written to slot -1, the last one of the pool. (Which hands out its last block first.)",
    needs=BUCKETS,
    foreign=False,
)
def _last_slot(ran: Sentinel) -> Parts:
    pools: list[BlockPool] = []

    class Downwards(BlockPool):
        def __init__(self, size: int) -> None:
            super().__init__(size)
            self._free.reverse()
            pools.append(self)

    class Wraps(Runner):
        def pack(self, storage: Storage, rows: Several[Row]) -> Packed:
            packed = super().pack(storage, rows)
            [pool] = pools
            for _, index in padding(packed):
                if pool.references[-1] or pool.published[-1]:
                    ran()
                packed.batch.slots[index] = pool.size * storage.block_size - 1
            return packed

    return Parts(pool=Downwards, runner=Wraps)


def _captured(ran: Sentinel, departed: bool) -> type[Runner]:
    """A runner whose padding is written where the rows in its places were written last.

    Where `departed` only if those have left the batch.
    """

    class Captures(Runner):
        def __init__(self, model: Any, buckets: Several[int] = (), kernel: bool = False) -> None:
            super().__init__(model, buckets, kernel)
            self._written: dict[int, tuple[Sequence, int]] = {}

        def pack(self, storage: Storage, rows: Several[Row]) -> Packed:
            packed = super().pack(storage, rows)
            slots, here = packed.batch.slots, {row.sequence for row in rows}
            for place, index in padding(packed):
                sequence, slot = self._written.get(place, (None, SCRATCH))
                if sequence and not (departed and sequence in here):
                    ran()
                    slots[index] = slot
            for row, group, place, index in placed(packed):
                if group.shape[1] == 1:
                    self._written[place] = row.sequence, int(slots[index])
            return packed

    return Captures


@defect(
    "pad-write.captured",
    "PAD-WRITE",
    "vllm-project/vllm#13922",
    "Padding is written to the slots that were captured with the last batch that filled its rows.",
    needs=BUCKETS,
    foreign=False,
)
def _replayed(ran: Sentinel) -> Parts:
    return Parts(runner=_captured(ran, departed=False))


@defect(
    "pad-write.parked",
    "PAD-WRITE",
    "lightseekorg/tokenspeed#667",
    "Padding is written to the last slot of the request that had its row before and has left the batch.",
    needs=BUCKETS,
    subtle="nobody in the batch is hit: a prefix, a retained turn or a request that waits is",
    foreign=False,
)
def _parked(ran: Sentinel) -> Parts:
    return Parts(runner=_captured(ran, departed=True))
