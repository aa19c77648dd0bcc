"""Faults of what is moved: a part is left behind, lands elsewhere, or is read when it has gone."""

from collections.abc import Sequence

from torch import Tensor

from kvfence.reference_impl.defects.defect import Sentinel, defect
from kvfence.reference_impl.remote import Key, RemoteStore
from kvfence.reference_impl.scheduler import Preemption
from kvfence.reference_impl.sequence import Sequence as Request
from kvfence.reference_impl.settings import Parts
from kvfence.reference_impl.storage import Pages, Storage
from kvfence.reference_impl.transfers import Transfers

SWAP = {"preemption": Preemption.SWAP}


@defect(
    "uaf-src.unpinned",
    "UAF-SRC",
    "sgl-project/sglang#31427",
    "What a transfer will read is not pinned: the remote store gives its slots to others meanwhile.",
    needs={"remote": 8, "transfer_steps": 8},
    racy=True,
)
def _unpinned(ran: Sentinel) -> Parts:
    class Unpinned(RemoteStore):
        def __init__(self, capacity: int) -> None:
            super().__init__(capacity)
            self._expected: dict[int, list[Pages | None]] = {}

        def pin(self, key: Key) -> int:
            slot = self._slots[key]
            self._expected.setdefault(slot, []).append(self._pages[slot])
            return slot

        def unpin(self, slot: int) -> None:
            if self._expected[slot].pop(0) is not self._pages[slot]:
                ran()

    return Parts(remote=Unpinned)


def _leaving(ran: Sentinel, *places: slice | int) -> type[Storage]:
    """A storage that does not bring a part of K/V [2, layers, blocks, block_size, kv_heads, head_dim] back."""

    class Leaves(Storage):
        def restore(self, blocks: Sequence[int], pages: Pages) -> None:
            kept: Tensor = self.kv[:, :, list(blocks)]
            super().restore(blocks, pages)
            back = self.kv[:, :, list(blocks)]
            if not back[places].equal(kept[places]):
                ran()
            back[places] = kept[places]
            self.kv[:, :, list(blocks)] = back

    return Leaves


ALL = slice(None)


@defect(
    "xfer-map.keys-only",
    "XFER-MAP",
    "vllm-project/vllm#44238",
    "What was swapped out comes back without its V.",
    needs=SWAP,
    subtle="K but not V: the owner tags are right",
)
def _keys_only(ran: Sentinel) -> Parts:
    return Parts(storage=_leaving(ran, 1))


@defect(
    "xfer-map.layer",
    "XFER-MAP",
    "LMCache/LMCache#2845",
    "Of what comes from the remote store the last layer's V is left behind.",
    needs={"remote": 64},
    subtle="V of one layer: the owner tags are right",
)
def _layer(ran: Sentinel) -> Parts:
    return Parts(storage=_leaving(ran, 1, -1))


@defect(
    "xfer-map.head",
    "XFER-MAP",
    "LMCache/LMCache#4463",
    "What was swapped out comes back without the last KV head of the last layer.",
    needs=SWAP,
    subtle="one KV head of one layer: the owner tags are right",
)
def _head(ran: Sentinel) -> Parts:
    return Parts(storage=_leaving(ran, ALL, -1, ALL, ALL, -1))


@defect(
    "xfer-map.slot",
    "XFER-MAP",
    "kvcache-ai/Mooncake#4153",
    "Of each block that comes from the remote store the last slot is left behind.",
    needs={"remote": 64},
    subtle="one slot of a block: the owner tags are right",
)
def _slot(ran: Sentinel) -> Parts:
    return Parts(storage=_leaving(ran, ALL, ALL, ALL, -1))


@defect(
    "xfer-map.order",
    "XFER-MAP",
    "vllm-project/vllm#43996",
    "What was swapped out comes back to its new blocks in reverse order.",
    needs=SWAP,
    foreign=False,
)
def _order(ran: Sentinel) -> Parts:
    class Reverses(Storage):
        def restore(self, blocks: Sequence[int], pages: Pages) -> None:
            if len(blocks) > 1:
                ran()
            super().restore(blocks[::-1], pages)

    return Parts(storage=Reverses)


@defect(
    "xfer-map.shifted",
    "XFER-MAP",
    "vllm-project/vllm#43996",
    "Blocks from the remote store land one place further in the table than they belong.",
    needs={"remote": 64},
    subtle="keys know their positions wherever they lie: it shows where a later hit takes some of them only",
    foreign=False,
)
def _shifted(ran: Sentinel) -> Parts:
    class Shifts(Transfers):
        def _arrive(self, sequence: Request, first: int, blocks: list[int], slots: list[int]) -> None:
            if len(blocks) > 1:
                ran()
            super()._arrive(sequence, first, [*blocks[1:], *blocks[:1]], slots)

    return Parts(transfers=Shifts)


@defect(
    "xfer-map.tail",
    "XFER-MAP",
    "LMCache/LMCache#4463",
    "What was swapped out comes back without its last block.",
    needs=SWAP,
)
def _tail(ran: Sentinel) -> Parts:
    class Leaves(Storage):
        def restore(self, blocks: Sequence[int], pages: Pages) -> None:
            tags = pages.tags
            if len(blocks) < 2:
                super().restore(blocks, pages)
                return
            ran()
            kept = None if tags is None else tags[:, : -self.block_size]
            super().restore(blocks[:-1], Pages(pages.kv[:, :, :-1], kept))

    return Parts(storage=Leaves)


@defect(
    "slot-reuse.restore",
    "SLOT-REUSE",
    "ollama/ollama#17475",
    "The host keeps what was swapped out last; a restore of anything else does nothing, and is taken for done.",
    needs=SWAP,
)
def _restore(ran: Sentinel) -> Parts:
    class Forgets(Storage):
        kept: Pages | None = None

        def read(self, blocks: Sequence[int]) -> Pages:
            self.kept = super().read(blocks)
            return self.kept

        def restore(self, blocks: Sequence[int], pages: Pages) -> None:
            if pages is self.kept:
                super().restore(blocks, pages)
            else:
                ran()

    return Parts(storage=Forgets)
