"""A session of mlx-lm: requests come and go between the steps of its BatchGenerator."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import nan
from typing import Any

import numpy as np

from kvfence.adapters.api import Completion, EngineFaultError, RefusedError, Request
from kvfence.adapters.collected import CollectedSession
from kvfence.adapters.conversations import Conversations
from kvfence.adapters.hf_model import TOP, first_line
from kvfence.adapters.mlx_lm_batch import Batch
from kvfence.adapters.mlx_lm_prompts import KeptPrompts
from kvfence.adapters.observation import KV


@dataclass
class Live:
    """A request that has not ended, and its answer up to now."""

    request: Request
    prompt: tuple[int, ...]  # the whole of it, with the history of a conversation
    domain: Hashable | None  # whom it shares with; None = nobody
    cached: int
    number: int = -1  # mlx-lm's name of it
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    best: list[tuple[tuple[int, float], ...]] = field(default_factory=list)
    forced: int | None = None

    @property
    def sequence(self) -> tuple[int, ...]:
        return (*self.prompt, *self.tokens)

    @property
    def left(self) -> int:
        """Tokens that are still to be emitted."""
        return self.request.max_tokens - len(self.tokens)

    def add(self, token: int, logprobs: Any) -> None:
        """Take a token and the logprobs [vocabulary] that it was the best of."""
        import mlx.core as mx

        row = np.array(logprobs.astype(mx.float32))
        # mlx-lm takes the first of equals, and so does a stable sort.
        order = np.argsort(-row, kind="stable")[:TOP].tolist()
        self.tokens.append(token)
        self.logprobs.append(float(row[token]))
        self.best.append(tuple((t, float(row[t])) for t in order))

    def fork(self, id: str, token: int) -> "Live":
        """A child: the same answer, but `token` in place of the last one."""
        return replace(
            self,
            request=replace(self.request, id=id, conversation=None),
            tokens=[*self.tokens[:-1], token],
            # Of a token that is not among the best nothing is known.
            logprobs=[*self.logprobs[:-1], dict(self.best[-1]).get(token, nan)],
            best=list(self.best),
            forced=len(self.tokens) - 1,
        )

    def completion(self) -> Completion:
        """The whole answer."""
        answer = tuple(self.tokens), tuple(self.logprobs), tuple(self.best)
        return Completion(self.request.id, *answer, self.cached, self.forced)


class MLXSession(CollectedSession):
    """mlx-lm, driven step by step.

    A prompt takes part in steps with no tokens: in one for each of its chunks, and in one that begins its answer.
    """

    def __init__(
        self,
        batch: Batch,
        kept: KeptPrompts,
        conversations: Conversations,
        sharing: bool,
        observed: dict[str, KV] | None,
    ) -> None:
        """K/V of requests that end are put into `observed`."""
        super().__init__()
        self._batch, self._kept, self._conversations = batch, kept, conversations
        self._sharing, self._observed = sharing, observed
        self._live: dict[str, Live] = {}
        self._forks = 0
        self._broken = False

    def submit(self, request: Request) -> None:
        """Hand a request over. Raises RefusedError if its id is in use, or for what mlx-lm does not take."""
        if request.id in self._live:
            raise RefusedError(f"request {request.id} is running already")
        prompt = self._conversations.begin(request)
        domain = self._domain(request)
        try:
            if not prompt:  # some versions of mlx-lm take one, and break off in the next step
                raise ValueError("its prompt is empty")
            cache, held = self._kept.find(domain, prompt) if domain is not None else (None, 0)
            self._enter(Live(request, prompt, domain, held), cache, held)
        except Exception as error:  # of no class of its own
            self._conversations.end(request, None)
            raise RefusedError(f"request {request.id} was not accepted: {first_line(error)}") from error

    def step(self) -> Mapping[str, tuple[int, ...]]:
        if not self._live:
            return {}
        try:
            prompts, emitted = self._batch.step()
        except Exception as error:
            raise self._fault(f"mlx-lm broke off: {first_line(error)}") from error
        by_number = {live.number: live for live in self._live.values()}
        if unknown := {response.uid for response in (*prompts, *emitted)} - by_number.keys():
            raise self._fault(f"results came for {len(unknown)} requests that are not running")
        if not prompts and not emitted:
            raise self._fault(f"a step brought nobody on; left are the requests {', '.join(sorted(self._live))}")
        stepped: dict[str, tuple[int, ...]] = {}
        for response in prompts:
            live = by_number[response.uid]
            stepped[live.request.id] = ()
            # As the server does: all but the last token, which goes with the answer.
            if response.end_of_segment and not response.end_of_prompt and live.domain is not None:
                cache, tokens = self._batch.copy(live.number)
                self._kept.keep(live.domain, tokens, cache)
        for response in emitted:
            live = by_number[response.uid]
            live.add(int(response.token), response.logprobs)
            stepped[live.request.id] = (live.tokens[-1],)
            if response.finish_reason is not None:
                self._finish(live, response)
        return stepped

    def cancel(self, id: str) -> None:
        """Withdraw a request. One that has ended is not touched: its completion stays."""
        live = self._live.pop(id, None)
        if live is None:
            return
        self._conversations.end(live.request, None)
        left = self._batch.left(live.number)
        if not self._batch.withdraw(live.number):
            raise self._fault(f"request {id} was cancelled and is still in the batch")
        if left is not None and live.domain is not None:
            self._kept.keep(live.domain, *left)

    def fork(self, id: str, first: Sequence[int]) -> Sequence[str]:
        """Children that begin with copies of the request's cache, its last token taken off."""
        parent = self._live.get(id)
        if parent is None or not parent.tokens:
            raise RefusedError(f"request {id} can be forked once it has emitted a token, and while it runs")
        children = []
        for token in first:
            # Several in a step are several copies.
            cache, tokens = self._batch.copy(parent.number)
            child = parent.fork(f"{id}.fork{self._forks}", token)
            self._forks += 1
            self._enter(child, *_trimmed(cache, tokens, len(child.sequence) - 1))
            children.append(child.request.id)
        return children

    def preempt(self, id: str) -> None:
        """Take a request out with its cache, and hand both over again: it comes back behind those that wait."""
        live = self._live.get(id)
        if live is None or not self._batch.runs(live.number):
            raise RefusedError(f"request {id} is not in the batch")
        cache, tokens = self._batch.copy(live.number)
        if not self._batch.withdraw(live.number):
            raise self._fault(f"request {id} was taken out and is still in the batch")
        self._enter(live, *_trimmed(cache, tokens, len(live.sequence) - 1))

    def edit(self, conversation: str, history: Sequence[int]) -> None:
        self._conversations.edit(conversation, history)

    def close(self) -> None:
        self.closed = True
        for id in [] if self._broken else list(self._live):
            self.cancel(id)
        for live in self._live.values():
            self._conversations.end(live.request, None)
        self._live.clear()
        if self._broken:
            self._batch.reset()

    def _domain(self, request: Request) -> Hashable | None:
        if self._sharing:
            return ("tenant", request.salt)
        return ("conversation", request.conversation) if request.conversation is not None else None

    def _enter(self, live: Live, cache: list[Any] | None, held: int) -> None:
        live.number = self._batch.add(live.sequence, held, cache, live.left)
        self._live[live.request.id] = live

    def _finish(self, live: Live, response: Any) -> None:
        if live.left:
            raise self._fault(f"request {live.request.id} ended {live.left} tokens early ({response.finish_reason})")
        del self._live[live.request.id]
        self._conversations.end(live.request, live.tokens)
        if self._observed is not None:
            self._observed[live.request.id] = _shown(response.prompt_cache[: self._batch.layers])
        if live.domain is not None:
            self._kept.keep(live.domain, response.all_tokens, response.prompt_cache)
        self.done.append(live.completion())

    def _fault(self, reason: str) -> EngineFaultError:
        self._broken = True
        return EngineFaultError(reason)


def _trimmed(cache: list[Any], tokens: Sequence[int], most: int) -> tuple[list[Any], int]:
    """A cache of these tokens with no more than the first `most` of them, and how many it has then."""
    from mlx_lm.models.cache import trim_prompt_cache

    if len(tokens) > most:
        trim_prompt_cache(cache, len(tokens) - most)
    return cache, min(len(tokens), most)


def _shown(cache: list[Any]) -> KV:
    """K/V of a request, from a cache with keys and values [1, kv_heads, T or more, head_dim] in each layer."""
    import mlx.core as mx

    def stacked(parts: list[Any]) -> Any:
        return np.array(mx.stack([part[0] for part in parts]).astype(mx.float32))

    held = [(layer.keys[..., : layer.offset, :], layer.values[..., : layer.offset, :]) for layer in cache]
    return KV(stacked([keys for keys, _ in held]), stacked([values for _, values in held]))
