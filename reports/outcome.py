"""What one conformance case can come to, and what that means for an exit code."""

from collections.abc import Iterable
from enum import StrEnum


class Outcome(StrEnum):
    """Result of one case.

    A case that passes has shown that its positive control happened; a case whose control did not happen is
    INCONCLUSIVE, never a pass.
    """

    CONFORMS = "conforms"
    VIOLATES = "violates"
    INCONCLUSIVE = "inconclusive"
    NOT_OBSERVABLE = "not-observable"
    NOT_APPLICABLE = "not-applicable"
    SUITE_ERROR = "suite-error"


UNDECIDED = frozenset({Outcome.INCONCLUSIVE, Outcome.SUITE_ERROR})


def exit_code(outcomes: Iterable[Outcome], known: int = 0) -> int:
    """Exit code of a run: 1 with any violation, else 3 with any case undecided or none that conforms, else 0.

    Of so many that are `known` to violate nothing is said here: they are decided. Code 2 (bad usage, engine did not
    start) is raised before there are outcomes.
    """
    seen = set(outcomes)
    if Outcome.VIOLATES in seen:
        return 1
    return 3 if (Outcome.CONFORMS not in seen and not known) or seen & UNDECIDED else 0
