"""Faults of resumed rows: what they have in the cache already is not read."""

from collections.abc import Sequence as Several

import torch
from torch import Tensor

from kvfence.reference_impl.defects.defect import Sentinel, defect
from kvfence.reference_impl.defects.layout import placed
from kvfence.reference_impl.paged import Group
from kvfence.reference_impl.pool import SCRATCH
from kvfence.reference_impl.runner import Packed, Runner
from kvfence.reference_impl.sequence import Row
from kvfence.reference_impl.settings import Parts
from kvfence.reference_impl.storage import Storage


class _NewOnly(Group):
    """A group in which rows do not see the blocks that were whole before this pass."""

    def mask(self, window: int | None, dtype: torch.dtype) -> Tensor:
        if window not in self.masks:
            at, size = torch.arange(self.keys, device=self.positions.device), self.keys // self.blocks.shape[1]
            old = at < self.positions[:, :1, None, None] // size * size
            super().mask(window, dtype).masked_fill_(old, -torch.inf)
        return self.masks[window]


def _new_only(ran: Sentinel, group: Group) -> Group:
    ran()
    return _NewOnly(group.first, group.blocks, group.positions, group.keys)


@defect(
    "resume-read.fresh",
    "RESUME-READ",
    "ROCm/ATOM#1551",
    "If the longest row of a batch is a fresh prompt, all prompts in it are read as fresh ones.",
    subtle="it takes a hit and a longer miss in one batch",
    foreign=False,
)
def _fresh(ran: Sentinel) -> Parts:
    class Assumes(Runner):
        def pack(self, storage: Storage, rows: Several[Row]) -> Packed:
            packed = super().pack(storage, rows)
            if max(rows, key=lambda row: row.stop).start < storage.block_size:
                groups = packed.batch.groups
                for i, members in enumerate(packed.members):
                    if groups[i].shape[1] > 1 and any(row.start >= storage.block_size for row in members):
                        groups[i] = _new_only(ran, groups[i])
            return packed

    return Parts(runner=Assumes)


@defect(
    "resume-read.table",
    "RESUME-READ",
    "tanishqkumar/ssd#23",
    "In a batch with a miss the tables of hits are left empty up to what is new.",
    subtle="it takes a hit and a miss in one batch",
    foreign=False,
)
def _table(ran: Sentinel) -> Parts:
    class Empties(Runner):
        def pack(self, storage: Storage, rows: Several[Row]) -> Packed:
            packed = super().pack(storage, rows)
            size = storage.block_size
            if any(row.start < size for row in rows):
                for row, group, place, _ in placed(packed):
                    if row.start >= size and row.start == row.sequence.cached:
                        ran()
                        group.blocks[place, : row.start // size] = SCRATCH
            return packed

    return Parts(runner=Empties)


@defect(
    "resume-read.chunk",
    "RESUME-READ",
    "Wenyueh/MinivLLM#98",
    "A later chunk of a prompt reads only itself, if it is no longer than what came before.",
    needs={"token_budget": 16},
    subtle="it takes a prompt of several full chunks",
    foreign=False,
)
def _chunk(ran: Sentinel) -> Parts:
    class Assumes(Runner):
        def pack(self, storage: Storage, rows: Several[Row]) -> Packed:
            packed = super().pack(storage, rows)
            groups = packed.batch.groups
            for i, members in enumerate(packed.members):
                queries = groups[i].shape[1]
                if queries > 1 and all(row.start >= queries and row.start > row.sequence.cached for row in members):
                    groups[i] = _new_only(ran, groups[i])
            return packed

    return Parts(runner=Assumes)
