"""The reference engine: continuous batching over a paged KV cache, on any transformers model.

The road of a token: `submit` queues a sequence; `step` has the scheduler plan rows, for which the cache reserves
blocks; the launch runs the model over them, which writes K/V to the storage and reads it through the block tables; when
it lands, the token that each row's logits choose is appended, and what was written is published.
"""

import itertools
from collections import abc
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from torch import Tensor

from kvfence.reference_impl.auditor import AuditError, Auditor, Breach
from kvfence.reference_impl.clock import Stream
from kvfence.reference_impl.conversation import Conversation
from kvfence.reference_impl.draft import NGramDraft
from kvfence.reference_impl.key import AdapterId, Media, Namespace
from kvfence.reference_impl.media import in_order, unfit
from kvfence.reference_impl.metrics import Metrics
from kvfence.reference_impl.scheduler import Preemption, no_draft
from kvfence.reference_impl.sequence import BlockTable, Finish, Sequence, Status
from kvfence.reference_impl.settings import DEFAULT, PARTS, Parts, Settings
from kvfence.reference_impl.trace import Trace


class EngineError(Exception):
    """A request or an operation that makes no sense here; the message is one line for the user."""


class ReferenceEngine:
    """Sequences in, tokens out, one step at a time. Greedy.

    Raises UnsupportedModelError for a model it cannot run and EngineError for settings that make no sense.
    """

    def __init__(self, model: Any, settings: Settings = DEFAULT, parts: Parts = PARTS) -> None:
        if why := settings.unfit():
            raise EngineError(why)
        self.settings = settings
        self.runner = parts.runner(model, settings.buckets, settings.kernel)
        shape, size = self.runner.shape, settings.block_size
        self.tags = parts.tags(settings.blocks * size, size) if settings.tags else None
        self.trace = Trace() if settings.trace else None
        self.clock = parts.clock()
        self.pool = parts.pool(settings.blocks)
        self.storage = parts.storage(shape, settings.blocks, size, model.dtype, model.device, self.tags)
        delay = 2 * settings.depth
        tree = parts.tree(size)
        remote = parts.remote(settings.remote)
        self.cache = parts.cache(self.pool, tree, self.storage, self.clock, settings.sharing, delay, self.trace, remote)
        self.transfers = parts.transfers(self.cache, settings.transfer_steps, self.trace)
        draft = NGramDraft(settings.draft) if settings.draft else no_draft
        self.scheduler = parts.scheduler(
            self.cache, settings.max_concurrency, settings.token_budget, settings.preemption, draft
        )
        self.sequences: dict[str, Sequence] = {}  # that have not finished
        self._auditor = Auditor(self.cache, self.sequences, self.tags, self.runner.window) if self.tags else None
        self.worker = parts.worker(
            self.runner, self.storage, settings.logprobs, self.trace, self._auditor, settings.attention
        )
        self.metrics = Metrics()
        self._steps = parts.steps(
            self.cache, self.worker, self.metrics, settings.depth, self.runner.window, self._finish
        )
        self.epoch = 0
        self.conversations: dict[str, Conversation] = {}
        self._conversation = parts.conversation
        self.ending: Callable[[Sequence], None] | None = None  # is shown each sequence while it still has its blocks
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
        adapter: str | None = None,
        media: Iterable[Media] = (),
        stop: Iterable[int] = (),
        timeout: int | None = None,
        conversation: str | None = None,
    ) -> Sequence:
        """Queue a request for `max_tokens` tokens, fewer if one of `stop` comes or `timeout` steps go by.

        In a conversation `prompt` is what is new in this turn; the history goes before it, and there can be no media.
        Raises EngineError if the id is in use, the request is empty, the pool can never hold it, the conversation is
        another tenant's, the adapter is not loaded, or a token or the media do not fit.
        """
        talk = self._turn(conversation, salt) if conversation else None
        tokens = [*talk.history, *prompt] if talk else list(prompt)
        if id in self.sequences:
            raise EngineError(f"request {id} is running already")
        if not tokens or max_tokens < 1:
            raise EngineError(f"request {id} needs a prompt and at least one token of output")
        if (needed := len(tokens) + max_tokens - 1) > (room := (self.pool.size - 2) * self.settings.block_size):
            raise EngineError(f"request {id} needs {needed} tokens of KV; the pool has {room}")
        _refuse(f"request {id}", self.runner.unknown(tokens))
        items, adapters = in_order(media), self.runner.adapters
        _refuse(id, unfit(items, len(tokens), talk is not None) or adapters.unknown(adapter))
        sequence = Sequence(
            id,
            tokens,
            len(tokens),
            max_tokens,
            Namespace(salt, adapters.id(adapter), items, self.epoch),
            BlockTable(self.settings.block_size),
            frozenset(stop),
            self.clock.now + timeout if timeout is not None else None,
            submitted=self.clock.now,
        )
        if talk:
            talk.begin(sequence, self.cache)
        self._queue(sequence)
        self.transfers.fetch(sequence)
        return sequence

    def fork(self, id: str, forced_first: abc.Sequence[int]) -> list[Sequence]:
        """Children of a request, one for each token: that token in place of the one it emitted last.

        Work in flight lands first, so that with depth 1 this may be another one than the caller knows of.
        Raises EngineError unless the request has emitted a token, and for a token that is none.
        """
        self.settle()
        parent = self._known(id)
        if parent.length == parent.prompt:
            raise EngineError(f"request {id} can be forked once it has emitted a token")
        _refuse(f"a fork of request {id}", self.runner.unknown(forced_first))
        children = []
        for token in forced_first:
            child = parent.fork(self._name(parent.origin or id), token, self.clock.now)
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
        if conversation not in self.conversations:
            raise EngineError(f"there is no conversation {conversation}")
        talk = self._turn(conversation, self.conversations[conversation].salt)
        talk.edit(list(history), self.cache)

    # The cache.

    def reset_cache(self) -> None:
        """Forget every prefix and every conversation's K/V."""
        self.settle()
        for talk in self.conversations.values():
            talk.forget(self.cache)
        self.cache.reset()

    def new_weights(self) -> None:
        """To be called when the model's weights have been changed, after `settle`: nothing old is used any more."""
        self.settle()
        self.epoch += 1
        for sequence in reversed(list(self.scheduler.running)):
            self.scheduler.preempt(sequence, Preemption.RECOMPUTE)
        for sequence in self.sequences.values():
            self.cache.release(sequence)
            sequence.swapped, sequence.status = None, Status.WAITING
            sequence.namespace = replace(sequence.namespace, epoch=self.epoch)
        self.reset_cache()

    def load_adapter(self, name: str, deltas: abc.Mapping[str, Tensor]) -> AdapterId:
        """Have requests run with `deltas` added to the model's parameters; under a known name it is a new version.

        Raises EngineError if the model has no such parameters or a request runs with that name's last version.
        """
        self.settle()
        adapters = self.runner.adapters
        _refuse(name, adapters.unfit(deltas) or adapters.used(name, self.sequences.values()))
        return adapters.load(name, deltas)

    def unload_adapter(self, name: str) -> None:
        """Forget an adapter. Raises EngineError if there is none or a request runs with it."""
        self.settle()
        adapters = self.runner.adapters
        _refuse(name, adapters.unknown(name) or adapters.used(name, self.sequences.values()))
        adapters.unload(name)

    # Steps.

    def step(self) -> dict[str, tuple[int, ...]]:
        """Launch one forward pass and let time go on; the tokens that came out, by request.

        Raises AuditError, where audits are on, if a rule is broken.
        """
        for sequence in list(self.sequences.values()):
            if sequence.deadline is not None and sequence.deadline <= self.clock.now:
                self._finish(sequence, Finish.TIMED_OUT)
        if self.trace:
            self.trace.step = self.clock.now
        if self.clock.in_flight(Stream.STEPS) and self.scheduler.short():
            self.settle()
        rows = self.scheduler.plan()
        if rows:
            self._steps.launch(rows)
        self.clock.tick()
        emitted = self._steps.emitted()
        self.metrics.stepped(self.clock.now - 1, self.scheduler, rows, sum(map(len, emitted.values())))
        if self.settings.audit and (breaches := self.audit()):
            raise AuditError(breaches)
        return emitted

    def settle(self) -> None:
        """Have everything in flight land."""
        self.clock.drain()

    def audit(self) -> list[Breach]:
        """Rules that are broken, or were in a forward pass since the last call. Raises EngineError without tags."""
        if self._auditor is None:
            raise EngineError("auditing needs owner tags: set tags")
        return self._auditor.take()

    def finished(self) -> list[Sequence]:
        """Sequences that ended since the last call, in whatever way."""
        done, self._done = self._done, []
        return done

    # Endings.

    def _finish(self, sequence: Sequence, why: Finish) -> None:
        """The end of a sequence, however it comes."""
        if self.ending:
            self.ending(sequence)
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

    def _turn(self, conversation: str, salt: str | None) -> Conversation:
        talk = self.conversations.setdefault(conversation, self._conversation(conversation, salt))
        if talk.salt != salt:
            raise EngineError(f"conversation {conversation} is another tenant's")
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
        return next(name for n in self._names if (name := f"{id}.{n}") not in self.sequences)


def _refuse(name: str, why: str | None) -> None:
    if why:
        raise EngineError(f"{name}: {why}")
