"""Prompt caches of mlx-lm that are kept, and found again by tokens: its server's LRUPromptCache."""

from collections.abc import Hashable, Sequence
from typing import Any


class KeptPrompts:
    """What is kept of each domain. Prompts of one share what they have in common; domains share nothing.

    A domain is what the server has the name of a model for: the first part of a key.
    """

    def __init__(self, entries: int, tokens: int | None) -> None:
        """Keep at most so many caches, and of them, oldest first, no more than hold `tokens` in all."""
        self._entries, self._tokens = entries, tokens
        self.clear()

    def clear(self) -> None:
        from mlx_lm.server import LRUPromptCache

        self._kept = LRUPromptCache(self._entries)

    def find(self, domain: Hashable, prompt: Sequence[int]) -> tuple[list[Any] | None, int]:
        """A copy of what helps a prompt most, and how many of its tokens it holds; the last one is never among them."""
        from mlx_lm.models.cache import can_trim_prompt_cache, trim_prompt_cache

        cache, rest = self._kept.fetch_nearest_cache(domain, list(prompt))
        if cache is None:
            return None, 0
        if rest:
            return cache, len(prompt) - len(rest)
        # All of the prompt is there, but its logits are not: its last token must be computed once more.
        if not can_trim_prompt_cache(cache):
            return None, 0
        trim_prompt_cache(cache, 1)
        return cache, len(prompt) - 1

    def keep(self, domain: Hashable, tokens: Sequence[int], cache: list[Any]) -> None:
        """Keep the cache of these tokens. It is not to be used otherwise afterwards."""
        self._kept.insert_cache(domain, list(tokens), cache)
        if self._tokens is not None:
            each = sum(layer.nbytes for layer in cache) // len(tokens)
            self._kept.trim_to(n_bytes=self._tokens * each)
