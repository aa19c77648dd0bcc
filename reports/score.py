"""The score of the suite against planted faults: one line for each, as a table."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from kvfence.reports.text import literal

COLUMNS = ("fault", "class", "report", "exercised", "seen by", "in", "source", "cases", "tokens", "seconds")


@dataclass(frozen=True)
class FaultRecord:
    """What became of one planted fault; without a name, of an engine without any, set up as `about` says."""

    fault: str
    fault_class: str
    report: str  # a public report of its kind
    about: str
    subtle: str
    exercised: bool
    detected: bool
    oracles: tuple[str, ...]  # that saw it, in the first case that violated
    case: str
    requirement: str
    summary: str
    source_right: bool | None  # None = nobody's K/V were met, or nothing was seen
    cases: int
    tokens: int  # the engine emitted until then
    seconds: float
    failed: str  # what broke meanwhile, in a line


def write_line(record: FaultRecord, file: Path) -> None:
    """Add one line of JSON, so that what was gathered outlives a kill."""
    with file.open("a", encoding="utf-8") as handle:
        handle.write(json.dumps(asdict(record), ensure_ascii=False) + "\n")


def summary(records: Sequence[FaultRecord]) -> list[str]:
    """The figures, a line each."""
    faults = [record for record in records if record.fault]
    clean = [record for record in records if not record.fault]
    seen = [record for record in faults if record.detected]
    attributed = [record for record in seen if record.source_right is not None]
    lines = [f"{len(faults)} faults, {sum(r.exercised for r in faults)} exercised, {len(seen)} detected"]
    if seen:
        cost = f"{median(r.seconds for r in seen):.1f} s and {median(r.tokens for r in seen):,.0f} tokens"
        lines.append(f"to detection, median: {cost}")
    if attributed:
        right = sum(bool(record.source_right) for record in attributed)
        lines.append(f"source named right: {right} of {len(attributed)} that have one")
    if clean:
        alarms = f"{sum(r.detected for r in clean)} false alarms in {sum(r.cases for r in clean)} cases"
        lines.append(f"without a fault, in {len(clean)} setups: {alarms}")
    return lines


def markdown(records: Sequence[FaultRecord]) -> str:
    """The table, and what was missed."""
    rows = [COLUMNS, ("---",) * len(COLUMNS), *map(_row, (r for r in records if r.fault))]
    table = "\n".join("| " + " | ".join(row) + " |" for row in rows)
    missed = [record for record in records if record.fault and not record.detected]
    text = "\n".join(f"- {line}" for line in summary(records))
    left = "".join(f"- `{r.fault}`: {literal(r.about)}{_why(r)}\n" for r in missed)
    return f"{text}\n\n{table}\n" + (f"\nNot seen:\n\n{left}" if left else "")


def _row(record: FaultRecord) -> tuple[str, ...]:
    source = {True: "right", False: "wrong", None: "-"}[record.source_right]
    return (
        f"`{record.fault}`",
        record.fault_class,
        record.report,
        "yes" if record.exercised else "no",
        ", ".join(record.oracles) or ("not seen" if not record.detected else ""),
        record.case,
        source if record.detected else "",
        f"{record.cases}",
        f"{record.tokens:,}",
        f"{record.seconds:.1f}",
    )


def _why(record: FaultRecord) -> str:
    reason = "" if record.exercised else " (never exercised)"
    return reason + (f" ({literal(record.failed)})" if record.failed else "")
