"""The reference engine: continuous batching over a paged KV cache, on any transformers model.

The road of a token: `submit` queues a sequence; `step` has the scheduler plan rows, for which the cache reserves
blocks; the launch runs the model over them, which writes K/V to the storage and reads it through the block tables; when
it lands, the token that each row's logits choose is appended, and what was written is published.
"""

import itertools
from collections import abc
from collections.abc import Iterable
from functools import partial
from typing import Any

from kvfence.reference_impl.clock import Stream
from kvfence.reference_impl.conversation import Conversation
from kvfence.reference_impl.draft import NGramDraft
from kvfence.reference_impl.key import Namespace
from kvfence.reference_impl.metrics import Metrics, StepMetrics
from kvfence.reference_impl.runner import probe
from kvfence.reference_impl.scheduler import Preemption, no_draft
from kvfence.reference_impl.sequence import BlockTable, Finish, Row, Sequence, Status
from kvfence.reference_impl.settings import DEFAULT, PARTS, Parts, Settings
from kvfence.reference_impl.trace import Trace
from kvfence.reference_impl.worker import Result, Worker


class EngineError(Exception):
    """A request or an operation that makes no sense here; the message is one line for the user."""


class ReferenceEngine:
    """Sequences in, tokens out, one step at a time. Greedy. Raises UnsupportedModelError for a model it cannot run."""

    def __init__(self, model: Any, settings: Settings = DEFAULT, parts: Parts = PARTS) -> None:
        self.settings = settings
        self.runner = parts.runner(model, settings.buckets)
        shape, size = probe(self.runner), settings.block_size
        self.tags = parts.tags(settings.blocks * size, size) if settings.tags else None
        self.trace = Trace() if settings.trace else None
        self.clock = parts.clock()
        self.pool = parts.pool(settings.blocks)
        self.storage = parts.storage(shape, settings.blocks, size, model.dtype, model.device, self.tags)
        delay = 2 * settings.depth
        tree = parts.tree(size)
        self.cache = parts.cache(self.pool, tree, self.storage, self.clock, settings.sharing, delay, self.trace)
        draft = NGramDraft(settings.draft) if settings.draft else no_draft
        self.scheduler = parts.scheduler(
            self.cache, settings.max_concurrency, settings.token_budget, settings.preemption, draft
        )
        if settings.draft and settings.depth:
            raise EngineError("guessing ahead needs depth 0: a step is planned on what the last one accepted")
        self.worker = Worker(self.runner, self.storage, settings.logprobs, self.trace)
        self.metrics = Metrics()
        self.epoch = 0
        self.sequences: dict[str, Sequence] = {}  # that have not finished
        self.conversations: dict[str, Conversation] = {}
        self._emitted: dict[str, list[int]] = {}
        self._done: list[Sequence] = []
        self._names = itertools.count()

    # Requests.

    def submit(
        self,
        id: str,
        prompt: abc.Sequence[int],
        max_tokens: int,
        *,
        salt: str | None = None,
        stop: Iterable[int] = (),
        timeout: int | None = None,
        conversation: str | None = None,
    ) -> Sequence:
        """Queue a request for `max_tokens` tokens, fewer if one of `stop` comes or `timeout` steps go by.

        In a conversation `prompt` is what is new in this turn; the history goes before it.
        Raises EngineError if the id is in use, the request is empty or the pool can never hold it.
        """
        talk = self._turn(conversation, salt) if conversation else None
        tokens = [*talk.history, *prompt] if talk else list(prompt)
        if id in self.sequences:
            raise EngineError(f"request {id} is running already")
        if not tokens or max_tokens < 1:
            raise EngineError(f"request {id} needs a prompt and at least one token of output")
        if (needed := len(tokens) + max_tokens - 1) > (room := (self.pool.size - 2) * self.settings.block_size):
            raise EngineError(f"request {id} needs {needed} tokens of KV; the pool has {room}")
        sequence = Sequence(
            id,
            tokens,
            len(tokens),
            max_tokens,
            Namespace(salt, epoch=self.epoch),
            BlockTable(self.settings.block_size),
            frozenset(stop),
            self.clock.now + timeout if timeout is not None else None,
            submitted=self.clock.now,
        )
        if talk:
            talk.begin(sequence, self.cache)
        self._queue(sequence)
        return sequence

    def fork(self, id: str, forced_first: abc.Sequence[int]) -> list[Sequence]:
        """Children of a decoding request, one for each token: that token in place of the one it emitted last.

        Raises EngineError unless the request has emitted a token and is in the batch.
        """
        self.settle()
        parent = self._running(id)
        if not parent.decoding:
            raise EngineError(f"request {id} is in prefill; it can be forked once it has emitted a token")
        children = []
        for token in forced_first:
            child = Sequence(
                self._name(id),
                [*parent.tokens[:-1], token],
                parent.prompt,
                parent.max_tokens,
                parent.namespace,
                BlockTable(self.settings.block_size),
                parent.stop,
                parent.deadline,
                emitted=len(parent.output) - 1,
                logprobs=parent.logprobs[:-1],
                top_logprobs=parent.top_logprobs[:-1],
                submitted=self.clock.now,
            )
            self.cache.fork(parent, child)
            self._queue(child)
            children.append(child)
        return children

    def cancel(self, id: str) -> None:
        """Withdraw a request, wherever it is. Raises EngineError if there is none."""
        self._finish(self._known(id), Finish.CANCELLED)

    def preempt(self, id: str, how: Preemption | None = None) -> None:
        """Take a request out of the batch, as if the pool were full. Raises EngineError unless it is in the batch."""
        self.settle()
        self.scheduler.preempt(self._running(id), how)

    def edit_history(self, conversation: str, history: abc.Sequence[int]) -> None:
        """Replace the history of a conversation. Raises EngineError if there is none or a turn of it runs."""
        talk = self._turn(conversation)
        talk.edit(list(history), self.cache)

    # The cache.

    def reset_cache(self) -> None:
        """Forget every prefix and every conversation's K/V."""
        for talk in self.conversations.values():
            talk.forget(self.cache)
        self.cache.reset()

    def new_weights(self) -> None:
        """To be called after the model's weights have changed: nothing computed before is used any more."""
        self.settle()
        self.epoch += 1
        for sequence in list(self.scheduler.running):
            self.scheduler.preempt(sequence, Preemption.RECOMPUTE)
        for sequence in self.sequences.values():
            self.cache.release(sequence)
            sequence.swapped, sequence.status, sequence.lineage = None, Status.WAITING, []
            sequence.namespace = Namespace(sequence.namespace.salt, epoch=self.epoch)
        self.reset_cache()

    # Steps.

    def step(self) -> dict[str, tuple[int, ...]]:
        """Launch one forward pass and let time go on; the tokens that came out, by request."""
        for sequence in list(self.sequences.values()):
            if sequence.deadline is not None and sequence.deadline <= self.clock.now:
                self._finish(sequence, Finish.TIMED_OUT)
        if self.trace:
            self.trace.step = self.clock.now
        if self.clock.in_flight(Stream.STEPS) and self.scheduler.short():
            self.settle()
        before = self.scheduler.preempted, self.metrics.rejected
        rows = self.scheduler.plan()
        if rows:
            self._launch(rows)
        self.clock.tick()
        emitted, self._emitted = self._emitted, {}
        self.metrics.stepped(
            StepMetrics(
                step=self.clock.now - 1,
                running=len(self.scheduler.running),
                waiting=len(self.scheduler.waiting),
                computed=sum(row.stop - row.start for row in rows),
                emitted=sum(map(len, emitted.values())),
                used=self.pool.used,
                cached=self.pool.cached,
                preempted=self.scheduler.preempted - before[0],
                rejected=self.metrics.rejected - before[1],
            )
        )
        return {id: tuple(tokens) for id, tokens in emitted.items()}

    def settle(self) -> None:
        """Have everything in flight land."""
        self.clock.drain()

    def finished(self) -> list[Sequence]:
        """Sequences that ended since the last call, in whatever way."""
        done, self._done = self._done, []
        return done

    def _launch(self, rows: list[Row]) -> None:
        for row in rows:
            sequence = row.sequence
            if sequence.admitted is None:
                sequence.admitted = self.clock.now
                self.metrics.admitted(sequence.prompt, sequence.cached, self.clock.now - sequence.submitted)
        fences = [operation for row in rows for operation in row.sequence.in_flight()]
        delay = self.settings.depth + 1 if self.settings.depth else 0
        if not delay:
            self.clock.launch(Stream.STEPS, partial(self._run, rows), after=fences)
            return
        launched = self.clock.launch(Stream.STEPS, partial(self._run, rows), delay, after=fences)
        for row in rows:
            row.sequence.operations.append(launched)

    def _run(self, rows: list[Row]) -> None:
        """A launched step lands."""
        try:
            results = self.worker.run(rows)
        except Exception as error:
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            for row in rows:
                row.sequence.error = reason
                if row.sequence.status is not Status.FINISHED:
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
        sequence.written = row.stop - result.rejected
        if row.draft:
            self.metrics.accepted += len(row.draft) - result.rejected
            self.metrics.rejected += result.rejected
            sequence.computed = sequence.written
            self.cache.trim(sequence)
        self.cache.publish(sequence)
        if self.runner.window:
            self.cache.leave_window(sequence, sequence.written - self.runner.window + 1)
        if tokens:
            self._emit(sequence)
        if tokens and tokens[-1] in sequence.stop:
            self._finish(sequence, Finish.STOP)
        elif len(sequence.output) >= sequence.max_tokens:
            self._finish(sequence, Finish.LENGTH)

    def _emit(self, sequence: Sequence) -> None:
        new = sequence.output[sequence.emitted :]
        sequence.emitted += len(new)
        self._emitted.setdefault(sequence.id, []).extend(new)

    # Endings.

    def _finish(self, sequence: Sequence, why: Finish) -> None:
        """The end of a sequence, however it comes."""
        self.scheduler.remove(sequence)
        sequence.status, sequence.finish, sequence.swapped = Status.FINISHED, why, None
        del self.sequences[sequence.id]
        talk = next((talk for talk in self.conversations.values() if talk.turn is sequence), None)
        if talk and why in (Finish.LENGTH, Finish.STOP):
            talk.end(sequence, self.cache)
        else:
            if talk:
                talk.turn = None
            self.cache.release(sequence, keep=why is not Finish.FAILED)
        self._done.append(sequence)

    def _queue(self, sequence: Sequence) -> None:
        self.sequences[sequence.id] = sequence
        self.scheduler.add(sequence)

    def _turn(self, conversation: str, salt: str | None = None) -> Conversation:
        talk = self.conversations.setdefault(
            conversation, Conversation(conversation, Namespace(salt, epoch=self.epoch))
        )
        if talk.turn is not None:
            raise EngineError(f"a turn of conversation {conversation} is running")
        return talk

    def _known(self, id: str) -> Sequence:
        if id not in self.sequences:
            raise EngineError(f"there is no request {id}")
        return self.sequences[id]

    def _running(self, id: str) -> Sequence:
        sequence = self._known(id)
        if sequence not in self.scheduler.running:
            raise EngineError(f"request {id} is {sequence.status}, not in the batch")
        return sequence

    def _name(self, id: str) -> str:
        return f"{id}.{next(self._names)}"
