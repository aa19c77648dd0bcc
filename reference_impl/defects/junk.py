"""Faults of unwritten slots: what is no number there comes through the mask."""

from collections.abc import Iterable

import torch

from kvfence.reference_impl.cache import KVCache
from kvfence.reference_impl.defects.defect import Sentinel, defect
from kvfence.reference_impl.holding import Draining
from kvfence.reference_impl.ledger import Shape
from kvfence.reference_impl.pool import SCRATCH
from kvfence.reference_impl.settings import Parts
from kvfence.reference_impl.storage import Storage
from kvfence.reference_impl.tags import OwnerTags


@defect(
    "nan-slot.scratch",
    "NAN-SLOT",
    "vllm-project/vllm#43990",
    "The scratch block is not zeroed; what stands there is no number, and a mask that is added does not hide it.",
    subtle="it takes a longer neighbour",
    foreign=False,
)
def _scratch(ran: Sentinel) -> Parts:
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
            self.kv[:, :, SCRATCH] = torch.nan

        def gather(self, layer: int, blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            if (blocks == SCRATCH).any() and self.kv[:, layer, SCRATCH].isnan().any():
                ran()
            return super().gather(layer, blocks)

    return Parts(storage=Unzeroed)


@defect(
    "nan-slot.recycled",
    "NAN-SLOT",
    "vllm-project/vllm#57158",
    "Freed blocks are filled with NaN to catch who still reads them, and not zeroed when they are used again.",
    subtle="the first owners of all blocks are well",
    foreign=False,
)
def _recycled(ran: Sentinel) -> Parts:
    class Poisons(KVCache):
        def _free(self, draining: Draining) -> None:
            super()._free(draining)
            for block in draining.blocks:
                if block != SCRATCH and not self.pool.references[block] and not self.pool.published[block]:
                    self.storage.kv[:, :, block] = torch.nan

        def _withdraw(self, blocks: Iterable[int]) -> None:
            gone = list(blocks)
            super()._withdraw(gone)
            for block in gone:
                if not self.pool.references[block]:
                    self.storage.kv[:, :, block] = torch.nan

        def _allocate(self, request: str) -> int:
            block = super()._allocate(request)
            if self.storage.kv[0, 0, block].isnan().any():
                ran()
            return block

    return Parts(cache=Poisons)
