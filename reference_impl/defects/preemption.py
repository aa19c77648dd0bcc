"""Faults of preemption: a request goes on with numbers from before it was taken out of the batch."""

from kvfence.reference_impl.cache import KVCache
from kvfence.reference_impl.defects.defect import Sentinel, defect
from kvfence.reference_impl.defects.trusting import TrustingPool, TrustingTree
from kvfence.reference_impl.scheduler import Preemption, Scheduler
from kvfence.reference_impl.sequence import Row, Sequence, Status
from kvfence.reference_impl.settings import Parts


@defect(
    "preempt.length",
    "PREEMPT",
    "vllm-project/vllm#49620",
    "A preempted request loses its blocks, and still counts as computed.",
)
def _length(ran: Sentinel) -> Parts:
    class Keeps(Scheduler):
        def preempt(self, sequence: Sequence, how: Preemption | None = None) -> None:
            computed = sequence.computed
            super().preempt(sequence, how)
            if computed and sequence.status is Status.WAITING:
                ran()
                sequence.computed = computed

    return Parts(scheduler=Keeps)


@defect(
    "preempt.output",
    "PREEMPT",
    "LMCache/LMCache#1361",
    "A preempted request computes its prompt anew, and of its output only the last token.",
)
def _output(ran: Sentinel) -> Parts:
    class Forgets(Scheduler):
        def _row(self, sequence: Sequence, budget: int, rows: dict[Sequence, Row]) -> Row | None:
            if sequence.preemptions and sequence.computed < sequence.prompt:
                budget = min(budget, sequence.prompt - sequence.computed)
            elif sequence.preemptions and sequence.computed < sequence.length - 1:
                ran()
                sequence.computed = sequence.length - 1
            return super()._row(sequence, budget, rows)

    return Parts(scheduler=Forgets, pool=TrustingPool, tree=TrustingTree)


@defect(
    "preempt.rounded",
    "PREEMPT",
    "vllm-project/vllm#42117",
    "What comes back from the host is counted in whole blocks: slots that were not written count as computed.",
    needs={"preemption": Preemption.SWAP},
    subtle="it must be preempted in the middle of its prompt",
)
def _rounded(ran: Sentinel) -> Parts:
    class Rounds(KVCache):
        def swap_in(self, sequence: Sequence) -> None:
            super().swap_in(sequence)
            whole = min(sequence.table.capacity, sequence.length - 1)
            if whole > sequence.written:
                ran()
                sequence.computed = sequence.written = whole

    return Parts(cache=Rounds)


@defect(
    "preempt.late",
    "PREEMPT",
    "vllm-project/vllm#48245",
    "A step's token is accepted after its request was preempted and its counters reset: it comes twice.",
    needs={"depth": 1},
    racy=True,
    foreign=False,
)
def _late(ran: Sentinel) -> Parts:
    class Resets(Scheduler):
        def short(self) -> bool:
            return False  # nothing in flight is waited for

        def preempt(self, sequence: Sequence, how: Preemption | None = None) -> None:
            super().preempt(sequence, how)
            if sequence.pending:
                ran()
                sequence.pending = 0

    class Careless(KVCache):
        def publish(self, sequence: Sequence, tail: bool = False) -> None:
            if sequence.table.capacity >= sequence.written:
                super().publish(sequence, tail)

    return Parts(scheduler=Resets, cache=Careless)
