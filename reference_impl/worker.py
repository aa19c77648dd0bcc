"""The worker: runs planned rows and says what came of each."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from torch import Tensor

from kvfence.reference_impl.attention import Attended
from kvfence.reference_impl.auditor import Auditor
from kvfence.reference_impl.footprint import footprints
from kvfence.reference_impl.observer import Observer
from kvfence.reference_impl.pool import SCRATCH
from kvfence.reference_impl.runner import Packed, Runner
from kvfence.reference_impl.sequence import Row
from kvfence.reference_impl.storage import Storage
from kvfence.reference_impl.trace import Kind, Trace


@dataclass(frozen=True)
class Result:
    """What a row gave: the tokens its logits choose, as far as the guesses before each were right."""

    row: Row
    tokens: list[int]  # up to a token that ends the sequence
    rejected: int = 0  # guesses whose K/V are not the sequence's
    logprobs: list[float] = field(default_factory=list)  # nats, of each token
    top_logprobs: list[tuple[tuple[int, float], ...]] = field(default_factory=list)  # best first
    attention: list[Attended] = field(default_factory=list)  # of each token


class Worker:
    """Computes rows on one storage, noting owners and writes where these are kept."""

    def __init__(
        self,
        runner: Runner,
        storage: Storage,
        logprobs: int = 0,
        trace: Trace | None = None,
        auditor: Auditor | None = None,
        attention: bool = False,
    ) -> None:
        self._runner, self._storage, self._trace = runner, storage, trace
        self._best, self._auditor, self._attention = logprobs, auditor, attention

    def run(self, rows: list[Row]) -> list[Result]:
        """Forward passes, one for each adapter that rows run with."""
        return [result for together in self._runner.passes(rows) for result in self._pass(together)]

    def _pass(self, rows: list[Row]) -> list[Result]:
        packed = self._runner.pack(self._storage, rows)
        logits, observer = self._compute(packed)
        if self._trace:
            self._note_writes(packed, self._trace)
        choices = logits.argmax(-1).tolist()
        logprobs = logits.log_softmax(-1) if self._best else None
        results, first = [], 0
        for row in packed.rows:
            last = first + row.samples
            attention = observer.attended(row) if observer else []
            best = None if logprobs is None else logprobs[first:last]
            results.append(self._result(row, choices[first:last], best, attention))
            first = last
        return results

    def _compute(self, packed: Packed) -> tuple[Tensor, Observer | None]:
        """Run the model; with tags, note whose K/V it writes, have that audited and its attention observed."""
        tags = self._storage.tags
        if tags is None:
            return self._runner.compute(packed), None
        prints, padding = footprints(packed, tags)
        if self._auditor:
            self._auditor.writes(prints, padding)
        for one in prints:
            one.tag(tags)
        tags.clear(padding)
        observer = packed.batch.visit = Observer(prints, tags) if self._attention else None
        try:
            logits = self._runner.compute(packed)
        except Exception:
            for one in prints:
                tags.clear(one.writes)
            raise
        if self._auditor:
            self._auditor.reads(prints)
        return logits, observer

    def _result(self, row: Row, choices: list[int], logprobs: Tensor | None, attention: list[Attended]) -> Result:
        right = 0
        while right < len(row.draft) and row.draft[right] == choices[right]:
            right += 1
        tokens = choices[: right + 1]
        end = next((i for i, token in enumerate(tokens) if token in row.sequence.stop), len(tokens))
        tokens = tokens[: end + 1]
        attention = attention[: len(tokens)]
        rejected = len(row.draft) + 1 - len(tokens) if tokens else 0
        if logprobs is None:
            return Result(row, tokens, rejected, attention=attention)
        best = logprobs.topk(min(self._best, logprobs.shape[-1]), dim=-1)
        pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
        tops = [tuple(zip(ids, values, strict=True)) for ids, values in pairs]
        own = [float(logprobs[i, token]) for i, token in enumerate(tokens)]
        return Result(row, tokens, rejected, own, tops[: len(tokens)], attention)

    def _note_writes(self, packed: Packed, trace: Trace) -> None:
        """Note what was written, from the slots themselves; padding too, except what went to the scratch block."""
        size, slots = self._storage.block_size, packed.batch.slots.tolist()
        for group, members in zip(packed.batch.groups, packed.members, strict=True):
            rows, queries = group.shape
            for place in range(rows):
                first = group.first + place * queries
                row = members[place] if place < len(members) else None
                for start, stop in _runs(slots, first, first + queries, size):
                    block, offset = divmod(slots[start], size)
                    if row:
                        position = row.start + start - first
                        trace.add(Kind.WRITE, row.sequence.id, block, offset, stop - start, position)
                    elif block != SCRATCH:
                        trace.add(Kind.WRITE, "", block, offset, stop - start)


def _runs(slots: list[int], first: int, last: int, size: int) -> Iterator[tuple[int, int]]:
    """Ranges of indices from `first` to `last` whose slots follow each other within one block."""
    start = first
    for i in range(first + 1, last + 1):
        if i == last or slots[i] != slots[i - 1] + 1 or slots[i] % size == 0:
            yield start, i
            start = i
