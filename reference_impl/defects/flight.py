"""Faults of work in flight: blocks change hands under a step, or a copy and a step do not wait for each other."""

from collections.abc import Iterable

from kvfence.reference_impl.cache import KVCache
from kvfence.reference_impl.clock import Operation, Stream
from kvfence.reference_impl.defects.defect import Sentinel, defect
from kvfence.reference_impl.scheduler import Preemption
from kvfence.reference_impl.sequence import Row, Sequence
from kvfence.reference_impl.settings import Parts
from kvfence.reference_impl.steps import Steps
from kvfence.reference_impl.worker import Result

SWAPPING = {"depth": 1, "preemption": Preemption.SWAP}


def _freeing(ran: Sentinel, stream: Stream) -> type[KVCache]:
    """A cache that lets go of blocks without waiting for the work of a stream."""

    class Frees(KVCache):
        def _let_go(self, request: str, blocks: list[int], operations: Iterable[Operation]) -> None:
            waiting = [operation for operation in operations if not operation.landed]
            fences = [operation for operation in waiting if operation.stream is not stream]
            if blocks and len(fences) < len(waiting):
                ran()
            super()._let_go(request, blocks, fences)

    return Frees


@defect(
    "uaf-step.finish",
    "UAF-STEP",
    "vllm-project/vllm#45357",
    "A request's blocks are free when it ends, while a launched step will still write to them.",
    needs={"depth": 1},
    racy=True,
    subtle="the next owner writes each slot before it reads it: no output tells",
)
def _finish(ran: Sentinel) -> Parts:
    return Parts(cache=_freeing(ran, Stream.STEPS))


@defect(
    "uaf-step.row",
    "UAF-STEP",
    "sgl-project/sglang#18803",
    "A request's row is another's as soon as it has ended; what a launched step still gives for that row goes to it.",
    needs={"depth": 1},
    racy=True,
)
def _row(ran: Sentinel) -> Parts:
    class Recycles(Steps):
        rows: tuple[Sequence, ...] = ()  # who has which row

        def launch(self, rows: list[Row]) -> None:
            for row in rows:
                self._seat(row.sequence)
            super().launch(rows)

        def _seat(self, sequence: Sequence) -> None:
            if sequence not in self.rows:
                left = [i for i, one in enumerate(self.rows) if one.finish]
                at = left[0] if left else len(self.rows)
                if left:
                    heirs[self.rows[at]] = sequence
                self.rows = (*self.rows[:at], sequence, *self.rows[at + 1 :])

        def _take(self, result: Result) -> None:
            super()._take(result)
            heir = heirs.get(result.row.sequence)
            if heir and result.tokens and not heir.finish:
                ran()
                heir.tokens += result.tokens
                heir.logprobs += result.logprobs
                heir.top_logprobs += result.top_logprobs
                heir.attention += result.attention
                self._emit(heir)

    heirs: dict[Sequence, Sequence] = {}
    return Parts(steps=Recycles)


@defect(
    "uaf-dst.cancel",
    "UAF-DST",
    "vllm-project/vllm#32255",
    "Blocks that a transfer will write to are free as soon as its request is withdrawn.",
    needs={"remote": 64, "transfer_steps": 4},
    racy=True,
)
def _cancel(ran: Sentinel) -> Parts:
    return Parts(cache=_freeing(ran, Stream.TRANSFERS))


@defect(
    "uaf-src.swap-out",
    "UAF-SRC",
    "NVIDIA/TensorRT-LLM#12542",
    "Blocks are given to others before the copy that swaps them out has read them.",
    needs=SWAPPING,
    racy=True,
)
def _swap_out(ran: Sentinel) -> Parts:
    return Parts(cache=_freeing(ran, Stream.COPIES))


def _forgetting(ran: Sentinel, sequence: Sequence, known: int) -> None:
    """Have steps not wait for the copies that a sequence got since it had `known` operations."""
    late = [operation for operation in sequence.operations[known:] if not operation.landed]
    if late:
        ran()
    del sequence.operations[known:]


@defect(
    "xfer-early.copy",
    "XFER-EARLY",
    "vllm-project/vllm#45704",
    "A step does not wait for the copy-on-write of a block that it reads and writes.",
    needs={"depth": 1},
    racy=True,
)
def _copy(ran: Sentinel) -> Parts:
    class Unfenced(KVCache):
        def _copy_on_write(self, sequence: Sequence) -> None:
            known = len(sequence.operations)
            super()._copy_on_write(sequence)
            _forgetting(ran, sequence, known)

    return Parts(cache=Unfenced)


@defect(
    "xfer-early.swap-in",
    "XFER-EARLY",
    "NVIDIA/TensorRT-LLM#8813",
    "A step does not wait until what its request had swapped out is back.",
    needs=SWAPPING,
    racy=True,
)
def _swap_in(ran: Sentinel) -> Parts:
    class Unfenced(KVCache):
        def swap_in(self, sequence: Sequence) -> None:
            known = len(sequence.operations)
            super().swap_in(sequence)
            _forgetting(ran, sequence, known)

    return Parts(cache=Unfenced)


@defect(
    "xfer-early.store",
    "XFER-EARLY",
    "LMCache/LMCache#2181",
    "A block is stored remotely before the copy that brings it back from the host has landed.",
    needs={**SWAPPING, "remote": 64},
    racy=True,
    subtle="the request must be withdrawn in the step that resumed it",
)
def _stored(ran: Sentinel) -> Parts:
    class Hurries(KVCache):
        def publish(self, sequence: Sequence, tail: bool = False) -> None:
            operations = sequence.in_flight()
            sequence.operations = [one for one in operations if one.stream is not Stream.COPIES]
            if len(sequence.operations) < len(operations) and sequence.written > sequence.published:
                ran()
            super().publish(sequence, tail)
            sequence.operations = operations

    return Parts(cache=Hurries)
