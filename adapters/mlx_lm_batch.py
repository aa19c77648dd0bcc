"""Batch: mlx-lm's BatchGenerator, which requests come to and leave between its steps."""

import inspect
from collections.abc import Sequence
from typing import Any

from kvfence.adapters.api import EngineConfig

CHUNK = 2048  # tokens of a prompt in one forward pass, where the configuration says nothing: mlx-lm's own default
PREFILLS = 8  # prompts in one forward pass, mlx-lm's own default


class Batch:
    """A BatchGenerator. Requests go by numbers of its own, and what is rebuilt has others."""

    def __init__(self, model: Any, config: EngineConfig) -> None:
        from mlx_lm.models.cache import make_prompt_cache

        self._model, self._config = model, config
        self.layers = len(make_prompt_cache(model))
        self.reset()

    def reset(self) -> None:
        """Begin anew, as after a step that broke off."""
        import mlx.core as mx
        from mlx_lm.generate import BatchGenerator

        options = {"stream": mx.default_stream(mx.default_device())}
        if "stream" not in inspect.signature(BatchGenerator).parameters:  # before 0.31.3 it has one of its own
            options = {}
        self._generator = BatchGenerator(
            self._model,
            # No stop tokens: EOS is a token like any other.
            completion_batch_size=self._config.max_concurrency,
            prefill_batch_size=min(self._config.max_concurrency, PREFILLS),
            prefill_step_size=self._config.chunk_size or CHUNK,
            **options,
        )

    def add(self, tokens: Sequence[int], held: int, cache: list[Any] | None, max_tokens: int) -> int:
        """Take a request whose cache holds the first tokens of its prompt; its number. Raises what mlx-lm raises."""
        numbers = self._generator.insert(
            [list(tokens[held:])],
            max_tokens=[max_tokens],
            caches=[cache] if cache is not None else None,
            all_tokens=[list(tokens[:held])],
        )
        return int(numbers[0])

    def step(self) -> tuple[list[Any], list[Any]]:
        """One step: its responses about prompts, and about new tokens. Raises what mlx-lm raises."""
        prompts, emitted = self._generator.next()
        return list(prompts), list(emitted)

    def withdraw(self, number: int) -> bool:
        """Take a request out; False if it is still there afterwards."""
        self._generator.remove([number])
        return not self._generator.extract_cache([number])

    def left(self, number: int) -> tuple[list[int], list[Any]] | None:
        """What a request that is about to be withdrawn leaves to be kept: tokens, and their cache; here nothing."""
        return None

    def runs(self, number: int) -> bool:
        """Whether a request is in a batch, of prompts or of new tokens."""
        # Of one that waits, this is what it was handed over with.
        waiting = [entry[0] for entry in self._generator._unprocessed_sequences]
        return number not in waiting and bool(self._generator._find_uids([number]))

    def copy(self, number: int) -> tuple[list[Any], list[int]]:
        """A copy of a running request's cache, and the tokens that it holds."""
        cache, tokens = self._generator.extract_cache([number])[number]
        return cache, list(tokens)
