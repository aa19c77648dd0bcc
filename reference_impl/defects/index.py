"""Faults of the index: what it names is no longer there."""

from collections.abc import Sequence

from kvfence.reference_impl.cache import KVCache
from kvfence.reference_impl.conversation import Conversation
from kvfence.reference_impl.defects.defect import Sentinel, defect
from kvfence.reference_impl.defects.trusting import TrustingPool, TrustingTree
from kvfence.reference_impl.key import Namespace
from kvfence.reference_impl.radix import Node, Tokens
from kvfence.reference_impl.remote import Key, RemoteStore
from kvfence.reference_impl.settings import Parts


class _Index(TrustingTree):
    """A tree that may leave entries of blocks that are given away, and says so when they are found."""

    def __init__(self, block_size: int) -> None:
        super().__init__(block_size)
        self._left: dict[int, Node] = {}  # by identity

    def leave(self, block: int) -> None:
        """A block's entry is stale from now on."""
        if node := self._nodes.get(block):
            self._left[id(node)] = node

    def _nearest(self, node: Node, edge: Tokens) -> tuple[Node | None, int]:
        found, common = super()._nearest(node, edge)
        if id(found) in self._left:
            self.found()
        return found, common

    def found(self) -> None:
        """A stale entry was found."""


@defect(
    "stale-idx.evict",
    "STALE-IDX",
    "vllm-project/vllm#4764",
    "An evicted block is given away, and stays in the index as the prefix it was.",
)
def _evict(ran: Sentinel) -> Parts:
    class Leaves(_Index):
        def remove(self, block: int) -> list[int]:
            self.leave(block)
            return [block]

        def found(self) -> None:
            ran()

    return Parts(pool=TrustingPool, tree=Leaves)


@defect(
    "stale-idx.reset",
    "STALE-IDX",
    "vllm-project/vllm#44237",
    "A reset gives all blocks of the prefix pool away and leaves the index as it is.",
)
def _reset(ran: Sentinel) -> Parts:
    class Leaves(_Index):
        def clear(self) -> list[int]:
            for block in self._nodes:
                self.leave(block)
            return list(self._nodes)

        def found(self) -> None:
            ran()

    return Parts(pool=TrustingPool, tree=Leaves)


@defect(
    "stale-idx.history",
    "STALE-IDX",
    "Wenyueh/MinivLLM#87",
    "After an edit that makes a history no shorter its K/V are still taken for valid.",
    foreign=False,
)
def _history(ran: Sentinel) -> Parts:
    class Believes(Conversation):
        def edit(self, history: list[int], cache: KVCache) -> None:
            kept = self.valid
            if kept is None or len(history) <= kept.written:
                super().edit(history, cache)
                return
            if history[: kept.written] != self.history[: kept.written]:
                ran()
            self.history = list(history)

    return Parts(conversation=Believes, pool=TrustingPool, tree=TrustingTree)


@defect(
    "stale-idx.store",
    "STALE-IDX",
    "local-inference-lab/vllm#480",
    "What the remote store gives up keeps its key: it is found where another block lies now.",
    needs={"remote": 8},
)
def _store(ran: Sentinel) -> Parts:
    class Leaves(RemoteStore):
        def __init__(self, capacity: int) -> None:
            super().__init__(capacity)
            self._left: dict[Key, int] = {}

        def match(self, namespace: Namespace, tokens: Sequence[int], first: int, size: int) -> list[Key]:
            keys: list[Key] = []
            for stop in range((first + 1) * size, len(tokens) + 1, size):
                key = (namespace, tuple(tokens[:stop]))
                if key not in self._slots and key not in self._left:
                    break
                keys.append(key)
            return keys

        def pin(self, key: Key) -> int:
            if key in self._slots:
                return super().pin(key)
            ran()
            slot = self._left[key]
            self._pins[slot] += 1
            return slot

        def _evict(self) -> bool:
            before = dict(self._slots)
            evicted = super()._evict()
            self._left |= {key: slot for key, slot in before.items() if key not in self._slots}
            return evicted

        def clear(self) -> None:
            super().clear()
            self._left.clear()

    return Parts(remote=Leaves)
