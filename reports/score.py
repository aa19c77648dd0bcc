"""The score of the suite against planted faults: one line for each, as a table."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from kvfence.reports.text import count, literal

ORACLES = ("golden", "canary", "attention", "blocks", "kv", "side", "twin")
TAGS = "owner tags"  # what a source that is told by them is said to be found by
MARK = {True: "x", False: "", None: "?"}
COLUMNS = ("fault", "class", "report", "exercised", "seen in", *ORACLES, "named", "source", "tokens", "seconds")


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
    twin: bool | None  # whether exchanged secrets show it in that case; None = not tried
    family: str  # of its class
    named: str  # the class that was suggested; "" = none
    named_family: str
    held_out: bool  # whether the class-naming table was made without it
    cases: int
    tokens: int  # the engine emitted until then
    seconds: float
    failed: str  # what broke meanwhile, in a line
    named_how: str = ""  # what is known that the name goes by
    named_kind: str = ""  # of what kind that is
    source_how: str = ""  # how the source was found


def write_line(record: FaultRecord, file: Path) -> None:
    """Add one line of JSON, so that what was gathered outlives a kill."""
    with file.open("a", encoding="utf-8") as handle:
        handle.write(json.dumps(asdict(record), ensure_ascii=False) + "\n")


def read_lines(file: Path) -> list[FaultRecord]:
    """What `write_line` has left. Raises ValueError for a line that is none of its."""
    lines = file.read_text(encoding="utf-8").splitlines()
    try:
        return [FaultRecord(**{**(line := json.loads(text)), "oracles": tuple(line["oracles"])}) for text in lines]
    except (KeyError, TypeError) as error:
        raise ValueError(f"a line is no score of a fault ({error})") from error


def kept(file: Path) -> list[FaultRecord]:
    """What a run that was cut short has left, its last line dropped from the file where that is not whole.

    Raises ValueError for a file that holds something else.
    """
    if not file.exists():
        return []
    text = file.read_text(encoding="utf-8")
    if not text.endswith("\n"):
        file.write_text(text[: text.rfind("\n") + 1], encoding="utf-8")
    return read_lines(file)


def summary(records: Sequence[FaultRecord]) -> list[str]:
    """The figures, a line each."""
    faults = [record for record in records if record.fault]
    clean = [record for record in records if not record.fault]
    seen = [record for record in faults if record.detected]
    lines = [f"{count(len(faults), 'fault')}, {sum(r.exercised for r in faults)} exercised, {len(seen)} detected"]
    if seen:
        cost = f"{median(r.seconds for r in seen):.1f} s and {median(r.tokens for r in seen):,.0f} tokens"
        lines.append(f"to detection, median: {cost}")
    if attributed := [record for record in seen if record.source_right is not None]:
        right = sum(bool(record.source_right) for record in attributed)
        tagged = sum(record.source_how.startswith(TAGS) for record in attributed)
        by_tags = f"; {tagged} of these by owner tags, which the truth goes by, too" if tagged else ""
        lines.append(f"source named right: {right} of {len(attributed)} that have one{by_tags}")
    for made in (True, False):
        if named := [record for record in seen if record.held_out is not made]:
            classes = sum(record.named == record.fault_class for record in named)
            families = sum(record.named_family == record.family for record in named)
            half = "the table was made with" if made else "held out"
            lines.append(f"of {len(named)} {half}: class named right {classes}, family {families}")
    if clean:
        alarms = count(sum(r.detected for r in clean), "false alarm")
        cases = count(sum(r.cases for r in clean), "case")
        lines.append(f"without a fault, in {count(len(clean), 'setup')}: {alarms} in {cases}")
    return lines


def markdown(records: Sequence[FaultRecord]) -> str:
    """The figures, the table of oracles and faults, and what was missed."""
    faults = [record for record in records if record.fault]
    rows = [COLUMNS, ("---",) * len(COLUMNS), *map(_row, faults)]
    table = "\n".join("| " + " | ".join(row) + " |" for row in rows)
    text = "\n".join(f"- {line}" for line in summary(records))
    left = "".join(f"- `{r.fault}`: {literal(r.about)}{_why(r)}\n" for r in faults if not r.detected)
    return f"{text}\n\n{table}\n" + (f"\nNot seen:\n\n{left}" if left else "")


def _row(record: FaultRecord) -> tuple[str, ...]:
    seen = {oracle: oracle in record.oracles for oracle in ORACLES} | {"twin": record.twin}
    source = {True: "right", False: "wrong", None: "-"}[record.source_right]
    named = {record.fault_class: "right", "": "none"}.get(record.named, record.named)
    return (
        f"`{record.fault}`",
        record.fault_class,
        record.report,
        "yes" if record.exercised else "no",
        record.case or "not seen",
        *(MARK[seen[oracle]] if record.detected else "" for oracle in ORACLES),
        named if record.detected else "",
        source if record.detected else "",
        f"{record.tokens:,}",
        f"{record.seconds:.1f}",
    )


def _why(record: FaultRecord) -> str:
    reason = "" if record.exercised else " (never exercised)"
    return reason + (f" ({literal(record.failed)})" if record.failed else "")
