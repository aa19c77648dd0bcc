"""The block pool: which blocks are free, who else uses a block, which may be taken back. All in O(1)."""

from collections import OrderedDict

SCRATCH = 0  # the block that padding is written to; never handed out


class OutOfBlocksError(Exception):
    """Every block is in use."""


class BlockPool:
    """Blocks by number. Each is in one state: free, idle-cached (published, unused), used, or reserved (scratch)."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.references = [0] * size  # table entries that name a block
        self.published = bytearray(size)  # blocks of the prefix tree: read only
        self._free = list(range(size - 1, SCRATCH, -1))
        self._idle: OrderedDict[int, None] = OrderedDict()  # least recently used first

    @property
    def free(self) -> list[int]:
        """Blocks that hold nothing."""
        return self._free

    @property
    def idle(self) -> list[int]:
        """Published blocks that no table names, least recently used first."""
        return list(self._idle)

    @property
    def available(self) -> int:
        """Number of blocks that can be had without taking one from a request."""
        return len(self._free) + len(self._idle)

    @property
    def cached(self) -> int:
        """Number of idle blocks."""
        return len(self._idle)

    @property
    def used(self) -> int:
        """Number of blocks that some table names."""
        return self.size - 1 - self.available

    def allocate(self) -> int:
        """A free block, now used by one. Raises OutOfBlocksError."""
        if not self._free:
            raise OutOfBlocksError("no block is free")
        block = self._free.pop()
        self.references[block] = 1
        return block

    def share(self, block: int) -> None:
        """One more table names a block."""
        if not self.references[block]:
            del self._idle[block]
        self.references[block] += 1

    def release(self, block: int) -> None:
        """One table fewer names a block; without any it is idle if published, else free."""
        left = self.references[block] - 1
        if left < 0:
            raise ValueError(f"block {block} is released by nobody who holds it")
        self.references[block] = left
        if not left:
            if self.published[block]:
                self._idle[block] = None
            else:
                self._free.append(block)

    def publish(self, block: int) -> None:
        """A used block becomes read only and can be found."""
        self.published[block] = 1

    def withdraw(self, block: int) -> None:
        """A block can be found no more; if idle it is free."""
        self.published[block] = 0
        if not self.references[block]:
            del self._idle[block]
            self._free.append(block)

    def oldest_idle(self) -> int | None:
        """The idle block that was released longest ago."""
        return next(iter(self._idle), None)

    def writable(self, block: int) -> bool:
        """Whether a table that names a block may write to it: it is private."""
        return self.references[block] == 1 and not self.published[block]
