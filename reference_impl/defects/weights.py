"""Faults of the weight epoch: K/V of old weights outlive them."""

from collections.abc import Sequence
from dataclasses import replace

from kvfence.reference_impl.cache import KVCache
from kvfence.reference_impl.conversation import Conversation
from kvfence.reference_impl.defects.defect import Sentinel, defect
from kvfence.reference_impl.holding import Retained
from kvfence.reference_impl.key import Namespace
from kvfence.reference_impl.radix import PrefixTree
from kvfence.reference_impl.remote import Key, RemoteStore
from kvfence.reference_impl.sequence import Sequence as Request
from kvfence.reference_impl.settings import Parts
from kvfence.reference_impl.storage import Pages


def _any_epoch(namespace: Namespace) -> Namespace:
    return replace(namespace, epoch=0)


@defect(
    "key-epoch.pool",
    "KEY-EPOCH",
    "NVIDIA-NeMo/RL#4018",
    "New weights neither change the key nor empty the prefix pool.",
    foreign=False,
)
def _pool(ran: Sentinel) -> Parts:
    class Outlives(PrefixTree):
        def __init__(self, block_size: int) -> None:
            super().__init__(block_size)
            self._epochs: dict[int, int] = {}

        def match(self, namespace: Namespace, tokens: Sequence[int]) -> tuple[list[int], int]:
            blocks, length = super().match(_any_epoch(namespace), tokens)
            if any(self._epochs[block] != namespace.epoch for block in blocks):
                ran()
            return blocks, length

        def insert(self, namespace: Namespace, tokens: Sequence[int], blocks: Sequence[int]) -> list[int]:
            added = super().insert(_any_epoch(namespace), tokens, blocks)
            self._epochs |= dict.fromkeys(added, namespace.epoch)
            return added

        def clear(self) -> list[int]:
            if self._nodes:
                ran()
            return []

    return Parts(tree=Outlives)


@defect(
    "key-epoch.store",
    "KEY-EPOCH",
    "vllm-project/vllm#9744",
    "New weights empty the prefix pool, but neither change the remote store's key nor empty it.",
    needs={"remote": 64},
    foreign=False,
)
def _store(ran: Sentinel) -> Parts:
    class Outlives(RemoteStore):
        def __init__(self, capacity: int) -> None:
            super().__init__(capacity)
            self._epochs: dict[Key, int] = {}

        def match(self, namespace: Namespace, tokens: Sequence[int], first: int, size: int) -> list[Key]:
            keys = super().match(_any_epoch(namespace), tokens, first, size)
            if any(self._epochs[key] != namespace.epoch for key in keys):
                ran()
            return keys

        def put(self, namespace: Namespace, tokens: Sequence[int], pages: Pages) -> None:
            key = (_any_epoch(namespace), tuple(tokens))
            if key not in self._slots:
                self._epochs[key] = namespace.epoch
            super().put(key[0], tokens, pages)

        def clear(self) -> None:
            pass

    return Parts(remote=Outlives)


@defect(
    "key-epoch.conversation",
    "KEY-EPOCH",
    "vllm-project/vllm#46125",
    "A conversation goes on from what it retains, though that was computed with old weights.",
    foreign=False,
)
def _conversation(ran: Sentinel) -> Parts:
    class Remembers(Conversation):
        def edit(self, history: list[int], cache: KVCache) -> None:
            super().forget(cache)
            super().edit(history, cache)

        def forget(self, cache: KVCache) -> None:
            if self.turn:  # a turn begins: what is retained was taken
                super().forget(cache)

    class Resumes(KVCache):
        def resume(self, sequence: Request, kept: Retained) -> bool:
            if kept in self.retained and kept.namespace.epoch != sequence.namespace.epoch:
                ran()
            kept.namespace = replace(kept.namespace, epoch=sequence.namespace.epoch)
            return super().resume(sequence, kept)

    return Parts(cache=Resumes, conversation=Remembers)
