"""Faults of publishing: others find what has not been written yet, or never will be."""

from collections import abc

from torch import Tensor

from kvfence.reference_impl.cache import KVCache
from kvfence.reference_impl.defects.defect import Sentinel, defect
from kvfence.reference_impl.key import Namespace
from kvfence.reference_impl.remote import RemoteStore, TransferError
from kvfence.reference_impl.runner import Packed, Runner
from kvfence.reference_impl.sequence import Finish, Sequence, Status
from kvfence.reference_impl.settings import Parts
from kvfence.reference_impl.storage import Pages
from kvfence.reference_impl.transfers import Transfers

THIRD = 3


@defect(
    "pub-early.reserve",
    "PUB-EARLY",
    "huggingface/text-generation-inference#2489",
    "Blocks are published when they are reserved, before the step that writes them has run.",
)
def _reserve(ran: Sentinel) -> Parts:
    early: set[int] = set()  # published and not written

    class Publishes(KVCache):
        def adopt(self, sequence: Sequence) -> int:
            length = super().adopt(sequence)
            if early.intersection(sequence.table.blocks):
                ran()
            return length

        def reserve(self, sequence: Sequence, stop: int) -> None:
            super().reserve(sequence, stop)
            if sequence.status is not Status.RUNNING:
                return
            written, sequence.written = sequence.written, min(stop, len(sequence.tokens))
            first = sequence.published // self.block_size
            super().publish(sequence)
            early.update(sequence.table.blocks[first : sequence.published // self.block_size])
            sequence.written = written

        def publish(self, sequence: Sequence, tail: bool = False) -> None:
            early.difference_update(sequence.table.blocks[: sequence.written // self.block_size])
            super().publish(sequence, tail)

    return Parts(cache=Publishes)


@defect(
    "pub-early.fetching",
    "PUB-EARLY",
    "vllm-project/vllm#56525",
    "What comes from the remote store is published when the transfer starts.",
    needs={"remote": 64},
    racy=True,
)
def _fetching(ran: Sentinel) -> Parts:
    class Announces(Transfers):
        def fetch(self, sequence: Sequence) -> bool:
            if not super().fetch(sequence):
                return False
            ran()
            written, sequence.written = sequence.written, sequence.table.capacity
            self._cache.publish(sequence)
            sequence.written = written
            return True

    return Parts(transfers=Announces)


@defect(
    "pub-early.in-flight",
    "PUB-EARLY",
    "NVIDIA/TensorRT-LLM#12786",
    "Tokens that a launched step will write are counted as written, and stored remotely before it has landed.",
    needs={"depth": 1, "remote": 64},
    racy=True,
)
def _in_flight(ran: Sentinel) -> Parts:
    class Counts(KVCache):
        def publish(self, sequence: Sequence, tail: bool = False) -> None:
            written, size = sequence.written, self.block_size
            sequence.written = max(written, min(sequence.computed, len(sequence.tokens)))
            if sequence.written // size > max(written, sequence.published) // size:
                ran()
            super().publish(sequence, tail)
            sequence.written = written

    return Parts(cache=Counts)


class _Failing(RemoteStore):
    """Every third read fails, which is harmless where it is handled."""

    reads = 0

    def read(self, slot: int) -> Pages:
        self.reads += 1
        if self.reads % THIRD == 0:
            raise TransferError(f"slot {slot} of the remote store timed out")
        return super().read(slot)


@defect(
    "pub-fail.fetch",
    "PUB-FAIL",
    "vllm-project/vllm#49250",
    "A transfer that failed counts as one that has come. (Every third read of the store fails.)",
    needs={"remote": 64},
)
def _fetch(ran: Sentinel) -> Parts:
    class Believes(Transfers):
        def _failed(self, sequence: Sequence) -> None:
            ran()

    return Parts(remote=_Failing, transfers=Believes)


@defect(
    "pub-fail.buffer",
    "PUB-FAIL",
    "LMCache/LMCache#4991",
    "A read that failed gives what the one before it left in the buffer. (Every third read of the store fails.)",
    needs={"remote": 64},
    foreign=False,
)
def _buffer(ran: Sentinel) -> Parts:
    class Swallows(_Failing):
        last: Pages

        def read(self, slot: int) -> Pages:
            try:
                self.last = super().read(slot)
            except TransferError:
                ran()
            return self.last

    return Parts(remote=Swallows)


@defect(
    "pub-fail.put",
    "PUB-FAIL",
    "LMCache/LMCache#3388",
    "A block that could not be stored is found all the same, as what lay in its slot. (Every third put fails.)",
    needs={"remote": 8},
)
def _put(ran: Sentinel) -> Parts:
    class Loses(RemoteStore):
        puts = 0
        lost: frozenset[int] = frozenset()  # slots

        def read(self, slot: int) -> Pages:
            if slot in self.lost:
                ran()
            return super().read(slot)

        def put(self, namespace: Namespace, tokens: abc.Sequence[int], pages: Pages) -> None:
            key, before = (namespace, tuple(tokens)), list(self._pages)
            known = key in self._slots
            super().put(namespace, tokens, pages)
            if known or key not in self._slots:
                return
            self.puts += 1
            slot = self._slots[key]
            self.lost -= {slot}
            if self.puts % THIRD == 0 and before[slot] is not None:
                self._pages[slot] = before[slot]
                self.lost |= {slot}

    return Parts(remote=Loses)


@defect(
    "pub-fail.pass",
    "PUB-FAIL",
    "vllm-project/vllm#49250",
    "What a failed pass should have written is published. (The third pass with a later chunk fails.)",
    needs={"token_budget": 32},
)
def _pass(ran: Sentinel) -> Parts:
    class Fails(Runner):
        chunks = 0

        def compute(self, packed: Packed) -> Tensor:
            self.chunks += any(row.start and not row.sequence.output for row in packed.rows)
            if self.chunks == THIRD:
                self.chunks += 1  # once only
                raise RuntimeError("out of memory")
            return super().compute(packed)

    class Publishes(KVCache):
        def release(self, sequence: Sequence, keep: bool = True) -> None:
            if sequence.finish is Finish.FAILED and sequence.computed > sequence.written:
                ran()
                sequence.written, keep = sequence.computed, True
            super().release(sequence, keep)

    return Parts(runner=Fails, cache=Publishes)
