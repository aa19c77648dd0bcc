"""Faults of a pass: a row reads, writes or counts otherwise than its request does."""

from collections.abc import Sequence as Several
from dataclasses import replace
from itertools import takewhile

import torch
from torch import Tensor

from kvfence.reference_impl.cache import KVCache
from kvfence.reference_impl.defects.defect import Sentinel, defect
from kvfence.reference_impl.defects.layout import padding, placed
from kvfence.reference_impl.ledger import Shape
from kvfence.reference_impl.pool import SCRATCH
from kvfence.reference_impl.runner import Packed, Runner
from kvfence.reference_impl.scaled import ScaledPages, ScaledStorage
from kvfence.reference_impl.scheduler import Preemption
from kvfence.reference_impl.sequence import Row, Sequence, Status
from kvfence.reference_impl.settings import Parts
from kvfence.reference_impl.steps import Steps
from kvfence.reference_impl.storage import Pages, Storage
from kvfence.reference_impl.tags import OwnerTags
from kvfence.reference_impl.worker import Result

BUCKETS = {"buckets": (4, 8)}


@defect(
    "rollback.values",
    "ROLLBACK",
    "paiml/aprender#2014",
    "The V of the first rejected guess stays where the chosen token's should be; only its K is written.",
    needs={"draft": 3},
    subtle="V but not K: the owner tags are right",
    foreign=False,
)
def _values(ran: Sentinel) -> Parts:
    rejected: dict[Sequence, int] = {}  # position
    kept: set[int] = set()  # slots, in this pass

    class Notes(Steps):
        def _take(self, result: Result) -> None:
            super()._take(result)
            sequence = result.row.sequence
            rejected.pop(sequence, None)
            # A block that begins with the rejected guess was let go of.
            if result.rejected and sequence.status is Status.RUNNING and sequence.written % self._cache.block_size:
                rejected[sequence] = sequence.written

    class Marks(Runner):
        def pack(self, storage: Storage, rows: Several[Row]) -> Packed:
            packed = super().pack(storage, rows)
            kept.clear()
            for row, _, _, first in placed(packed):
                if rejected.get(row.sequence) == row.start:
                    kept.add(int(packed.batch.slots[first]))
            return packed

    class Halves(Storage):
        def write(self, layer: int, slots: Tensor, key: Tensor, value: Tensor) -> None:
            places = [slot for slot in slots.tolist() if slot in kept]
            values = self.kv[1, layer].flatten(0, 1)
            before = values[places].clone()
            super().write(layer, slots, key, value)
            if not values[places].equal(before):
                ran()
            values[places] = before

    return Parts(steps=Notes, runner=Marks, storage=Halves)


@defect(
    "off-by-one.restored",
    "OFF-BY-ONE",
    "vllm-project/vllm-metal#144",
    "A request that comes back from the host goes on with positions one too low.",
    needs={"preemption": Preemption.SWAP},
    subtle="only after a preemption, and the owner tags say nothing of rotations",
    foreign=False,
)
def _restored(ran: Sentinel) -> Parts:
    back: set[Sequence] = set()

    class Restores(KVCache):
        def swap_in(self, sequence: Sequence) -> None:
            super().swap_in(sequence)
            back.add(sequence)

    class Lags(Runner):
        def pack(self, storage: Storage, rows: Several[Row]) -> Packed:
            packed = super().pack(storage, rows)
            for row, group, _, first in placed(packed):
                if row.sequence in back:
                    ran()
                    packed.positions[first : first + group.shape[1]] -= 1
            return packed

    return Parts(cache=Restores, runner=Lags)


@defect(
    "resume-read.contiguous",
    "RESUME-READ",
    "tanishqkumar/ssd#23",
    "After a hit the prompt's other tokens read the prefix without its table, as if its blocks followed each other.",
    subtle="in a pool that nobody has used yet they do",
)
def _contiguous(ran: Sentinel) -> Parts:
    class Ignores(Runner):
        def pack(self, storage: Storage, rows: Several[Row]) -> Packed:
            packed = super().pack(storage, rows)
            last = storage.kv.shape[2] - 1
            for row, group, place, _ in placed(packed):
                n = row.start // storage.block_size
                if n and row.start == row.sequence.cached:
                    following = tuple(min(row.blocks[0] + i, last) for i in range(n))
                    if following != row.blocks[:n]:
                        ran()
                    group.blocks[place, :n] = group.blocks.new_tensor(following)
            return packed

    return Parts(runner=Ignores)


@defect(
    "pad-write.first-row",
    "PAD-WRITE",
    "m0at/rvllm#32",
    "Padding repeats the slot of the first row of its batch, and is written over what that row has just written.",
    needs=BUCKETS,
    foreign=False,
)
def _first_row(ran: Sentinel) -> Parts:
    class Repeats(Runner):
        def pack(self, storage: Storage, rows: Several[Row]) -> Packed:
            packed = super().pack(storage, rows)
            firsts = {group.first: group.shape[0] for group in packed.batch.groups}
            for _, index in padding(packed):
                ran()
                first = max(one for one in firsts if one <= index)
                packed.batch.slots[index] = packed.batch.slots[first]
            return packed

    return Parts(runner=Repeats)


@defect(
    "nan-slot.values",
    "NAN-SLOT",
    "vllm-project/vllm#936",
    "The pool is not zeroed at first: in one KV head of the last layer the V that nobody has written are no numbers.",
    subtle="V of one KV head of one layer, and only until each block has been filled once",
    foreign=False,
)
def _unzeroed(ran: Sentinel) -> Parts:
    class Unzeroed(Storage):
        def __init__(
            self,
            shape: Shape,
            blocks: int,
            block_size: int,
            dtype: torch.dtype,
            device: str,
            tags: OwnerTags | None = None,
        ) -> None:
            super().__init__(shape, blocks, block_size, dtype, device, tags)
            self.kv[1, -1, SCRATCH + 1 :, :, -1] = torch.nan

        def gather(self, layer: int, blocks: Tensor) -> tuple[Tensor, Tensor]:
            key, value = super().gather(layer, blocks)
            if value.isnan().any():
                ran()
            return key, value

    return Parts(storage=Unzeroed)


@defect(
    "common-pfx.kept",
    "COMMON-PFX",
    "vllm-project/vllm#22003",
    "The prefix that all rows of a batch share is kept for the next batch, as long as that has as many rows.",
    subtle="it shows where one batch follows another of the same size",
)
def _kept(ran: Sentinel) -> Parts:
    class Keeps(Runner):
        rows = 0
        prefix: tuple[int, ...] = ()

        def pack(self, storage: Storage, rows: Several[Row]) -> Packed:
            packed, size = super().pack(storage, rows), storage.block_size
            if len(rows) != self.rows:
                tables = (row.blocks[: row.start // size] for row in rows)
                columns = takewhile(lambda column: len(set(column)) == 1, zip(*tables, strict=False))
                self.rows, self.prefix = len(rows), tuple(column[0] for column in columns)
            if len(rows) > 1:
                for row, group, place, _ in placed(packed):
                    n = min(len(self.prefix), row.stop // size)
                    if row.blocks[:n] != self.prefix[:n]:
                        ran()
                    group.blocks[place, :n] = group.blocks.new_tensor(self.prefix[:n])
            return packed

    return Parts(runner=Keeps)


@defect(
    "quant-dep.store",
    "QUANT-DEP",
    "NVIDIA/TensorRT-LLM#2699",
    "The remote store keeps one scale for a block: its V come back with the scale of its K.",
    needs={"remote": 64},
    foreign=False,
    right=Parts(storage=ScaledStorage),
)
def _one_scale(ran: Sentinel) -> Parts:
    class OneScale(ScaledStorage):
        def restore(self, blocks: Several[int], pages: Pages) -> None:
            assert isinstance(pages, ScaledPages)
            scales = pages.scales[:1].expand_as(pages.scales)
            if not scales.equal(pages.scales):
                ran()
            super().restore(blocks, replace(pages, scales=scales))

    return Parts(storage=OneScale)
