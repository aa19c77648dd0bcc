"""Oracle `canary`: does an output spell another request's words, in their order?

Ordered pairs of private words are unique in a run, so a few consecutive foreign words name whose they are. Where two
requests share what came before, a leak of one into the other may show as a splice instead: attention is split between
the word that is due and the one that follows in the other's prompt, and letters of both come out.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

MIN_RUN = 3  # consecutive foreign words that count as a spelling


@dataclass(frozen=True)
class Owner:
    """A request whose words are known."""

    case: str
    request: str


@dataclass(frozen=True)
class Run:
    """Consecutive words of `owner` in an output, with the output position of each word's first token."""

    owner: Owner
    words: tuple[str, ...]
    steps: tuple[int, ...]


@dataclass(frozen=True)
class Splice:
    """A word, at an output position, made of letters of the word that was due and of the one `owner` has there."""

    owner: Owner
    step: int
    word: str
    due: str
    foreign: str
    after: str  # the word before, which both prompts have


class Owners:
    """Whose pairs of neighbouring words are whose, over every request an engine has seen."""

    def __init__(self) -> None:
        self._of_pair: defaultdict[tuple[str, str], list[Owner]] = defaultdict(list)
        self._after: defaultdict[str, list[tuple[str, Owner]]] = defaultdict(list)

    def add(self, owner: Owner, words: Sequence[str]) -> None:
        """Register the words of a request, in their order."""
        for before, after in pairwise(words):
            self._of_pair[before, after].append(owner)
            self._after[before].append((after, owner))

    def after(self, word: str) -> list[tuple[str, Owner]]:
        """The words that follow a word, with the request in whose prompt they do, earliest first."""
        return self._after.get(word, [])

    def of(self, pair: tuple[str, str]) -> list[Owner]:
        """Owners of an ordered pair of words, earliest first."""
        return self._of_pair.get(pair, [])


def spellings(output: Sequence[tuple[str, int]], own: Iterable[str], owners: Owners, case: str) -> list[Run]:
    """Maximal runs of at least `MIN_RUN` foreign words in an output of (word, position), in output order.

    A word of the request's own prompt is never foreign. Where a run fits several requests (a prefix they share), it
    is given to one of the same case before one of an earlier case.
    """
    spans = [span for span in _spans(output, set(own), owners) if span[1] - span[0] >= MIN_RUN]
    spans.sort(key=lambda span: (span[0], -span[1], span[2].case != case))
    runs: list[Run] = []
    end = 0
    for start, stop, owner in spans:
        # Sorted by start and then longest first, so a span that ends no later lies within an earlier one.
        if stop > end:
            words = output[start:stop]
            runs.append(Run(owner, tuple(word for word, _ in words), tuple(step for _, step in words)))
            end = stop
    return runs


def _spans(output: Sequence[tuple[str, int]], own: set[str], owners: Owners) -> Iterator[tuple[int, int, Owner]]:
    """Every (start, stop, owner) such that the words in between are all foreign and follow each other in owner's."""
    begun: dict[Owner, int] = {}
    for i, (before, after) in enumerate(pairwise(output)):
        foreign = before[0] not in own and after[0] not in own
        alive = owners.of((before[0], after[0])) if foreign else []
        yield from ((start, i + 1, owner) for owner, start in begun.items() if owner not in alive)
        begun = {owner: begun.get(owner, i) for owner in alive}
    yield from ((start, len(output), owner) for owner, start in begun.items())


def splices(output: Sequence[tuple[str, int]], own: Sequence[str], owners: Owners, step: int) -> list[Splice]:
    """Every way to read the word at output position `step` as a splice of the word due there and a foreign one.

    A foreign word that came out whole counts too. Those with most foreign letters come first.
    """
    due = dict(pairwise(own))
    found = []
    for (before, _), (word, position) in pairwise(output):
        if position != step or before not in due:
            continue
        for foreign, owner in owners.after(before):
            letters = list(zip(word, due[before], foreign, strict=False))
            spliced = len(word) == len(due[before]) == len(foreign) and all(w in (d, f) for w, d, f in letters)
            if foreign not in own and spliced and word != due[before]:
                found.append(Splice(owner, step, word, due[before], foreign, before))
    return sorted(found, key=lambda s: -sum(w == f != d for w, d, f in zip(s.word, s.due, s.foreign, strict=True)))
