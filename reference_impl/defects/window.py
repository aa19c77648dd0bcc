"""Faults of the sliding window: a block goes too soon, or a position is seen too long."""

from collections.abc import Sequence as Several

import torch
from torch import Tensor

from kvfence.reference_impl.cache import KVCache
from kvfence.reference_impl.defects.defect import Sentinel, defect
from kvfence.reference_impl.defects.trusting import TrustingPool, TrustingTree
from kvfence.reference_impl.key import Namespace
from kvfence.reference_impl.paged import Group
from kvfence.reference_impl.pool import SCRATCH
from kvfence.reference_impl.runner import Packed, Runner
from kvfence.reference_impl.sequence import Row, Sequence
from kvfence.reference_impl.settings import Parts
from kvfence.reference_impl.storage import Storage


@defect(
    "window.block-early",
    "WINDOW",
    "vllm-project/vllm-ascend#13518",
    "A block is let go of while the window still reaches into it.",
    window=True,
    foreign=False,
)
def _block_early(ran: Sentinel) -> Parts:
    class Hurries(KVCache):
        def leave_window(self, sequence: Sequence, first: int) -> None:
            size = self.block_size
            early = first + size - 1
            if early // size > max(0, first) // size and early // size <= len(sequence.table.blocks):
                ran()
            super().leave_window(sequence, early)

    return Parts(cache=Hurries)


@defect(
    "window.position-early",
    "WINDOW",
    "ovg-project/kvcached#446",
    "The last position of a block is taken to have left the window one step before it does.",
    window=True,
    subtle="one position, one step in a block's length",
    foreign=False,
)
def _position_early(ran: Sentinel) -> Parts:
    class Hurries(KVCache):
        def leave_window(self, sequence: Sequence, first: int) -> None:
            if first >= 0 and (first + 1) % self.block_size == 0:
                ran()
            super().leave_window(sequence, first + 1)

    return Parts(cache=Hurries)


@defect(
    "window.wide",
    "WINDOW",
    "sgl-project/sglang#33656",
    "A query sees one position more than the window has.",
    window=True,
    subtle="mostly the request's own K/V",
    foreign=False,
)
def _wide(ran: Sentinel) -> Parts:
    class Wide(Group):
        def mask(self, window: int | None, dtype: torch.dtype) -> Tensor:
            if window is not None and self.positions.max() >= window:
                ran()
            return super().mask(window and window + 1, dtype)

    class Widens(Runner):
        def pack(self, storage: Storage, rows: Several[Row]) -> Packed:
            packed = super().pack(storage, rows)
            groups = packed.batch.groups
            groups[:] = [Wide(group.first, group.blocks, group.positions, group.keys) for group in groups]
            return packed

    return Parts(runner=Widens)


@defect(
    "window.ring",
    "WINDOW",
    "waybarrios/vllm-mlx#775",
    "What a window has left behind is published as if it lay in the ring of blocks that are left.",
    window=True,
    subtle="the prefix must have been evicted while the request ran",
)
def _ring(ran: Sentinel) -> Parts:
    class Rings(TrustingTree):
        def insert(self, namespace: Namespace, tokens: Several[int], blocks: Several[int]) -> list[int]:
            live = [block for block in blocks if block != SCRATCH]
            ring = [live[i % len(live)] if block == SCRATCH and live else block for i, block in enumerate(blocks)]
            added = super().insert(namespace, tokens, ring)
            if any(blocks[i] == SCRATCH and block in added for i, block in enumerate(ring)):
                ran()
            return list(dict.fromkeys(added))

    return Parts(tree=Rings, pool=TrustingPool)
