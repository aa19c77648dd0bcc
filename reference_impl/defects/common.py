"""Faults of a common prefix: what some rows of a batch share, all are taken to share."""

from collections.abc import Sequence as Several
from itertools import takewhile

from kvfence.reference_impl.defects.defect import Sentinel, defect
from kvfence.reference_impl.defects.layout import placed
from kvfence.reference_impl.pool import BlockPool
from kvfence.reference_impl.runner import Packed, Runner
from kvfence.reference_impl.sequence import Row
from kvfence.reference_impl.settings import Parts
from kvfence.reference_impl.storage import Storage


def _common(ran: Sentinel, packed: Packed, prefix: list[int]) -> Packed:
    """Have all rows of a batch read a common prefix, as far as they are as long."""
    for row, group, place, _ in placed(packed):
        n = min(len(prefix), row.stop // packed.batch.storage.block_size)
        if group.blocks[place, :n].tolist() != prefix[:n]:
            ran()
        group.blocks[place, :n] = group.blocks.new_tensor(prefix[:n])
    return packed


@defect(
    "common-pfx.count",
    "COMMON-PFX",
    "vllm-project/vllm#22003",
    "Blocks of the first row that are counted as often as the batch has rows are taken to be everybody's prefix.",
    subtle="the count must be made of others: forks and requests that wait",
)
def _count(ran: Sentinel) -> Parts:
    pools: list[BlockPool] = []

    class Counted(BlockPool):
        def __init__(self, size: int) -> None:
            super().__init__(size)
            pools.append(self)

    class Cascades(Runner):
        def pack(self, storage: Storage, rows: Several[Row]) -> Packed:
            [pool] = pools
            prefix = takewhile(lambda block: pool.references[block] >= len(rows), rows[0].blocks)
            return _common(ran, super().pack(storage, rows), list(prefix))

    return Parts(pool=Counted, runner=Cascades)


@defect(
    "common-pfx.ends",
    "COMMON-PFX",
    "vllm-project/vllm#22003",
    "The prefix that the first and the last row of a batch share is taken to be everybody's.",
    subtle="it takes a third request between two that share",
)
def _ends(ran: Sentinel) -> Parts:
    class Cascades(Runner):
        def pack(self, storage: Storage, rows: Several[Row]) -> Packed:
            pairs = zip(rows[0].blocks, rows[-1].blocks, strict=False)
            prefix = [a for a, _ in takewhile(lambda pair: pair[0] == pair[1], pairs)] if len(rows) > 1 else []
            return _common(ran, super().pack(storage, rows), prefix)

    return Parts(runner=Cascades)
