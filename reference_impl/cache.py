"""The KV cache: blocks taken, shared, copied on write, published and let go of. All ownership is decided here.

Three tiers. Published blocks are global and read only; a sequence's own blocks are private; the scratch block takes the
writes of padding. A sequence may name published blocks in its table, and writes to private ones only.
"""

from collections import abc
from collections.abc import Iterable
from functools import partial

from kvfence.reference_impl.clock import Clock, Operation, Stream
from kvfence.reference_impl.holding import Draining, Retained
from kvfence.reference_impl.pool import SCRATCH, BlockPool, OutOfBlocksError
from kvfence.reference_impl.radix import PrefixTree
from kvfence.reference_impl.remote import RemoteStore
from kvfence.reference_impl.sequence import BlockTable, Sequence, Swapped
from kvfence.reference_impl.storage import Storage
from kvfence.reference_impl.trace import Kind, Trace


class KVCache:
    """Pool, prefix tree, storage and remote store, kept consistent. Blocks change hands nowhere else."""

    def __init__(
        self,
        pool: BlockPool,
        tree: PrefixTree,
        storage: Storage,
        clock: Clock,
        sharing: bool = True,
        copy_delay: int = 0,
        trace: Trace | None = None,
        remote: RemoteStore | None = None,
    ) -> None:
        self.pool, self.tree, self.storage, self.clock = pool, tree, storage, clock
        self.remote = RemoteStore(0) if remote is None else remote
        self.block_size = tree.block_size
        self.draining: list[Draining] = []
        self.retained: list[Retained] = []  # least recently used first
        self.sharing, self._delay, self._trace = sharing, copy_delay, trace

    # Taking.

    def adopt(self, sequence: Sequence) -> int:
        """Give a sequence without blocks the longest published prefix of its tokens; returns its length.

        The last token is never taken: its logits are what the next one comes from.
        """
        if not self.sharing:
            return 0
        blocks, length = self.tree.match(sequence.namespace, sequence.tokens[:-1])
        self._share(sequence, blocks, length, Kind.SHARE)
        sequence.published = length // self.block_size * self.block_size
        return length

    def fork(self, parent: Sequence, child: Sequence) -> None:
        """Give a new sequence everything its parent has written; none of it is copied before one of them writes."""
        self._share(child, parent.table.blocks, parent.written, Kind.FORK)
        child.published = parent.published

    def missing(self, sequence: Sequence, stop: int) -> int:
        """Number of blocks that `reserve` would take from the pool."""
        blocks = sequence.table.blocks
        copies = sum(not self.pool.writable(block) for block in blocks[sequence.computed // self.block_size :])
        return copies + max(0, -(-stop // self.block_size) - len(blocks))

    def has_room(self, sequence: Sequence, stop: int) -> bool:
        """Whether `reserve` will find the blocks; what is retained is dropped for it."""
        missing = self.missing(sequence, stop)
        self._make_room(missing)
        return missing <= self.pool.available

    def reserve(self, sequence: Sequence, stop: int) -> None:
        """Make positions from the first one not computed to `stop` writable. OutOfBlocksError changes nothing."""
        if not self.has_room(sequence, stop):
            raise OutOfBlocksError(f"request {sequence.id} needs {self.missing(sequence, stop)} blocks more")
        self._copy_on_write(sequence)
        table = sequence.table
        while table.capacity < stop:
            table.blocks.append(self._allocate(sequence.id))

    def _share(self, sequence: Sequence, blocks: abc.Sequence[int], length: int, kind: Kind) -> None:
        for i, block in enumerate(blocks):
            if block != SCRATCH:
                self.pool.share(block)
                self._note_part(kind, sequence.id, block, i, length)
        sequence.table.blocks = list(blocks)
        sequence.computed = sequence.written = length

    def _copy_on_write(self, sequence: Sequence) -> None:
        """Replace blocks that are about to be written to and are not private by copies."""
        blocks = sequence.table.blocks
        for i in range(sequence.computed // self.block_size, len(blocks)):
            if not self.pool.writable(old := blocks[i]):
                new = blocks[i] = self._allocate(sequence.id)
                copy = self.launch(Stream.COPIES, partial(self.storage.copy, old, new), self._delay)
                sequence.operations.append(copy)
                self._note_part(Kind.COPY, sequence.id, new, i, sequence.computed, source=old)
                self._let_go(sequence.id, [old], [copy])

    def _allocate(self, request: str) -> int:
        if not self.pool.free and (oldest := self.pool.oldest_idle()) is not None:
            self.evict(oldest)
        block = self.pool.allocate()
        self._note(Kind.ALLOCATE, request, block)
        return block

    def launch(self, stream: Stream, run: abc.Callable[[], None], delay: int) -> Operation:
        """Launch a copy or a transfer, behind the steps in flight: they may write its source and read its target."""
        return self.clock.launch(stream, run, delay, after=self.clock.in_flight(Stream.STEPS))

    # Publishing.

    def publish(self, sequence: Sequence, tail: bool = False) -> None:
        """Let others find what a sequence has written: whole blocks, and the `tail` too if nothing will write to it.

        The remote store gets the whole ones: at eviction there would be no time to wait for a transfer to it.
        """
        whole = sequence.written // self.block_size * self.block_size
        in_flight = sequence.in_flight() if tail or whole > sequence.published else []
        tail = tail and all(operation.stream is not Stream.STEPS for operation in in_flight)
        n = sequence.written if tail else whole
        if not self.sharing or n <= sequence.published:
            return
        for operation in in_flight:
            if operation.stream is Stream.COPIES:
                self.clock.wait(operation)
        blocks = sequence.table.blocks
        for block in self.tree.insert(sequence.namespace, sequence.tokens[:n], blocks):
            self.pool.publish(block)
            i = blocks.index(block)
            self._note_part(Kind.PUBLISH, sequence.id, block, i, n)
            end = (i + 1) * self.block_size
            if self.remote.capacity and end <= n:
                self.remote.put(sequence.namespace, sequence.tokens[:end], self.storage.read([block]))
        sequence.published = n

    def evict(self, block: int) -> None:
        """Take a block, and those that continue it, out of the prefix pool; unused ones are free."""
        self._withdraw(self.tree.remove(block))

    def reset(self) -> None:
        """Forget every prefix, here and in the remote store."""
        self._withdraw(self.tree.clear())
        self.remote.clear()

    def _withdraw(self, blocks: Iterable[int]) -> None:
        for block in blocks:
            self.pool.withdraw(block)
            self._note(Kind.EVICT, "", block)

    # Letting go.

    def release(self, sequence: Sequence, keep: bool = True) -> None:
        """Take all blocks from a sequence, whether it finished, was cancelled, failed or is to be computed again.

        What it has written stays findable, unless `keep` is false. Blocks that work in flight touches are reserved
        until it has landed.
        """
        if keep:
            self.publish(sequence, tail=True)
        blocks, sequence.table = sequence.table.blocks, BlockTable(self.block_size)
        sequence.computed = sequence.written = sequence.published = 0
        self._let_go(sequence.id, blocks, sequence.in_flight())

    def trim(self, sequence: Sequence) -> None:
        """Let go of blocks behind the last computed position: what was written there was rejected."""
        blocks = sequence.table.blocks
        keep = -(-sequence.computed // self.block_size)
        behind = blocks[keep:]
        del blocks[keep:]
        self._let_go(sequence.id, behind, sequence.in_flight())

    def leave_window(self, sequence: Sequence, first: int) -> None:
        """Let go of blocks that hold only positions before `first`, which no layer will read again."""
        blocks = sequence.table.blocks
        gone = [i for i in range(min(first // self.block_size, len(blocks))) if blocks[i] != SCRATCH]
        self._let_go(sequence.id, [blocks[i] for i in gone], sequence.in_flight())
        for i in gone:
            blocks[i] = SCRATCH

    def _let_go(self, request: str, blocks: list[int], operations: Iterable[Operation]) -> None:
        waiting = [operation for operation in operations if not operation.landed]
        draining = Draining(request, blocks, waiting)
        if not waiting:
            self._free(draining)
            return
        self.draining.append(draining)
        for operation in waiting:
            operation.then.append(partial(self._landed, draining))

    def _landed(self, draining: Draining) -> None:
        if draining in self.draining and all(operation.landed for operation in draining.operations):
            self.draining.remove(draining)
            self._free(draining)

    def _free(self, draining: Draining) -> None:
        # The last one first: what continues a prefix is evicted before the prefix.
        for block in reversed(draining.blocks):
            if block != SCRATCH:
                self.pool.release(block)
                self._note(Kind.RELEASE, draining.request, block)

    def _make_room(self, blocks: int) -> None:
        """Have so many blocks available, if copies and transfers in flight or retained blocks stand in the way."""
        # With a step in flight nothing is waited for: the step would land too, and change what is being planned.
        for draining in list(self.draining):
            for operation in draining.operations:
                if self.pool.available < blocks and not self.clock.in_flight(Stream.STEPS):
                    self.clock.wait(operation)
        while self.retained and self.pool.available < blocks:
            self.drop(self.retained[0])

    # Keeping for the next turn.

    def retain(self, sequence: Sequence) -> Retained:
        """Keep what a finished sequence has written, instead of releasing it."""
        self.publish(sequence, tail=True)
        kept = Retained(sequence.id, sequence.namespace, sequence.table.blocks, sequence.written, sequence.in_flight())
        sequence.table = BlockTable(self.block_size)
        self.retained.append(kept)
        return kept

    def resume(self, sequence: Sequence, kept: Retained) -> bool:
        """Give a new sequence whose tokens begin with retained ones their blocks; False if they cannot be used."""
        if kept not in self.retained or kept.namespace != sequence.namespace:
            return False
        for operation in kept.operations:
            self.clock.wait(operation)
        self.retained.remove(kept)
        sequence.table.blocks = kept.blocks
        sequence.computed = sequence.written = kept.written
        for i, block in enumerate(kept.blocks):
            if block != SCRATCH:
                self._note_part(Kind.FORK, sequence.id, block, i, kept.written)
                self._note(Kind.RELEASE, kept.request, block)
        return True

    def drop(self, kept: Retained) -> None:
        """Let go of retained blocks."""
        if kept in self.retained:
            self.retained.remove(kept)
            self._let_go(kept.request, kept.blocks, kept.operations)

    # Swapping.

    def swap_out(self, sequence: Sequence) -> None:
        """Copy what a sequence has written to the host and take its blocks."""
        entries = sequence.table.blocks[: -(-sequence.written // self.block_size)]
        blocks = [block for block in entries if block != SCRATCH]
        swapped = sequence.swapped = Swapped(sequence.written, len(entries) - len(blocks))

        def copy() -> None:
            swapped.pages = self.storage.read(blocks)

        sequence.operations.append(self.launch(Stream.COPIES, copy, self._delay))
        for block in blocks:
            self._note(Kind.SWAP_OUT, sequence.id, block)
        self.release(sequence)

    def swap_in(self, sequence: Sequence) -> None:
        """Give a swapped sequence blocks with its K/V again. Raises OutOfBlocksError, changing nothing."""
        assert sequence.swapped is not None
        swapped = sequence.swapped
        self.reserve(sequence, swapped.written - swapped.holes * self.block_size)
        blocks = list(sequence.table.blocks)

        def copy() -> None:
            assert swapped.pages is not None
            self.storage.restore(blocks, swapped.pages)

        sequence.operations.append(self.launch(Stream.COPIES, copy, self._delay))
        for i, block in enumerate(blocks, swapped.holes):
            self._note_part(Kind.SWAP_IN, sequence.id, block, i, swapped.written)
        sequence.table.blocks[:0] = [SCRATCH] * swapped.holes
        sequence.computed = sequence.written = swapped.written
        sequence.swapped = None

    def _note_part(self, kind: Kind, request: str, block: int, i: int, n: int, source: int | None = None) -> None:
        """Note something about the block that is the `i`-th of a request's with K/V of `n` tokens."""
        start = i * self.block_size
        length = min(self.block_size, n - start)
        self._note(kind, request, block, length=length, position=start, source=source)

    def _note(
        self, kind: Kind, request: str, block: int, length: int = 0, position: int = 0, source: int | None = None
    ) -> None:
        if self._trace:
            self._trace.add(kind, request, block, length=length, position=position, source=source)
