"""Oracle `side`: does a request learn of another isolation domain, though every token is right?

What a request may find in the cache is bounded by what was sent before it in its own domain: the same salt, adapter,
media and weights. More cached tokens than that tell whose prompt is cached; so do first tokens
that come earlier, held against those of prefixes that nobody has sent.
"""

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from kvfence.conformance.oracles.canary import Owner

ALPHA = 1e-6
SAMPLES = 100  # of each arm


@dataclass(frozen=True)
class Domain:
    """What K/V depend on beside tokens; requests of different domains must not learn of each other."""

    salt: str | None = None
    adapter: tuple[str, str] | None = None  # name and folder
    media: tuple[tuple[int, str], ...] = ()
    weights: str = ""  # folder; "" = those the engine was opened with


@dataclass(frozen=True)
class Sent:
    """A request as it was sent, its output behind it once it has ended."""

    owner: Owner
    domain: Domain
    tokens: tuple[int, ...]


@dataclass(frozen=True)
class TimeEvidence:
    """That first tokens come earlier, or later, where only another domain has sent the prefix."""

    distance: float  # Kolmogorov and Smirnov's, of the two samples
    other: float  # median seconds to the first token, of a prefix that another domain has sent
    fresh: float  # of one that nobody has


@dataclass(frozen=True)
class SideEvidence:
    """That a request was told of more cached tokens than its own domain can have had."""

    cached: int
    possible: int  # in its own domain
    source: Owner | None  # of another domain, whose tokens explain it
    differs: str  # what the domains differ in: salt, adapter, media or weights; "" if nobody's tokens explain it


def examine(domain: Domain, prompt: Sequence[int], cached: int | None, before: Sequence[Sent]) -> SideEvidence | None:
    """Hold a request's cached tokens against what was sent `before` it (or beside it)."""
    possible = max((_shareable(sent, domain, prompt) for sent in before), default=0)
    if cached is None or cached <= possible:
        return None
    others = [sent for sent in before if sent.domain != domain and common(prompt, sent.tokens) >= cached]
    if not others:
        return SideEvidence(cached, possible, None, "")
    # The closest domain explains most: what differs is what the key has forgotten.
    best = min(others, key=lambda sent: len(_differences(sent.domain, domain)))
    return SideEvidence(cached, possible, best.owner, _differences(best.domain, domain)[0])


def times_differ(a: Sequence[float], b: Sequence[float]) -> float | None:
    """Kolmogorov and Smirnov's distance of two samples, if it is larger than chance makes it once in 1 / `ALPHA`.

    By Smirnov's bound for large samples (1948), which is on the safe side for small ones.
    """
    merged = sorted([*a, *b])
    distance = max(abs(bisect_right(sorted(a), x) / len(a) - bisect_right(sorted(b), x) / len(b)) for x in merged)
    bound = math.sqrt(-math.log(ALPHA / 2) / 2 * (len(a) + len(b)) / (len(a) * len(b)))
    return distance if distance > bound else None


def examine_times(other: Sequence[float], fresh: Sequence[float]) -> TimeEvidence | None:
    """Hold seconds to the first token of prefixes that another domain has sent against those of fresh ones."""
    distance = times_differ(other, fresh)
    return None if distance is None else TimeEvidence(distance, median(other), median(fresh))


def common(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the longest common prefix."""
    n = min(len(a), len(b))
    return next((i for i in range(n) if a[i] != b[i]), n)


def _shareable(sent: Sent, domain: Domain, prompt: Sequence[int]) -> int:
    """Tokens of a prompt whose K/V those of another request in its domain are: up to where their media differ."""
    theirs = sent.domain
    if (theirs.salt, theirs.adapter, theirs.weights) != (domain.salt, domain.adapter, domain.weights):
        return 0
    differing = set(theirs.media) ^ set(domain.media)
    return min([common(prompt, sent.tokens), *(position for position, _ in differing)])


def _differences(a: Domain, b: Domain) -> list[str]:
    return [name for name in ("salt", "adapter", "media", "weights") if getattr(a, name) != getattr(b, name)]
