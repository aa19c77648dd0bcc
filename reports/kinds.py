"""Kinds: findings that look alike, so that one fault that hits many requests is read once."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from kvfence.reports.card import Brief, Card


@dataclass(frozen=True)
class Kind:
    """Findings of one requirement whose cases look like one class of faults; "" is none that is known."""

    fault_class: str
    requirement: str
    findings: int
    cases: int
    first: str  # the id of the one that stands first


def kinds(told: Iterable[Card | Brief]) -> tuple[Kind, ...]:
    """The kinds, largest first."""
    every = list(told)
    # Of a case only one finding is explained.
    looks = {each.case["case"]: why["fault_class"] for each in every if (why := each.finding.get("explanation"))}
    found: defaultdict[tuple[str, str], list[Card | Brief]] = defaultdict(list)
    for each in every:
        found[looks.get(each.case["case"]) or "", each.case["requirement"]].append(each)
    alike = [
        Kind(*key, len(some), len({each.case["case"] for each in some}), some[0].id) for key, some in found.items()
    ]
    return tuple(sorted(alike, key=lambda kind: -kind.findings))
