"""Matrix: what each requirement came to, by mode, dtype and concurrency."""

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

MODES = ("serial", "independent", "shared")
DTYPES = ("float32", "bfloat16", "float16")
WORST_FIRST = ("violates", "suite-error", "inconclusive", "not-observable", "not-applicable", "conforms")
MARKS = {
    "violates": "✗",
    "suite-error": "!",
    "inconclusive": "?",
    "not-observable": "○",
    "not-applicable": "—",
    "conforms": "✓",
}


@dataclass(frozen=True)
class Cell:
    """Cases of one requirement, mode, dtype and concurrency; ``outcome`` is the worst of them."""

    dtype: str
    concurrency: int
    outcome: str
    count: int  # cases of that outcome
    total: int
    told: str  # every outcome with its count


@dataclass(frozen=True)
class Row:
    """One requirement in one mode; a cell is None where no case was recorded."""

    requirement: str
    mode: str
    cells: tuple[Cell | None, ...]


@dataclass(frozen=True)
class Matrix:
    """``columns`` are pairs of dtype and concurrency, ``spans`` dtypes with the number of columns of each."""

    columns: tuple[tuple[str, int], ...]
    spans: tuple[tuple[str, int], ...]
    rows: tuple[Row, ...]


def matrix(cases: list[dict[str, Any]]) -> Matrix:
    """Group the case records."""
    groups: defaultdict[tuple[str, str], defaultdict[tuple[str, int], Counter[str]]]
    groups = defaultdict(lambda: defaultdict(Counter))
    for case in cases:
        column = (case["dtype"], case["concurrency"])
        groups[case["requirement"], case["mode"]][column][case["outcome"]] += 1
    columns = sorted({column for row in groups.values() for column in row}, key=lambda c: (dtype_order(c[0]), c[1]))
    rows = [
        Row(requirement, mode, tuple(_cell(column, found.get(column)) for column in columns))
        for (requirement, mode), found in sorted(groups.items(), key=lambda item: (item[0][0], mode_order(item[0][1])))
    ]
    spans = Counter(dtype for dtype, _ in columns)
    return Matrix(tuple(columns), tuple(spans.items()), tuple(rows))


def _cell(column: tuple[str, int], outcomes: Counter[str] | None) -> Cell | None:
    if not outcomes:
        return None
    first = worst(outcomes)
    told = ", ".join(f"{outcomes[name]} {name}" for name in sorted(outcomes, key=badness))
    return Cell(*column, first, outcomes[first], outcomes.total(), told)


def worst(outcomes: Iterable[str]) -> str:
    """The outcome that speaks for several cases."""
    return min(outcomes, key=badness)


def badness(outcome: str) -> tuple[int, str]:
    """Sort key: worst first, names nobody knows before all."""
    return (WORST_FIRST.index(outcome) if outcome in WORST_FIRST else -1, outcome)


def dtype_order(dtype: str) -> tuple[int, str]:
    """Sort key: most precise first."""
    return (DTYPES.index(dtype) if dtype in DTYPES else len(DTYPES), dtype)


def mode_order(mode: str) -> tuple[int, str]:
    """Sort key: least shared first."""
    return (MODES.index(mode) if mode in MODES else len(MODES), mode)
