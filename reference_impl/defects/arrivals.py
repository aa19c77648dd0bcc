"""Faults of what arrives: it is used, found or given away before it is there, or comes from elsewhere."""

from collections import abc

from kvfence.reference_impl.cache import KVCache
from kvfence.reference_impl.clock import Operation, Stream
from kvfence.reference_impl.defects.defect import Sentinel, defect
from kvfence.reference_impl.remote import Key, RemoteStore, TransferError
from kvfence.reference_impl.scheduler import Preemption, Scheduler
from kvfence.reference_impl.sequence import Row, Sequence, Status
from kvfence.reference_impl.settings import Parts
from kvfence.reference_impl.storage import Pages, Storage
from kvfence.reference_impl.transfers import Transfers

PATIENCE = 3  # steps
HOST = 6  # blocks


@defect(
    "pub-early.rounded",
    "PUB-EARLY",
    "NVIDIA/TensorRT-LLM#12786",
    "A chunk of a prompt that ends within a block publishes that block as if it were whole.",
    subtle="chunks must end within a block",
)
def _rounded(ran: Sentinel) -> Parts:
    class Rounds(KVCache):
        def publish(self, sequence: Sequence, tail: bool = False) -> None:
            written = sequence.written
            whole = -(-written // self.block_size) * self.block_size
            if not tail and max(written, sequence.published) < whole <= sequence.prompt:
                ran()
                sequence.written = whole
            super().publish(sequence, tail)
            sequence.written = written

    return Parts(cache=Rounds)


@defect(
    "pub-fail.sharer",
    "PUB-FAIL",
    "vllm-project/vllm#49250",
    "Who waited for a transfer that failed computes the prefix; others find what has come of it, as if it were whole."
    " (Every other read of the store fails.)",
    needs={"remote": 64},
    subtle="the request whose transfer failed is right",
)
def _sharer(ran: Sentinel) -> Parts:
    failed: set[Sequence] = set()

    class Fails(RemoteStore):
        reads = 0

        def read(self, slot: int) -> Pages:
            self.reads += 1
            if self.reads % 2:
                raise TransferError(f"slot {slot} of the remote store timed out")
            return super().read(slot)

    class Leaves(Transfers):
        def _failed(self, sequence: Sequence) -> None:
            if sequence.status is Status.FETCHING:
                ran()
                failed.add(sequence)
                sequence.status, sequence.written = Status.WAITING, sequence.table.capacity
                self._cache.release(sequence)

    class Wary(KVCache):
        def adopt(self, sequence: Sequence) -> int:
            return 0 if sequence in failed else super().adopt(sequence)

    return Parts(remote=Fails, transfers=Leaves, cache=Wary)


def _without(operations: list[Operation], stream: Stream) -> list[Operation]:
    return [operation for operation in operations if operation.stream is not stream]


@defect(
    "uaf-dst.timeout",
    "UAF-DST",
    "ModelTC/LightLLM#1406",
    "A transfer that takes too long is given up, and its blocks are free, though it still writes to them.",
    needs={"remote": 64, "transfer_steps": 8},
    racy=True,
)
def _timeout(ran: Sentinel) -> Parts:
    class Impatient(Scheduler):
        def plan(self) -> list[Row]:
            for sequence in list(self.waiting):
                late = self.cache.clock.now - sequence.submitted >= PATIENCE
                if late and sequence.status is Status.FETCHING:
                    ran()
                    sequence.status = Status.WAITING
                    sequence.operations = _without(sequence.operations, Stream.TRANSFERS)
                    self.cache.release(sequence, keep=False)
                    # Who is tried again is tried last.
                    self.waiting.remove(sequence)
                    self.waiting.append(sequence)
            return super().plan()

    return Parts(scheduler=Impatient)


@defect(
    "uaf-src.host",
    "UAF-SRC",
    "sgl-project/sglang#28468",
    "The host has room for six blocks: what is swapped out is written over what has not come back yet.",
    needs={"preemption": Preemption.SWAP},
    subtle="several must be swapped out at once",
)
def _host(ran: Sentinel) -> Parts:
    class Wraps(Storage):
        _waiting: tuple[Pages, ...] = ()
        _lost: tuple[Pages, ...] = ()

        def read(self, blocks: abc.Sequence[int]) -> Pages:
            pages = super().read(blocks)
            while self._waiting and sum(_blocks(one) for one in (*self._waiting, pages)) > HOST:
                oldest, *others = self._waiting
                n = min(_blocks(oldest), _blocks(pages))
                oldest.kv[:, :, :n] = pages.kv[:, :, :n]
                if oldest.tags is not None and pages.tags is not None:
                    oldest.tags[:, : n * self.block_size] = pages.tags[:, : n * self.block_size]
                self._waiting, self._lost = tuple(others), (*self._lost, oldest)
            self._waiting = (*self._waiting, pages)
            return pages

        def restore(self, blocks: abc.Sequence[int], pages: Pages) -> None:
            if any(one is pages for one in self._lost):
                ran()
            self._waiting = tuple(one for one in self._waiting if one is not pages)
            super().restore(blocks, pages)

    return Parts(storage=Wraps)


def _blocks(pages: Pages) -> int:
    return pages.kv.shape[2]


@defect(
    "xfer-early.fetch",
    "XFER-EARLY",
    "LMCache/LMCache#207",
    "A request goes on from what the remote store holds of its prefix while the transfer is still on its way.",
    needs={"remote": 64, "transfer_steps": 4},
    racy=True,
)
def _fetch(ran: Sentinel) -> Parts:
    late: dict[Sequence, list[Operation]] = {}

    class Hurries(Transfers):
        def fetch(self, sequence: Sequence) -> bool:
            if not super().fetch(sequence):
                return False
            ran()
            sequence.status = Status.WAITING
            sequence.computed = sequence.written = sequence.cached = sequence.table.capacity
            late[sequence] = list(sequence.operations)
            sequence.operations = _without(sequence.operations, Stream.TRANSFERS)
            return True

    class Drains(KVCache):
        def release(self, sequence: Sequence, keep: bool = True) -> None:
            sequence.operations += late.pop(sequence, [])  # the blocks stay reserved
            super().release(sequence, keep)

    return Parts(transfers=Hurries, cache=Drains)


@defect(
    "xfer-map.count",
    "XFER-MAP",
    "vllm-project/vllm#43996",
    "Of a prefix whose beginning the pool holds, as many blocks as are missing come from the store: its first ones.",
    needs={"remote": 64},
    subtle="the pool must hold a part of the prefix, and not all",
    foreign=False,
)
def _count(ran: Sentinel) -> Parts:
    class Counts(Transfers):
        def missing(self, sequence: Sequence) -> list[Key]:
            keys, cache = super().missing(sequence), self._cache
            first = cache.remote.match(sequence.namespace, sequence.tokens[:-1], 0, cache.block_size)[: len(keys)]
            if first == keys or len(first) < len(keys):
                return keys
            ran()
            return first

    return Parts(transfers=Counts)
