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
        """Whether the pool may not have the blocks that running sequences could take in the next step."""
        cache = self.cache
        needed = sum(cache.missing(s, min(s.length + self._budget, s.prompt + s.max_tokens)) for s in self.running)
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
            if sequence.status is Status.FETCHING or self._being_computed(sequence):
                continue
            if not self._admit(sequence, budget):
                break
            if row := self._row(sequence, budget, rows):
                rows[sequence] = row
                budget -= row.stop - row.start
        if not self.running and self.waiting and self._recall():
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
        cache = self.cache
        if sequence.status is Status.SWAPPED:
            try:
                cache.swap_in(sequence)
            except OutOfBlocksError:
                return False
        elif not sequence.computed:
            cached = cache.adopt(sequence)
            stop = min(sequence.length, cached + budget)
            if cache.missing(sequence, stop) > cache.pool.available:
                cache.release(sequence, keep=False)
                return False
            if not sequence.preemptions:
                sequence.cached = cached
        elif cache.missing(sequence, sequence.computed + 1) > cache.pool.available:
            return False
        sequence.status = Status.RUNNING
        self.waiting.remove(sequence)
        self.running.append(sequence)
        return True

    def _recall(self) -> bool:
        """Take the blocks of waiting sequences that hold some, as forks do, when nobody else can go on."""
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
