"""docs/engines.md from runs of several engines: requirements by engines.

    python benchmarks/engines_page.py FOLDER docs/engines.md

FOLDER holds a report folder for each engine, as `make engines` leaves them there. A `machine.md` there says what it ran
on.
"""

import sys
from pathlib import Path

from kvfence.reports import comparison
from kvfence.reports.file import write
from kvfence.reports.outcome import Outcome
from kvfence.reports.records import Run, read
from kvfence.reports.text import count, literal

HEAD = """# Engines, and what each is required

`make engines` makes this page: the default profile on each engine, on the canary. What the requirements say is in
[requirements.md](requirements.md). A requirement that an engine cannot be asked is no pass: what it says it cannot do
is not applicable, what it does not show is not observable.
"""


def violated(run: Run) -> list[str]:
    """The cases that violate, a line each, and what is known of it."""
    wrong = [case for case in run.cases if case["outcome"] == Outcome.VIOLATES]
    known = {case["case"]: f" Known: {literal(case['known'])}." if case["known"] else "" for case in wrong}
    return [f"- `{case['case']}`: {literal(case['reason'])}.{known[case['case']]}" for case in wrong]


def undecided(run: Run) -> list[str]:
    """Why cases of a run were not decided, a line a reason, the most frequent first."""
    open_ = (Outcome.INCONCLUSIVE, Outcome.SUITE_ERROR, Outcome.NOT_OBSERVABLE, Outcome.NOT_APPLICABLE)
    reasons: dict[tuple[str, str], int] = {}
    for case in run.cases:
        if case["outcome"] in open_:
            reason = case["outcome"], case["reason"]
            reasons[reason] = reasons.get(reason, 0) + 1
    ranked = sorted(reasons.items(), key=lambda item: (open_.index(Outcome(item[0][0])), -item[1]))
    return [f"- {count(n, 'case')} {outcome}: {literal(reason)}" for (outcome, reason), n in ranked]


SECTIONS = (
    ("What is violated, looked into in [findings.md](findings.md)", violated),
    ("What was not decided, and why", undecided),
)


def main(folder: Path, page: Path) -> None:
    """Write the page."""
    runs = [read(each) for each in sorted(folder.iterdir()) if (each / "records").is_dir()]
    machine = folder / "machine.md"
    parts = [HEAD, machine.read_text(encoding="utf-8") if machine.exists() else ""]
    parts.append(comparison.table([comparison.column(run) for run in runs]))
    for title, lines in SECTIONS:
        told = [(literal(comparison.column(run).name), "\n".join(lines(run))) for run in runs]
        parts.append("\n".join([f"## {title}\n", *(f"### {name}\n\n{of}\n" for name, of in told if of)]))
    write("\n".join(part for part in parts if part), page)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
