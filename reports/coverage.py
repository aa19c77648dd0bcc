"""Coverage: which factor values came together in cases that reached a verdict, and why others did not."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from kvfence.reports.records import Run
from kvfence.reports.text import count

NAMES = {2: "pair", 3: "triple"}
DECIDED = ("conforms", "violates")

Values = tuple[tuple[str, str], ...]  # of some factors, by name


@dataclass(frozen=True)
class Gap:
    """Combinations that were not covered, for one reason, with one of them as an example."""

    reason: str
    combinations: int
    example: str


@dataclass(frozen=True)
class Coverage:
    """Of all combinations of so many factor values that are possible, how many were covered."""

    strength: int
    possible: int
    covered: int
    gaps: tuple[Gap, ...]

    @property
    def told(self) -> str:
        """In one sentence."""
        these = count(self.possible, NAMES.get(self.strength, f"{self.strength}-tuple"))
        return f"{self.covered:,} of {these} of factor values came together in cases that reached a verdict"


def coverage(run: Run) -> Coverage | None:
    """What a run has covered; None where its profile has no factors."""
    # Records written before there were factors have none.
    strength = run.header.get("strength", 0)
    if not strength:
        return None
    cells = [case for case in run.cases if case.get("factors")]
    covered = {values for case in cells if case["outcome"] in DECIDED for values in _values(case, strength)}
    possible = run.header["combinations"]
    return Coverage(strength, possible, len(covered), tuple(_gaps(cells, covered, strength, possible)))


def _gaps(cells: Iterable[dict[str, Any]], covered: set[Values], strength: int, possible: int) -> list[Gap]:
    reasons: dict[Values, str] = {}
    for case in cells:
        for values in _values(case, strength):
            if values not in covered:
                reasons.setdefault(values, f"{case['outcome']}: {case['reason']}")
    examples: dict[str, str] = {}
    for values, reason in reasons.items():
        examples.setdefault(reason, ", ".join(f"{name} {value}" for name, value in values))
    gaps = [Gap(reason, n, examples[reason]) for reason, n in Counter(reasons.values()).most_common()]
    unrun = possible - len(covered) - len(reasons)
    return [*gaps, *([Gap("not run", unrun, "")] if unrun else [])]


def _values(case: dict[str, Any], strength: int) -> Iterable[Values]:
    return combinations(sorted(case["factors"].items()), strength)
