"""Drafted: requests one after another, each with a draft model, as mlx-lm's server serves them where it has one."""

from collections import deque
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from kvfence.adapters.api import EngineConfig, RefusedError
from kvfence.adapters.mlx_lm_batch import CHUNK, Batch

WRONG = 8  # of so many tokens in a row the drafter takes the first two for each other


class Emitted(NamedTuple):
    """What a BatchGenerator tells of a new token."""

    uid: int
    token: int
    logprobs: Any  # [vocabulary]
    finish_reason: str | None
    all_tokens: list[int]
    prompt_cache: list[Any]


@dataclass
class Running:
    """A request and its cache: first the model's layers, then the drafter's."""

    number: int
    tokens: list[int]  # all of them, those of the answer too: what the server files the cache under
    held: int
    cache: list[Any]
    left: int
    steps: Generator[tuple[Any, Any, bool], None, None] | None = None


class Drafter:
    """The model itself, which is right too often: drafts of some tokens are to be rejected."""

    def __init__(self, model: Any) -> None:
        self._model, self.layers = model, model.layers
        if hasattr(model, "make_cache"):
            self.make_cache = model.make_cache

    def __call__(self, tokens: Any, cache: list[Any]) -> Any:
        import mlx.core as mx

        logits = self._model(tokens, cache=cache)
        tokens = mx.arange(logits.shape[-1])
        exchanged = mx.minimum(tokens ^ 1, tokens[-1])
        return logits[..., mx.where(tokens % WRONG < 2, exchanged, tokens)]


class Drafted(Batch):
    """One request at a time, with `drafts` tokens drafted in each step; the others wait for their turn."""

    def __init__(self, model: Any, config: EngineConfig, drafts: int) -> None:
        self._drafts, self._drafter, self._numbers = drafts, Drafter(model), 0
        super().__init__(model, config)

    def reset(self) -> None:
        self._waiting: deque[Running] = deque()
        self._running: Running | None = None

    def add(self, tokens: Sequence[int], held: int, cache: list[Any] | None, max_tokens: int) -> int:
        from mlx_lm.models.cache import make_prompt_cache

        self._numbers += 1
        cache = cache or [*make_prompt_cache(self._model), *make_prompt_cache(self._drafter)]
        self._waiting.append(Running(self._numbers, list(tokens), held, cache, max_tokens))
        return self._numbers

    def step(self) -> tuple[list[Any], list[Any]]:
        if self._running is None:
            self._running = self._begun(self._waiting.popleft())
        running = self._running
        assert running.steps is not None
        token, logprobs, _ = next(running.steps)
        running.tokens.append(int(token))
        running.left -= 1
        if not running.left:
            running.steps.close()  # takes back what was drafted in vain
            self._running = None
        reason = None if running.left else "length"
        return [], [Emitted(running.number, int(token), logprobs, reason, running.tokens, running.cache)]

    def withdraw(self, number: int) -> bool:
        if self._running and self._running.number == number:
            assert self._running.steps is not None
            self._running.steps.close()
            self._running = None
        self._waiting = deque(each for each in self._waiting if each.number != number)
        return True

    def left(self, number: int) -> tuple[list[int], list[Any]] | None:
        if self._running is None or self._running.number != number:
            return None
        return self._running.tokens, self._running.cache

    def runs(self, number: int) -> bool:
        return self._running is not None and self._running.number == number

    def copy(self, number: int) -> tuple[list[Any], list[int]]:
        raise RefusedError("of a request that has drafts in its cache there is no copy")

    def _begun(self, running: Running) -> Running:
        import mlx.core as mx
        from mlx_lm.generate import speculative_generate_step

        running.steps = speculative_generate_step(
            mx.array(running.tokens[running.held :]),
            self._model,
            self._drafter,
            max_tokens=running.left,
            num_draft_tokens=self._drafts,
            prompt_cache=running.cache,
            prefill_step_size=self._config.chunk_size or CHUNK,
        )
        return running
