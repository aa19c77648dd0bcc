"""The worker: runs planned rows and says what came of each."""

from dataclasses import dataclass, field

from torch import Tensor

from kvfence.reference_impl.runner import Runner, tokens_of
from kvfence.reference_impl.sequence import Row, slot_mapping
from kvfence.reference_impl.storage import Storage
from kvfence.reference_impl.tags import Lineages, OwnerTags
from kvfence.reference_impl.trace import Kind, Trace


@dataclass(frozen=True)
class Result:
    """What a row gave: the tokens its logits choose, as far as the guesses before each were right."""

    row: Row
    tokens: list[int]  # up to a token that ends the sequence
    rejected: int = 0  # guesses whose K/V are not the sequence's
    logprobs: list[float] = field(default_factory=list)  # nats, of each token
    top_logprobs: list[tuple[tuple[int, float], ...]] = field(default_factory=list)  # best first


class Worker:
    """Computes rows on one storage, noting owners and writes where these are kept."""

    def __init__(self, runner: Runner, storage: Storage, logprobs: int = 0, trace: Trace | None = None) -> None:
        self._runner, self._storage, self._trace = runner, storage, trace
        self._best = logprobs
        self._lineages = Lineages()

    def run(self, rows: list[Row]) -> list[Result]:
        """One forward pass."""
        ordered, logits = self._runner.forward(self._storage, rows)
        for row in ordered:
            if self._trace:
                self._note_writes(row, self._trace)
            if self._storage.tags:
                self._tag(row, self._storage.tags)
        choices = logits.argmax(-1).tolist()
        logprobs = logits.log_softmax(-1) if self._best else None
        results, first = [], 0
        for row in ordered:
            last = first + row.samples
            results.append(self._result(row, choices[first:last], None if logprobs is None else logprobs[first:last]))
            first = last
        return results

    def _result(self, row: Row, choices: list[int], logprobs: Tensor | None) -> Result:
        right = 0
        while right < len(row.draft) and row.draft[right] == choices[right]:
            right += 1
        tokens = choices[: right + 1]
        end = next((i for i, token in enumerate(tokens) if token in row.sequence.stop), len(tokens))
        tokens = tokens[: end + 1]
        rejected = len(row.draft) - right
        if logprobs is None:
            return Result(row, tokens, rejected)
        best = logprobs.topk(min(self._best, logprobs.shape[-1]), dim=-1)
        pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
        tops = [tuple(zip(ids, values, strict=True)) for ids, values in pairs]
        own = [float(logprobs[i, token]) for i, token in enumerate(tokens)]
        return Result(row, tokens, rejected, own, tops[: len(tokens)])

    def _note_writes(self, row: Row, trace: Trace) -> None:
        size = self._storage.block_size
        for start in (row.start, *range((row.start // size + 1) * size, row.stop, size)):
            stop = min(row.stop, (start // size + 1) * size)
            trace.add(Kind.WRITE, row.sequence.id, row.blocks[start // size], start % size, stop - start, start)

    def _tag(self, row: Row, tags: OwnerTags) -> None:
        """Note whose K/V the slots hold that a row has written."""
        sequence, own = row.sequence, row.stop - len(row.draft)
        lineage = self._lineages.extend(sequence.namespace, sequence.lineage, sequence.tokens[:own])[:own]
        if row.draft:
            lineage = self._lineages.extend(sequence.namespace, lineage, [*sequence.tokens[:own], *row.draft])
        slots = slot_mapping(row.blocks, self._storage.block_size, row.start, row.stop)
        tags.write(slots, sequence.id, row.start, tokens_of(row), sequence.namespace, lineage[row.start :])
