"""The scheduler: which sequences take part in the next forward pass, and with how many tokens.

Continuous batching (Yu et al., Orca, OSDI 2022) with chunked prefill (Agrawal et al., Sarathi-Serve, OSDI 2024): those
that decode come first, what is left of the token budget goes to prefill, in order of arrival.
"""

from collections import deque
from collections.abc import Callable
from enum import StrEnum

from kvfence.reference_impl.cache import KVCache
from kvfence.reference_impl.pool import OutOfBlocksError
from kvfence.reference_impl.radix import common_prefix
from kvfence.reference_impl.sequence import Row, Sequence, Status

Draft = Callable[[Sequence], tuple[int, ...]]  # guesses the next tokens of a decoding sequence


class Preemption(StrEnum):
    """What becomes of the K/V of a sequence that must make room."""

    RECOMPUTE = "recompute"
    SWAP = "swap"


def no_draft(sequence: Sequence) -> tuple[int, ...]:
    """Guess nothing."""
    return ()


class Scheduler:
    """Queues of sequences, and the plan of each step."""

    def __init__(
        self,
        cache: KVCache,
        max_concurrency: int,
        token_budget: int,
        preemption: Preemption = Preemption.RECOMPUTE,
        draft: Draft = no_draft,
    ) -> None:
        self.cache = cache
        self.waiting: deque[Sequence] = deque()  # in order of arrival; swapped and fetching ones among them
        self.running: list[Sequence] = []  # in order of admission
        self.preempted = 0
        self._max_concurrency, self._budget = max_concurrency, token_budget
        self._preemption, self._draft = preemption, draft

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence."""
        self.waiting.append(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Forget a sequence, wherever it is."""
        if sequence in self.running:
            self.running.remove(sequence)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)

    def short(self) -> bool:
        """Whether the pool may not have the blocks that running sequences will take in the next step, guesses apart."""
        cache = self.cache
        needed = sum(cache.missing(s, min(s.length, s.computed + self._budget)) for s in self.running)
        return needed > cache.pool.available

    def plan(self) -> list[Row]:
        """Choose the rows of the next step and reserve their blocks; the sequences count them as computed."""
        rows: dict[Sequence, Row] = {}
        budget = self._budget
        for sequence in sorted(self.running, key=lambda s: not s.decoding):
            if sequence in self.running and budget > 0 and (row := self._row(sequence, budget, rows)):
                rows[sequence] = row
                budget -= row.stop - row.start
        for sequence in list(self.waiting):
            if len(self.running) >= self._max_concurrency or budget <= 0:
                break
            if sequence.left <= 0 or sequence.status is Status.FETCHING or self._being_computed(sequence):
                continue
            if not self._admit(sequence, budget):
                break
            if row := self._row(sequence, budget, rows):
                rows[sequence] = row
                budget -= row.stop - row.start
        if self._stuck() and self._unstick():
            return self.plan()
        for row in rows.values():
            row.sequence.computed = row.stop
            row.sequence.pending += bool(row.samples)
        return list(rows.values())

    def preempt(self, sequence: Sequence, how: Preemption | None = None) -> None:
        """Take a running sequence's blocks; it waits, before all others, to go on."""
        self.running.remove(sequence)
        sequence.preemptions += 1
        self.preempted += 1
        if (how or self._preemption) is Preemption.SWAP and sequence.written:
            self.cache.swap_out(sequence)
            sequence.status = Status.SWAPPED
        else:
            self.cache.release(sequence)
            sequence.status = Status.WAITING
        self.waiting.appendleft(sequence)

    def _row(self, sequence: Sequence, budget: int, rows: dict[Sequence, Row]) -> Row | None:
        """A row for a running sequence; others make room for it if they came later, else it makes room itself."""
        if sequence.computed >= sequence.length or sequence.left <= 0:
            return None  # all is on its way
        draft = self._draft(sequence)[: max(0, min(sequence.left, budget) - 1)] if sequence.decoding else ()
        stop = min(sequence.length, sequence.computed + budget) + len(draft)
        while True:
            try:
                self.cache.reserve(sequence, stop)
                break
            except OutOfBlocksError:
                if draft:  # nobody makes room for guesses
                    draft, stop = (), sequence.length
                    continue
                if self._recall():
                    continue
                victim = self.running[-1]
                rows.pop(victim, None)
                self.preempt(victim)
                if victim is sequence:
                    return None
        whole = stop == sequence.length + len(draft)
        samples = 1 + len(draft) if whole else 0
        return Row(sequence, sequence.computed, stop, tuple(sequence.table.blocks), samples, draft)

    def _admit(self, sequence: Sequence, budget: int) -> bool:
        """Give a waiting sequence its cached K/V and a place in the batch, if there is room for it to go on."""
        cache, swapped = self.cache, sequence.swapped
        fresh = not swapped and not sequence.computed
        if fresh:
            cache.adopt(sequence)
        start = swapped.written if swapped else sequence.computed
        if not cache.has_room(sequence, min(sequence.length, start + budget)):
            if fresh:
                cache.release(sequence, keep=False)
            return False
        if swapped:
            cache.swap_in(sequence)
        elif fresh and not sequence.preemptions:
            sequence.cached = min(sequence.computed, sequence.prompt)  # a fork may find its output too
        sequence.status = Status.RUNNING
        self.waiting.remove(sequence)
        self.running.append(sequence)
        return True

    def _stuck(self) -> bool:
        """Whether somebody waits and nobody in the batch goes on."""
        waits = any(s.left > 0 and s.status is not Status.FETCHING for s in self.waiting)
        return waits and all(s.left <= 0 and not s.pending for s in self.running)

    def _unstick(self) -> bool:
        """Make room when nobody goes on: of those in the batch, which pause, or of those that wait holding blocks."""
        if not self.running:
            return self._recall()
        for sequence in reversed(list(self.running)):
            self.preempt(sequence)
        return True

    def _recall(self) -> bool:
        """Take the blocks of those that wait holding some, as forks and next turns do."""
        holders = [s for s in self.waiting if s.table.blocks and s.status is Status.WAITING]
        for sequence in holders:
            self.cache.release(sequence)
        return bool(holders)

    def _being_computed(self, sequence: Sequence) -> bool:
        """Whether a running sequence will soon publish more of this one's prefix than is published now."""
        cache = self.cache
        if not cache.sharing or sequence.computed or sequence.status is Status.SWAPPED:
            return False
        coming = max(
            (
                common_prefix(sequence.tokens[:-1], other.tokens[: other.prompt])
                for other in self.running
                if other.namespace == sequence.namespace and other.written < other.prompt
            ),
            default=0,
        )
        if coming < cache.block_size:
            return False
        known = cache.tree.match(sequence.namespace, sequence.tokens[:-1])[1]
        return coming // cache.block_size > known // cache.block_size
