"""Groups: the table of the experiment, what became of each passphrase group in each mode."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from kvfence.reports.matrix import dtype_order, mode_order, worst
from kvfence.reports.records import Run
from kvfence.reports.text import literal, number

COLUMNS = (
    "dtype", "layout", "edge", "company", "at once", "mode", "group", "requests", "edit distance, median",
    "edit distance, maximum", "first token changed", "largest margin", "attention moved at", "largest shift",
    "ties", "violations", "outcome",
)  # fmt: skip
_TEXTS = 7  # columns that hold text, the last one beside
_CELL = ("dtype", "layout", "edge", "company", "concurrency", "mode")


@dataclass(frozen=True)
class Row:
    """All requests of one group in one cell: dtype, layout, edge, company, concurrency and mode."""

    dtype: str
    layout: str
    edge: str
    company: str
    concurrency: int
    mode: str
    group: str
    requests: int
    computed: int  # requests whose edit distance to the no-cache baseline was computed
    edits_median: float | None  # tokens, over these; None = there are none
    edits_maximum: int | None
    first_changed: int | None  # earliest 0-based output position; None = no token changed
    largest_margin: float  # logits
    observed: int  # requests whose attention was observed
    judged: bool  # whether the noise of attention was measured and bounded, without which it cannot be said to move
    attention_step: int | None  # earliest 0-based output position; None = attention did not move, or was not judged
    attention_shift: float | None  # largest total variation; None = not observed
    ties: int  # numeric ties of the cell, all groups
    violations: int  # findings whose victim is of this group
    outcome: str  # worst of the cell

    @property
    def setup(self) -> tuple[str, str, str, str, int]:
        """What is the same in every mode the row is compared with."""
        return (self.dtype, self.layout, self.edge, self.company, self.concurrency)

    @property
    def figures(self) -> tuple[str, ...]:
        """The columns after ``group`` in words, but for the outcome; "(2 of 3)" says of how many requests."""
        edits = "not computed" if self.edits_median is None else f"{self.edits_median:g}" + self._of(self.computed)
        still = "not moved" if self.judged else "not judged"
        moved = still if self.attention_step is None else str(self.attention_step)
        return (
            f"{self.requests:,}",
            edits,
            "—" if self.edits_maximum is None else str(self.edits_maximum),
            "none" if self.first_changed is None else str(self.first_changed),
            number(self.largest_margin),
            moved + self._of(self.observed) if self.observed else "not observed",
            "—" if self.attention_shift is None else number(self.attention_shift),
            f"{self.ties:,}",
            f"{self.violations:,}",
        )

    def _of(self, told: int) -> str:
        return "" if told == self.requests else f" ({told} of {self.requests})"


def rows(run: Run) -> list[Row]:
    """One row per cell and group that has requests: cells by dtype, layout, edge, company, concurrency, then mode."""
    cells: defaultdict[tuple[Any, ...], list[dict[str, Any]]] = defaultdict(list)
    for case in run.cases:
        cells[tuple(case[name] for name in _CELL)].append(case)
    found = []
    for cell, cases in cells.items():
        for group in {request["group"] for case in cases for request in case["requests"]}:
            found.append(_row(cell, group, cases, all(judged(run.noise, case) for case in cases)))
    return sorted(found, key=_order)


def markdown(run: Run) -> str:
    """The rows as one Markdown table under a line that says which run this is; texts of the run are shown literally."""
    header = run.header
    title = (
        f"Engine {literal(engine_name(run))}, model {literal(header['model'])}, profile {literal(header['profile'])}, "
        f"seed {header['seed']}, run {literal(header['run'])}: every mode is compared with the no-cache baseline."
    )
    rule = ["---"] * _TEXTS + ["---:"] * (len(COLUMNS) - _TEXTS - 1) + ["---"]
    lines = [_line(COLUMNS), _line(rule), *(_line(_texts(row)) for row in rows(run))]
    return "\n".join([title, "", *lines, ""])


def engine_name(run: Run) -> str:
    """Name and version of what was opened, else the name that was asked for."""
    opened = sorted({f"{engine['name']} {engine['version']}" for engine in run.engines})
    return ", ".join(opened) or f"{run.header['engine']} (not opened)"


def _row(cell: tuple[Any, ...], group: str, cases: Sequence[dict[str, Any]], judged: bool) -> Row:
    members = [[request for request in case["requests"] if request["group"] == group] for case in cases]
    requests = [request for each in members for request in each]
    victims = [
        finding
        for case, each in zip(cases, members, strict=True)
        for finding in case["findings"]
        if finding["victim"] in {request["request"] for request in each}
    ]
    edits, shifts = _known(requests, "edit_distance"), _known(requests, "attention_shift")
    return Row(
        **dict(zip(_CELL, cell, strict=True)),
        group=group,
        requests=len(requests),
        computed=len(edits),
        edits_median=median(edits) if edits else None,
        edits_maximum=max(edits, default=None),
        first_changed=min(_known(requests, "first_changed"), default=None),
        largest_margin=_largest(request["largest_margin"] for request in requests),
        observed=len(shifts),
        judged=judged,
        attention_step=min(_known(requests, "attention_step"), default=None),
        attention_shift=_largest(shifts) if shifts else None,
        ties=sum(case["ties"] for case in cases),
        violations=len(victims),
        outcome=worst(case["outcome"] for case in cases),
    )


def judged(noise: Sequence[dict[str, Any]], case: dict[str, Any]) -> bool:
    """Whether attention in a case was judged: by every calibration of its dtype and of its longest sequence."""
    longest = max((request["prompt_tokens"] + len(request["output"]) for request in case["requests"]), default=0)
    records = [each for each in noise if each["dtype"] == case["dtype"]]
    buckets = sorted({each["bucket"] for each in records})
    bucket = next((each for each in buckets if longest <= each), buckets[-1] if buckets else None)
    # Each worker of a run measures noise for itself.
    found = [bool(each["attention_judged"]) for each in records if each["bucket"] == bucket]
    return bool(found) and all(found)


def _known(requests: Iterable[dict[str, Any]], name: str) -> list[Any]:
    return [request[name] for request in requests if request[name] is not None]


def _largest(values: Iterable[float]) -> float:
    # NaN comes from an engine that overflowed: it is worse than any number.
    return max(values, key=lambda value: (value != value, value))


def _order(row: Row) -> tuple[Any, ...]:
    place = (row.layout, row.edge, row.company, row.concurrency)
    return (dtype_order(row.dtype), *place, mode_order(row.mode), row.group)


def _texts(row: Row) -> list[str]:
    names = (*row.setup, row.mode, row.group, *row.figures, row.outcome)
    return [literal(str(name)) for name in names]


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"
