"""The remote store: a second tier of prefix blocks, outside of the pool, as LMCache and Mooncake keep them.

It holds copies of whole blocks, each under its exact key: the namespace and all tokens up to the block's end.
"""

from collections import OrderedDict
from collections.abc import Sequence

from kvfence.reference_impl.key import Namespace
from kvfence.reference_impl.storage import Pages

Key = tuple[Namespace, tuple[int, ...]]


class TransferError(Exception):
    """A block could not be read from the store; the message is one line for the user."""


class RemoteStore:
    """Blocks by key, in numbered slots. The least recently used one gives way to a new one, unless it is pinned."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity  # blocks
        self._slots: OrderedDict[Key, int] = OrderedDict()  # least recently used first
        self._pages: list[Pages | None] = [None] * capacity
        self._pins = [0] * capacity
        self._free = list(range(capacity))

    def __len__(self) -> int:
        """Number of blocks that can be found."""
        return len(self._slots)

    def match(self, namespace: Namespace, tokens: Sequence[int], first: int, size: int) -> list[Key]:
        """Keys of the blocks of `size` tokens that hold `tokens` from block `first` on, up to one that is missing."""
        keys: list[Key] = []
        for stop in range((first + 1) * size, len(tokens) + 1, size):
            if (key := (namespace, tuple(tokens[:stop]))) not in self._slots:
                break
            keys.append(key)
        return keys

    def put(self, namespace: Namespace, tokens: Sequence[int], pages: Pages) -> None:
        """Keep a copy of the block that `tokens` end with, unless it is here already or all others are pinned."""
        key = (namespace, tuple(tokens))
        if key in self._slots:
            self._slots.move_to_end(key)
            return
        if not self._free:
            self._evict()
        if self._free:
            slot = self._slots[key] = self._free.pop()
            self._pages[slot] = pages

    def pin(self, key: Key) -> int:
        """The slot of a block, which stays there until it is unpinned."""
        slot = self._slots[key]
        self._slots.move_to_end(key)
        self._pins[slot] += 1
        return slot

    def read(self, slot: int) -> Pages:
        """What a slot holds. Raises TransferError if it cannot be read."""
        pages = self._pages[slot]
        if pages is None:
            raise TransferError(f"slot {slot} of the remote store is empty")
        return pages

    def unpin(self, slot: int) -> None:
        """A transfer has read a slot, or will not."""
        self._pins[slot] -= 1

    def clear(self) -> None:
        """Forget every block but those that a transfer is about to read."""
        while self._evict():
            pass

    def _evict(self) -> bool:
        oldest = next((key for key, slot in self._slots.items() if not self._pins[slot]), None)
        if oldest is None:
            return False
        slot = self._slots.pop(oldest)
        self._pages[slot] = None
        self._free.append(slot)
        return True
