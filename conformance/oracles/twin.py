"""Oracle `twin`: does anything of a request change when only its neighbours' secrets change?

Two arms of one schedule: *control*, and *swap*, in which the neighbours' private tokens go through a bijection of the
vocabulary that leaves the request's own tokens as they are. Every length, offset and common prefix stays, so that on a
correct engine the request's answer is bit for bit the same. A difference counts only if repeats of each arm agree.
"""

import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from kvfence.adapters.api import Completion

PAIRS = 10  # interleaved pairs of arms by which a difference is confirmed


class Verdict(StrEnum):
    """What the arms show."""

    EQUAL = "equal"
    DEPENDS = "depends"  # each arm agrees with itself, and they differ
    UNSTABLE = "unstable"  # an arm disagrees with itself: no twin can be told from noise
    UNLIKE = "unlike"  # hit counts or lengths differ: the arms did not do the same


@dataclass(frozen=True)
class TwinEvidence:
    """What swapping the neighbours' secrets did to a request."""

    verdict: Verdict
    step: int | None = None  # first output position that differs
    by: str = ""  # "token" or "logprob"
    sources: tuple[str, ...] = ()  # neighbours whose secret alone moves it


def bijection(
    private: Collection[int], fixed: Collection[int], vocabulary: Sequence[int], rng: random.Random
) -> dict[int, int]:
    """A map of the vocabulary that moves every one of `private`, and leaves the tokens of `fixed`.

    They change places in a ring with as many that nobody uses, as far as there are. ValueError if one is left alone.
    """
    moved = sorted(set(private) - set(fixed))
    known = set(moved)
    free = [token for token in vocabulary if token not in fixed and token not in known]
    ring = moved + rng.sample(free, min(len(free), len(moved)))
    if len(ring) == 1:
        raise ValueError(f"token {ring[0]} is to be exchanged and no other is free")
    rng.shuffle(ring)
    return dict(zip(ring, ring[1:] + ring[:1], strict=True))


def mapped(tokens: Sequence[int], exchange: Mapping[int, int]) -> tuple[int, ...]:
    """Tokens with those of a bijection exchanged."""
    return tuple(exchange.get(token, token) for token in tokens)


def first_difference(one: Completion, other: Completion) -> tuple[int, str] | None:
    """The first output position at which two answers are not bit for bit the same, and in what; None if they are."""
    for step, (a, b) in enumerate(zip(one.tokens, other.tokens, strict=True)):
        if a != b:
            return step, "token"
        for name in ("logprobs", "top_logprobs"):
            mine, theirs = getattr(one, name), getattr(other, name)
            # Their digits are all there, and NaN is like NaN.
            if mine is not None and theirs is not None and repr(mine[step]) != repr(theirs[step]):
                return step, "logprob"
    return None


def examine(controls: Sequence[Completion], swaps: Sequence[Completion]) -> TwinEvidence:
    """What repeats of both arms show of one request; the first of each are compared. There is a control."""
    if not swaps:  # it was not answered
        return TwinEvidence(Verdict.UNLIKE)
    control, swap = controls[0], swaps[0]
    alike = {(len(c.tokens), c.cached_tokens) for c in (*controls, *swaps)}
    if len(alike) > 1:
        return TwinEvidence(Verdict.UNLIKE)
    if any(first_difference(arm[0], repeat) for arm in (controls, swaps) for repeat in arm[1:]):
        return TwinEvidence(Verdict.UNSTABLE)
    found = first_difference(control, swap)
    return TwinEvidence(Verdict.DEPENDS, *found) if found else TwinEvidence(Verdict.EQUAL)
