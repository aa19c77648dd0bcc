"""A conversation: turns that reuse the K/V of their history, as long as nobody edits it."""

from dataclasses import dataclass, field

from kvfence.reference_impl.cache import KVCache
from kvfence.reference_impl.holding import Retained
from kvfence.reference_impl.sequence import Sequence


@dataclass
class Conversation:
    """History of prompts and outputs, and the validity mark: the blocks that are retained of it, None after an edit."""

    id: str
    salt: str | None  # of the tenant whose it is
    history: list[int] = field(default_factory=list)
    valid: Retained | None = None
    turn: Sequence | None = None  # the one that runs

    def begin(self, sequence: Sequence, cache: KVCache) -> None:
        """Start a turn, on the retained K/V if history and namespace are still what they were computed from."""
        self.turn = sequence
        if self.valid and cache.resume(sequence, self.valid):
            sequence.cached = self.valid.written
        self.forget(cache)

    def end(self, sequence: Sequence, cache: KVCache) -> None:
        """A turn ended by itself: its tokens are history now, its K/V retained."""
        self.turn, self.history = None, list(sequence.tokens)
        self.valid = cache.retain(sequence)

    def edit(self, history: list[int], cache: KVCache) -> None:
        """Replace the history. Whatever was truncated, inserted or reordered, nothing is believed of it any more."""
        self.forget(cache)
        self.history = list(history)

    def forget(self, cache: KVCache) -> None:
        """Let go of what is retained; the history stays."""
        if self.valid:
            cache.drop(self.valid)
            self.valid = None
