"""Faults of block tables: a row goes by a table that is old, or another's."""

from collections.abc import Sequence as Several

from torch import Tensor

from kvfence.reference_impl.cache import KVCache
from kvfence.reference_impl.defects.defect import Sentinel, defect
from kvfence.reference_impl.defects.trusting import TrustingPool, TrustingTree
from kvfence.reference_impl.pool import SCRATCH
from kvfence.reference_impl.runner import Packed, Runner
from kvfence.reference_impl.scheduler import Scheduler
from kvfence.reference_impl.sequence import Row, Sequence
from kvfence.reference_impl.settings import Parts
from kvfence.reference_impl.storage import Storage

BUFFER = 7  # rows


@defect(
    "stale-table.dedupe",
    "STALE-TABLE",
    "tenstorrent/tt-xla#5778",
    "A block that turns out to hold what another one holds is freed, and stays in the table.",
)
def _dedupe(ran: Sentinel) -> Parts:
    class Dedupes(KVCache):
        def publish(self, sequence: Sequence, tail: bool = False) -> None:
            first = sequence.published // self.block_size
            super().publish(sequence, tail)
            for block in sequence.table.blocks[first : sequence.published // self.block_size]:
                if block != SCRATCH and self.pool.writable(block):
                    ran()
                    self.pool.release(block)

    return Parts(cache=Dedupes, pool=TrustingPool, tree=TrustingTree)


@defect(
    "stale-table.length",
    "STALE-TABLE",
    "vllm-project/vllm#43894",
    "A row's table is renewed only when it has become longer or shorter: entries that were replaced stay.",
)
def _length(ran: Sentinel) -> Parts:
    known: dict[Sequence, tuple[int, ...]] = {}

    class Caches(Scheduler):
        def plan(self) -> list[Row]:
            return [self._row_of(row) for row in super().plan()]

        def _row_of(self, row: Row) -> Row:
            blocks = known.get(row.sequence, ())
            if len(blocks) != len(row.blocks):
                known[row.sequence] = row.blocks
                return row
            if blocks != row.blocks:
                ran()
            return Row(row.sequence, row.start, row.stop, blocks, row.samples, row.draft)

    return Parts(scheduler=Caches)


@defect(
    "stale-table.moved",
    "STALE-TABLE",
    "vllm-project/vllm#20512",
    "When a request leaves the batch and another takes its row, that one still goes by the table that lay there.",
)
def _moved(ran: Sentinel) -> Parts:
    class Keeps(Runner):
        decoding: tuple[tuple[Sequence, Tensor], ...] = ()

        def pack(self, storage: Storage, rows: Several[Row]) -> Packed:
            packed = super().pack(storage, rows)
            for group, members in zip(packed.batch.groups, packed.members, strict=True):
                if group.shape[1] == 1:
                    before, self.decoding = self.decoding, _tables(members, group.blocks)
                    if len(members) < len(before):
                        self._leave(members, group.blocks, before)
            return packed

        def _leave(self, members: list[Row], blocks: Tensor, before: tuple[tuple[Sequence, Tensor], ...]) -> None:
            here = {row.sequence for row in members}
            for place, (gone, table) in enumerate(before[: len(members)]):
                if gone not in here:
                    n = min(len(table), blocks.shape[1])
                    if not blocks[place, :n].equal(table[:n]):
                        ran()
                    blocks[place, :n] = table[:n]

    return Parts(runner=Keeps)


def _tables(members: list[Row], blocks: Tensor) -> tuple[tuple[Sequence, Tensor], ...]:
    return tuple((row.sequence, blocks[place].clone()) for place, row in enumerate(members))


@defect(
    "stale-table.eighth-row",
    "STALE-TABLE",
    "ggml-org/llama.cpp#28056",
    "The buffer of tables has seven rows and the index wraps: the eighth row reads through the first one's table.",
    subtle="it takes eight requests of one length in a batch",
)
def _eighth_row(ran: Sentinel) -> Parts:
    class Wraps(Runner):
        def pack(self, storage: Storage, rows: Several[Row]) -> Packed:
            packed = super().pack(storage, rows)
            for group, members in zip(packed.batch.groups, packed.members, strict=True):
                for place in range(BUFFER, len(members)):
                    if not group.blocks[place].equal(group.blocks[place % BUFFER]):
                        ran()
                    group.blocks[place] = group.blocks[place % BUFFER]
            return packed

    return Parts(runner=Wraps)
