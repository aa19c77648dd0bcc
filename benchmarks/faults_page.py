"""docs/faults.md from what `kvfence faults run` has left: one table, oracles and faults.

    python benchmarks/faults_page.py FOLDER docs/faults.md

FOLDER holds what `make faults` leaves there; what is missing is named. A `machine.md` there says what it ran on.
"""

import sys
import tomllib
from collections.abc import Collection
from pathlib import Path

from kvfence.conformance.naming import CONFIDENCE
from kvfence.reports.score import MARK, ORACLES, FaultRecord, read_lines, summary
from kvfence.reports.text import literal

HEAD = """# Planted faults, and who sees them

`make faults` makes this page by three runs of `kvfence faults run`: with all that the reference engine lets be
observed, with answers alone (`--black-box`: tokens, logprobs, hit counts), and as a usual regression test would look,
comparing tokens on random weights (`--tokens-only --model random`, in the scenarios of `quick`), exactly: that holds
where rounding is the same. Each run of a fault ends with the first case that violates.
Faults of sliding windows are run on a model that has one (`--model windowed`).

The classes are those that public reports fall into; the report named beside a fault is one of its kind. The table by
which classes are named ([naming.py](../conformance/naming.py)) was made with the first 103 faults. Those behind them
were planted afterwards by somebody who had not seen it: they are *held out*, and marked so. A family is what classes
have in common that answers alone can tell.

An `x` says that the oracle found something in the case that was the first to violate; `twin` is tried there, for the
request that is told of first. *Named* is the class that was suggested, *right* if it is the fault's.
"""
SURE = """## How sure a name is

Classes named right, by what the row that named them goes by first, in both runs above. The confidence of a name is
(right + 1) / (named + 2) of those held out.

"""
COLUMNS = (
    "fault",
    "class",
    "report",
    *ORACLES,
    "named",
    "source",
    "tokens",
    "s",
    "answers alone",
    "family",
    "tokens alone",
)
WHY = Path(__file__).with_name("faults_why.toml")  # why a fault was missed, by run and fault
RUNS = {
    "observed": "With all that can be observed",
    "answers": "Answers alone",
    "tokens": "Tokens alone, on random weights",
}


def load(folder: Path) -> dict[str, list[FaultRecord]]:
    """The records of each run; those on the windowed model stand behind the others."""
    found = {}
    for name in RUNS:
        files = (folder / f"{name}{more}" / "faults.ndjson" for more in ("", "-windowed"))
        found[name] = [record for file in files if file.exists() for record in read_lines(file)]
    return found


def row(record: FaultRecord, answers: FaultRecord | None, tokens: FaultRecord | None) -> str:
    """One line of the table."""
    seen = {oracle: oracle in record.oracles for oracle in ORACLES} | {"twin": record.twin}
    marks = [MARK[seen[oracle]] if record.detected else "" for oracle in ORACLES]
    named = {record.fault_class: "right", "": "none"}.get(record.named, record.named)
    source = {True: "right", False: "wrong", None: "-"}[record.source_right]
    alone = "" if answers is None else f"{', '.join(answers.oracles)} ({answers.seconds:.1f} s)"
    family = "" if answers is None or not answers.detected else answers.named_family or "none"
    cells = (
        f"`{record.fault}`" + (" (held out)" if record.held_out else ""),
        record.fault_class,
        record.report,
        *marks,
        named if record.detected else "not seen",
        source if record.detected else "",
        f"{record.tokens:,}",
        f"{record.seconds:.1f}",
        "not seen" if answers and not answers.detected else alone,
        "right" if answers and family == record.family else family,
        {True: "x", False: "", None: ""}[tokens.detected if tokens else None],
    )
    return "| " + " | ".join(cells) + " |"


def missed(run: str, records: Collection[FaultRecord]) -> list[str]:
    """What was not seen, and what was named otherwise, each with the reason."""
    reasons = tomllib.loads(WHY.read_text(encoding="utf-8"))
    unseen = [r for r in records if not r.detected]
    named = [r for r in records if r.detected and r.named != r.fault_class]
    if run == "answers":  # where a class cannot be asked for, its family can
        named = [r for r in named if r.named_family != r.family]
    # Answers alone know a source only where they spell its words.
    sourced = [r for r in records if r.detected and r.source_right is False] if run == "observed" else []
    parts = [
        _list("Not seen", reasons.get(run, {}), {r.fault: f"{_exercised(r)}: {literal(r.about)}" for r in unseen}),
        _list("Named otherwise", reasons.get(run, {}), {r.fault: f", {r.fault_class}: {_named(r)}" for r in named}),
        _list("Source named otherwise", reasons.get("source", {}), {r.fault: "" for r in sourced}),
    ]
    return [part for part in parts if part]


def _list(title: str, reasons: dict[str, str], faults: dict[str, str]) -> str:
    """Faults with what is told of each, and the reason where it is known."""
    lines = [
        f"- `{fault}`{told}" + (f" *{reasons[fault]}*" if fault in reasons else "") for fault, told in faults.items()
    ]
    return f"{title}:\n\n" + "\n".join(lines) + "\n" if lines else ""


def _exercised(record: FaultRecord) -> str:
    return "" if record.exercised else " (never exercised)"


def _named(record: FaultRecord) -> str:
    """What a fault was named instead, and by what."""
    half = " (held out)" if record.held_out else ""
    because = f", because {record.named_how}" if record.named_how else ""
    return f"named {record.named}{because}{half}." if record.named else f"not named{half}."


def sure(runs: dict[str, list[FaultRecord]]) -> str:
    """How often each kind of row names the class right: what the confidence of a name is made of."""
    lines = ["| goes by | made with | held out | confidence |", "| --- | --- | --- | --- |"]
    named = [r for name in ("observed", "answers") for r in runs[name] if r.fault and r.named]
    for kind in CONFIDENCE:
        halves = [[r for r in named if r.named_kind == kind and r.held_out is out] for out in (False, True)]
        right = [sum(r.named == r.fault_class for r in half) for half in halves]
        cells = [f"{n} of {len(half)}" for n, half in zip(right, halves, strict=True)]
        lines.append(f"| {kind} | {' | '.join(cells)} | {(right[1] + 1) / (len(halves[1]) + 2):.2f} |")
    return SURE + "\n".join(lines) + "\n"


def main(folder: Path, page: Path) -> None:
    """Write the page."""
    runs, machine = load(folder), folder / "machine.md"
    faults = {name: {r.fault: r for r in records if r.fault} for name, records in runs.items()}
    parts = [HEAD]
    if machine.exists():
        parts.append(machine.read_text(encoding="utf-8"))
    parts += [f"Not measured here: {title[0].lower()}{title[1:]}.\n" for name, title in RUNS.items() if not runs[name]]
    for name, title in RUNS.items():
        if runs[name]:
            # Tokens alone name nothing.
            told = [line for line in summary(runs[name]) if name != "tokens" or "named right" not in line]
            parts.append(f"## {title}\n\n" + "\n".join(f"- {line}" for line in told) + "\n")
            parts += missed(name, faults[name].values()) if name != "tokens" else []
    parts.append(sure(runs))
    cells = folder / "replaced-cell.txt"
    if cells.exists():
        told = "One slot of one KV head of one layer, replaced by a neighbour's (`python benchmarks/replaced_cell.py`):"
        parts.append(f"## The smallest leak\n\n{told}\n\n```\n{cells.read_text(encoding='utf-8')}```\n")
    controls = folder / "controls.txt"
    if controls.exists():
        told = "Engines that are right, where rounding differs most (`make controls`, or some of them by name):"
        parts.append(f"## No false alarms\n\n{told}\n\n{controls.read_text(encoding='utf-8')}")
    table = [COLUMNS, ("---",) * len(COLUMNS)]
    lines = ["| " + " | ".join(each) + " |" for each in table]
    lines += [row(r, faults["answers"].get(f), faults["tokens"].get(f)) for f, r in faults["observed"].items()]
    parts.append("## Oracles and faults\n\n" + "\n".join(lines) + "\n")
    page.write_text("\n".join(parts), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
