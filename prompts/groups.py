"""Passphrase groups: A and B share a system prompt and differ in the question; A and C share the question.

If prefix sharing leaks, A and B pollute each other; if the cache as a whole leaks, A and C do.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from kvfence.prompts.edges import Edge, place
from kvfence.prompts.prompt import Prompt

Tokens = tuple[int, ...]

# Company a request keeps: the groups in its batch, repeated up to the concurrency. C has no partner but its like, and
# B's stranger is C.
COMPANIES = {
    "alone": "ABC",
    "partner": "AB",
    "partner-c": "C",
    "stranger": "AC",
    "stranger-b": "BC",
    "mixed": "ABC",
}
QUESTION = {"A": 0, "B": 1, "C": 0}


class Layout(ABC):
    """How prompts are written for one kind of model. A prompt is BOS, prefix, secret, question, in this order."""

    name: str
    overhead: int  # prompt tokens beside the prefix

    def compose(self, edge: Edge, company: str, n: int) -> list[Prompt]:
        """The prompts of `n` requests, fresh passphrases in each; groups as `COMPANIES[company]` says."""
        cycle = COMPANIES[company]
        groups = [cycle[i % len(cycle)] for i in range(n)]
        prefixes = self._prefixes(edge)
        every = [token for prefix in prefixes.values() for token in prefix]
        secrets: dict[str, tuple[str, ...]] = {}
        prompts = []
        for i, group in enumerate(groups):
            if group not in secrets or not edge.repeated:
                secrets[group] = self.secret(avoid=every)
            share = 0.0 if edge.repeated else i / n
            name = f"{group}{groups[:i].count(group)}"
            prompts.append(self.write(name, prefixes[group], secrets[group], QUESTION[group], share))
        return prompts

    def _prefixes(self, edge: Edge) -> dict[str, Tokens]:
        first = self.prefix("assistant", edge.prefix, beside=())
        where = place(edge)
        if where is None:
            other = self.prefix("translator", edge.prefix, beside=first)
        else:
            other = (*first[:where], self.another(first), *first[where + 1 :])
        return {"A": first, "B": first, "C": other}

    @abstractmethod
    def prefix(self, role: str, n: int | None, beside: Tokens) -> Tokens:
        """A system prompt for a role, of exactly `n` tokens or as long as it is by itself.

        Where words suffice it has none in common with `beside`.
        """

    @abstractmethod
    def another(self, prefix: Tokens) -> int:
        """A token that does not occur in `prefix`."""

    @abstractmethod
    def secret(self, avoid: Sequence[int]) -> tuple[str, ...]:
        """A passphrase nobody else in the run has, without the tokens in `avoid`."""

    @abstractmethod
    def write(self, name: str, prefix: Tokens, secret: tuple[str, ...], question: int, share: float) -> Prompt:
        """Put a prompt together; `share` in [0, 1) spreads over the requests what only some can ask for."""

    @abstractmethod
    def sample(self, length: int) -> Tokens:
        """A sequence of `length` tokens like those of prompts and answers, another one each time."""

    def stray(self, length: int) -> Tokens:
        """A sequence as an edited history may be, that a model made for answers cannot be sure to go on from."""
        return self.sample(length)

    @abstractmethod
    def words(self, tokens: Sequence[int]) -> list[tuple[str, int]]:
        """The words that an output of these tokens spells, each with the position of its first token."""

    @abstractmethod
    def texts(self, tokens: Sequence[int]) -> list[str]:
        """The text of each token."""

    @abstractmethod
    def text(self, tokens: Sequence[int]) -> str:
        """The text of a sequence of tokens."""
