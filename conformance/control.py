"""Control: whether the cache really was hit, without which a shared mode shows nothing."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from kvfence.adapters.api import Completion
from kvfence.conformance.oracles.side import common

Tokens = tuple[int, ...]


@dataclass(frozen=True)
class Control:
    """The positive control of sharing."""

    shareable: int  # prompt tokens that earlier prompts had in common with later ones
    longest: int  # the longest such prefix, tokens
    cached: int | None  # as the engine reported; None = it does not

    @classmethod
    def of(cls, prompts: Sequence[Tokens], completions: Sequence[Completion], before: Sequence[Tokens] = ()) -> Self:
        """What prompts could share with each other and those sent before, and what the engine says they did."""
        every = [*before, *prompts]
        shared = [
            max((servable(prompt, other) for other in every[: len(before) + i]), default=0)
            for i, prompt in enumerate(prompts)
        ]
        told = [completion.cached_tokens for completion in completions]
        cached = None if None in told else sum(n for n in told if n is not None)
        return cls(shareable=sum(shared), longest=max(shared), cached=cached)

    def missed(self, block_size: int | None) -> bool:
        """Whether a block could have been shared and, as far as is told, none was."""
        return self.longest >= (block_size or 1) and self.cached == 0


def servable(a: Tokens, b: Tokens) -> int:
    """Common prefix of two prompts that a cache could serve: the last token is always computed."""
    return min(common(a, b), len(a) - 1, len(b) - 1)
