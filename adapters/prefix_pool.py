"""A pool of prefix KV for transformers: what the `hf` adapter shares between requests.

Entries are looked up by exact token comparison and never by a hash, so two prefixes cannot be mistaken for each other.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

Layers = list[tuple[torch.Tensor, torch.Tensor]]  # per layer: K and V, [kv_heads, T, head_dim]


def common(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the longest common prefix of two token sequences."""
    n = min(len(a), len(b))
    return next((i for i in range(n) if a[i] != b[i]), n)


@dataclass(frozen=True)
class Entry:
    """K and V of a token sequence from its first position on; read only."""

    tokens: tuple[int, ...]
    layers: Layers


class PrefixPool:
    """Prefix entries, least recently used first; the oldest leave when `capacity` tokens are exceeded."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._entries: list[Entry] = []

    def longest(self, prompt: Sequence[int]) -> tuple[Entry | None, int]:
        """The entry that shares most with `prompt`, and how many tokens; the prompt's last token never counts."""
        best = max(self._entries, key=lambda entry: common(entry.tokens, prompt), default=None)
        if best is None:
            return None, 0
        # The last token must be computed: its logits are what the first new token comes from.
        n = min(common(best.tokens, prompt), len(prompt) - 1)
        if n:
            self._entries.remove(best)
            self._entries.append(best)
        return best, n

    def add(self, entry: Entry) -> None:
        """Keep an entry; those it contains go, then the oldest until it fits."""
        self._entries = [e for e in self._entries if common(e.tokens, entry.tokens) < len(e.tokens)]
        self._entries.append(entry)
        while len(self._entries) > 1 and sum(len(e.tokens) for e in self._entries) > self._capacity:
            self._entries.pop(0)

    def clear(self) -> None:
        self._entries.clear()


def stack(prefixes: Sequence[tuple[Entry | None, int]], cache: Any, like: Layers) -> Any:
    """Fill `cache` with one row per prefix, left-padded with zeros to the longest; `like` gives shapes and dtype.

    Rows are copies: what a request writes later can never reach the pool.
    """
    longest = max(n for _, n in prefixes)
    for layer, kv in enumerate(like):
        rows = []
        for part in (0, 1):
            heads, _, width = kv[part].shape
            block = kv[part].new_zeros(len(prefixes), heads, longest, width)
            for row, (entry, n) in enumerate(prefixes):
                if entry is not None and n:
                    block[row, :, longest - n :] = entry.layers[layer][part][:, :n]
            rows.append(block)
        cache.update(rows[0], rows[1], layer)
    return cache
