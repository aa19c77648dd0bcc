"""Faults of rollback: what was guessed, or cut off, is not gone."""

from collections.abc import Sequence as Several

from kvfence.reference_impl.cache import KVCache
from kvfence.reference_impl.conversation import Conversation
from kvfence.reference_impl.defects.defect import Sentinel, defect
from kvfence.reference_impl.defects.layout import placed
from kvfence.reference_impl.defects.trusting import TrustingPool, TrustingTree
from kvfence.reference_impl.pool import SCRATCH
from kvfence.reference_impl.runner import Packed, Runner
from kvfence.reference_impl.sequence import Row, Sequence, Status
from kvfence.reference_impl.settings import Parts
from kvfence.reference_impl.steps import Steps
from kvfence.reference_impl.storage import Storage
from kvfence.reference_impl.worker import Result


@defect(
    "rollback.counted",
    "ROLLBACK",
    "lablup/mlxcel#994",
    "The place of the first rejected guess counts as computed: the right token's K/V are not written there.",
    needs={"draft": 3},
    foreign=False,
)
def _counted(ran: Sentinel) -> Parts:
    rejected: set[Sequence] = set()

    class Counts(Steps):
        def _take(self, result: Result) -> None:
            super()._take(result)
            if result.rejected:
                rejected.add(result.row.sequence)

    class Skips(Runner):
        def pack(self, storage: Storage, rows: Several[Row]) -> Packed:
            packed = super().pack(storage, rows)
            for row, _, _, first in placed(packed):
                if row.sequence in rejected:
                    ran()
                    rejected.remove(row.sequence)
                    packed.batch.slots[first] = SCRATCH
            return packed

    return Parts(steps=Counts, runner=Skips)


@defect(
    "rollback.published",
    "ROLLBACK",
    "ml-explore/mlx-lm#1427",
    "A block whose last slot holds a rejected guess is published as if it held the token that was chosen instead.",
    needs={"draft": 3},
    subtle="a later request on the same prefix sees it",
)
def _published(ran: Sentinel) -> Parts:
    class Counts(Steps):
        def _take(self, result: Result) -> None:
            super()._take(result)
            sequence, size = result.row.sequence, self._cache.block_size
            if result.rejected and sequence.status is Status.RUNNING and (sequence.written + 1) % size == 0:
                ran()
                sequence.written += 1
                self._cache.publish(sequence)
                sequence.written -= 1

    return Parts(steps=Counts)


@defect(
    "rollback.block",
    "ROLLBACK",
    "ml-explore/mlx-lm#1109",
    "With the blocks of rejected guesses the one goes that the last accepted token lies in.",
    needs={"draft": 3},
    subtle="it comes back unharmed unless another request takes it first",
)
def _block(ran: Sentinel) -> Parts:
    lost: dict[Sequence, int] = {}

    class Floors(KVCache):
        def trim(self, sequence: Sequence) -> None:
            super().trim(sequence)
            if sequence.status is Status.RUNNING and sequence.computed % self.block_size:
                lost[sequence] = sequence.table.blocks.pop()
                self._let_go(sequence.id, [lost[sequence]], sequence.in_flight())

        def reserve(self, sequence: Sequence, stop: int) -> None:
            super().reserve(sequence, stop)
            last = sequence.table.blocks[sequence.computed // self.block_size]
            if lost.pop(sequence, last) != last:
                ran()

        def publish(self, sequence: Sequence, tail: bool = False) -> None:
            super().publish(sequence, tail and sequence.table.capacity >= sequence.written)

    return Parts(cache=Floors)


@defect(
    "rollback.history",
    "ROLLBACK",
    "raullenchai/Rapid-MLX#1124",
    "An edit that shortens a history moves its length only: what was changed before the cut is still used.",
    foreign=False,
)
def _history(ran: Sentinel) -> Parts:
    class Cuts(Conversation):
        def edit(self, history: list[int], cache: KVCache) -> None:
            kept = self.valid
            if kept is None or not history or len(history) > kept.written:
                super().edit(history, cache)
                return
            kept.written = len(history) - 1
            if history[: kept.written] != self.history[: kept.written]:
                ran()
            self.history = list(history)

    return Parts(conversation=Cuts, pool=TrustingPool, tree=TrustingTree)
