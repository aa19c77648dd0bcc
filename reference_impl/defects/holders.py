"""Faults of who holds what: an entry, a count, a table or a copy is another's than it seems."""

from dataclasses import replace

from kvfence.reference_impl.cache import KVCache
from kvfence.reference_impl.defects.defect import Sentinel, defect
from kvfence.reference_impl.defects.trusting import TrustingPool, TrustingTree
from kvfence.reference_impl.radix import Node, Tokens, subtree
from kvfence.reference_impl.scheduler import Preemption
from kvfence.reference_impl.sequence import Row, Sequence
from kvfence.reference_impl.settings import Parts
from kvfence.reference_impl.steps import Steps
from kvfence.reference_impl.storage import Pages


@defect(
    "stale-idx.neighbour",
    "STALE-IDX",
    "Wenyueh/MinivLLM#87",
    "Eviction takes the entry that follows the evicted block's out of the index, where there is one.",
    subtle="a prefix without another one beside it is evicted rightly",
)
def _neighbour(ran: Sentinel) -> Parts:
    class Misses(TrustingTree):
        def __init__(self, block_size: int) -> None:
            super().__init__(block_size)
            self._left: dict[int, Node] = {}  # by identity

        def remove(self, block: int) -> list[int]:
            node = self._nodes.get(block)
            siblings = node.parent.children if node and node.parent else []
            at = next((i for i, one in enumerate(siblings) if one is node), len(siblings))
            if node is None or node.parent is None or at + 1 >= len(siblings):
                return super().remove(block)
            del siblings[at + 1], node.parent.edges[at + 1]
            left = list(subtree(node))
            for below in left:
                self._nodes.pop(below.block, None)
            self._left |= {id(below): below for below in left}
            return [below.block for below in left]

        def _nearest(self, node: Node, edge: Tokens) -> tuple[Node | None, int]:
            found, common = super()._nearest(node, edge)
            if id(found) in self._left:
                ran()
            return found, common

    return Parts(tree=Misses, pool=TrustingPool)


@defect(
    "refcount.ghost",
    "REFCOUNT",
    "NVIDIA/TensorRT-LLM#12667",
    "A cached block that is taken up stays among those that may be evicted, and is given away while it is in use.",
    subtle="it takes a full pool",
)
def _ghost(ran: Sentinel) -> Parts:
    class Ghosts(TrustingPool):
        def share(self, block: int) -> None:
            if not self.references[block] and block in self._free:
                self._free.remove(block)
            self.references[block] += 1

        def withdraw(self, block: int) -> None:
            if self.references[block] and block in self._idle:
                ran()
                del self._idle[block]
                self._free.append(block)
            super().withdraw(block)

    return Parts(pool=Ghosts, tree=TrustingTree)


@defect(
    "stale-table.staging",
    "STALE-TABLE",
    "ggml-org/llama.cpp#28056",
    "Tables are handed over in one buffer: the next step's are written into it before the launched step has read it.",
    needs={"depth": 1},
    racy=True,
    subtle="a request keeps its row, and its table, as long as the batch stays the same",
)
def _staging(ran: Sentinel) -> Parts:
    class Overwrites(Steps):
        staged: tuple[tuple[int, ...], ...] = ()

        def launch(self, rows: list[Row]) -> None:
            self.staged = tuple(row.blocks for row in rows)
            super().launch(rows)

        def _run(self, rows: list[Row]) -> None:
            super()._run([self._staged(row, place) for place, row in enumerate(rows)])

        def _staged(self, row: Row, place: int) -> Row:
            there = self.staged[place] if place < len(self.staged) else ()
            blocks = (*there, *row.blocks[len(there) :])[: len(row.blocks)]
            used = -(-row.stop // self._cache.block_size)
            if blocks[:used] != row.blocks[:used]:
                ran()
            return replace(row, blocks=blocks)

    return Parts(steps=Overwrites)


@defect(
    "cow.by-reference",
    "COW",
    "ggml-org/llama.cpp#3802",
    "A fork gets its parent's table itself and not a copy: whatever one of them puts into it the others have, too.",
)
def _by_reference(ran: Sentinel) -> Parts:
    class Aliases(KVCache):
        def fork(self, parent: Sequence, child: Sequence) -> None:
            super().fork(parent, child)
            ran()
            child.table.blocks = parent.table.blocks

    return Parts(cache=Aliases, pool=TrustingPool, tree=TrustingTree)


@defect(
    "preempt.twice",
    "PREEMPT",
    "LMCache/LMCache#1361",
    "What the host holds of a request is not copied again when it is preempted once more, though its last block grew.",
    needs={"preemption": Preemption.SWAP},
    subtle="it takes two preemptions of one request",
)
def _twice(ran: Sentinel) -> Parts:
    held: dict[Sequence, Pages] = {}

    class Skips(KVCache):
        def swap_out(self, sequence: Sequence) -> None:
            super().swap_out(sequence)
            pages, before = sequence.swapped and sequence.swapped.pages, held.get(sequence)
            if not pages:  # the copy is on its way
                return
            if before and before.kv.shape[2] <= pages.kv.shape[2]:
                n = before.kv.shape[2]
                if not pages.kv[:, :, :n].equal(before.kv):
                    ran()
                pages.kv[:, :, :n] = before.kv
                if pages.tags is not None and before.tags is not None:
                    pages.tags[:, : n * self.block_size] = before.tags
            held[sequence] = pages

    return Parts(cache=Skips)
