"""Levels: how deep an engine was looked into, and how deep a user asks that it is."""

from collections.abc import Sequence

from kvfence.conformance.catalogue import requirements
from kvfence.conformance.evidence import Observation

SHOWN = {"logprobs": "no logprobs", "blocks": "no log of its cache", "kv": "no K/V", "attention": "no attention"}


def demanded(requirement: str, asked: str | None) -> list[str]:
    """The levels that a case must reach: the one that a user asks for, and what there is no requirement without."""
    own = requirements()[requirement].level if requirement in requirements() else ""
    return [*([asked] if asked else []), *([own] if own in ("blocks", "kv", "attention") else [])]


def missing(level: str, asked: Sequence[str], observations: Sequence[Observation], unjudged: str) -> str:
    """Why a case does not reach a level, in a line; or nothing. `unjudged` says why attention is not judged, if so."""
    if level == "logprobs":
        reached = all(o.completion.logprobs is not None for o in observations)
    else:
        reached = level == "tokens" or level in asked
    if level == "attention" and unjudged and any(o.attention for o in observations):
        return f"level {level} is required, and attention is not judged: {unjudged}"
    return "" if reached else f"level {level} is required, and the engine shows {SHOWN[level]}"
