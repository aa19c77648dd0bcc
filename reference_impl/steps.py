"""Steps: planned rows are launched on the clock, and what they gave is taken when they land."""

from collections.abc import Callable
from functools import partial

from kvfence.reference_impl.cache import KVCache
from kvfence.reference_impl.clock import Stream
from kvfence.reference_impl.metrics import Metrics
from kvfence.reference_impl.sequence import Finish, Row, Sequence, Status
from kvfence.reference_impl.worker import Result, Worker


class Steps:
    """Steps of an engine whose next one is launched `depth` steps before the last one has landed.

    `finish` is called with a sequence that ends by itself or fails.
    """

    def __init__(
        self,
        cache: KVCache,
        worker: Worker,
        metrics: Metrics,
        depth: int,
        window: int | None,
        finish: Callable[[Sequence, Finish], None],
    ) -> None:
        self._cache, self._clock, self._worker, self._metrics = cache, cache.clock, worker, metrics
        self._depth, self._window, self._finish = depth, window, finish
        self._emitted: dict[str, list[int]] = {}

    def emitted(self) -> dict[str, tuple[int, ...]]:
        """Tokens that came out since the last call, by request."""
        emitted, self._emitted = self._emitted, {}
        return {id: tuple(tokens) for id, tokens in emitted.items()}

    def launch(self, rows: list[Row]) -> None:
        """Launch the forward pass of a step."""
        for row in rows:
            sequence = row.sequence
            if sequence.admitted is None:
                sequence.admitted = self._clock.now
                self._metrics.admitted(sequence.prompt, sequence.cached, self._clock.now - sequence.submitted)
        fences = [operation for row in rows for operation in row.sequence.in_flight()]
        delay = self._depth + 1 if self._depth else 0
        launched = self._clock.launch(Stream.STEPS, partial(self._run, rows), delay, after=fences)
        for row in rows:
            row.sequence.operations.append(launched)

    def _run(self, rows: list[Row]) -> None:
        """A launched step lands, but for those who have failed since: what they would go on from was not computed."""
        rows = [row for row in rows if row.sequence.finish is not Finish.FAILED]
        try:
            results = self._worker.run(rows) if rows else []
        except Exception as error:
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            for row in rows:
                if row.sequence.status is not Status.FINISHED:
                    row.sequence.error = reason
                    self._finish(row.sequence, Finish.FAILED)
            return
        for result in results:
            self._take(result)

    def _take(self, result: Result) -> None:
        """Append the tokens that a row gave; note what it has written."""
        row, sequence, tokens = result.row, result.row.sequence, result.tokens
        if row.samples:
            sequence.pending -= 1
        # Also to one that was withdrawn meanwhile: launched steps read its last token.
        sequence.tokens += tokens
        if sequence.status is Status.FINISHED:
            return
        sequence.logprobs += result.logprobs
        sequence.top_logprobs += result.top_logprobs
        sequence.attention += result.attention
        sequence.written = row.stop - result.rejected
        if row.draft:
            self._metrics.accepted += len(row.draft) - result.rejected
            self._metrics.rejected += result.rejected
            sequence.computed = sequence.written
            self._cache.trim(sequence)
        self._cache.publish(sequence)
        if self._window:
            self._cache.leave_window(sequence, sequence.written - self._window + 1)
        if tokens:
            self._emit(sequence)
        if tokens and tokens[-1] in sequence.stop:
            self._finish(sequence, Finish.STOP)
        elif len(sequence.output) >= sequence.max_tokens:
            self._finish(sequence, Finish.LENGTH)

    def _emit(self, sequence: Sequence) -> None:
        new = sequence.tokens[sequence.prompt + sequence.emitted :]
        sequence.emitted += len(new)
        self._emitted.setdefault(sequence.id, []).extend(new)
