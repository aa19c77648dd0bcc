"""Digest: a run in short, for machines (JSON), for a pull request (Markdown) and for GitHub Actions (annotations)."""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from kvfence.reports.comparison import column, table
from kvfence.reports.outcome import UNDECIDED, Outcome
from kvfence.reports.records import Run
from kvfence.reports.text import count, literal, shown

SHOWN = 10  # as many annotations of a kind GitHub shows; so many cases are named in Markdown


def as_json(run: Run, exit_code: int, outdated: Sequence[str] = ()) -> str:
    """Outcomes, every case that applies and does not conform, what of the baseline does not hold: one JSON object."""
    wrong = [case for case in run.cases if case["outcome"] not in (Outcome.CONFORMS, Outcome.NOT_APPLICABLE)]
    fields = ("case", "requirement", "outcome", "reason", "known", "reproduce")
    told = {
        "run": run.header["run"],
        "engine": run.header["engine"],
        "model": run.header["model"],
        "profile": run.header["profile"],
        "exit_code": exit_code,
        "outcomes": dict(Counter(case["outcome"] for case in run.cases)),
        "baseline": list(outdated),
        "cases": [{name: case[name] for name in fields} for case in wrong],
    }
    return json.dumps(told, indent=2)


def markdown(run: Run) -> str:
    """The verdict, what violates with the command that repeats it, and requirements with their outcomes."""
    told = Counter(case["outcome"] for case in run.cases)
    outcomes = ", ".join(f"{told[outcome]} {outcome}" for outcome in Outcome if told[outcome])
    parts = [f"# kvfence: {_verdict(run)}\n", f"{count(len(run.cases), 'case')}: {outcomes}.\n"]
    wrong = _unexpected(run)
    for case in wrong[:SHOWN]:
        parts.append(f"- {literal(case['case'])} ({literal(case['requirement'])}): {literal(case['reason'])}\n")
        parts.append(f"  {literal(case['reproduce'])}\n")
    if len(wrong) > SHOWN:
        parts.append(f"and {count(len(wrong) - SHOWN, 'violation')} more in the report.\n")
    return "\n".join([*parts, table([column(run)])])


def _verdict(run: Run) -> str:
    if wrong := _unexpected(run):
        return count(len(wrong), "violation")
    if run.end is None:
        return "not ended"
    if run.end["exit_code"] == 1:
        return "the baseline does not hold any more"
    known = sum(case["outcome"] == Outcome.VIOLATES for case in run.cases)
    told = f"nothing violated but {count(known, 'known case')}" if known else "nothing violated"
    return told if run.end["exit_code"] == 0 else f"{told}, and not all decided"


def _unexpected(run: Run) -> list[dict[str, Any]]:
    return [case for case in run.cases if case["outcome"] == Outcome.VIOLATES and not case["known"]]


def annotations(run: Run) -> Iterator[str]:
    """Workflow commands of GitHub Actions: an error for each violation, a warning for what is undecided."""
    for case in _unexpected(run)[:SHOWN]:
        yield _command("error", case)
    for case in [case for case in run.cases if case["outcome"] in UNDECIDED][:SHOWN]:
        yield _command("warning", case)


def _command(kind: str, case: dict[str, Any]) -> str:
    title = _escaped(f"kvfence {case['requirement']}").replace(":", "%3A").replace(",", "%2C")
    return f"::{kind} title={title}::" + _escaped(f"{case['case']}: {case['reason']}")


def _escaped(text: str) -> str:
    """One line that cannot begin another command. See GitHub's toolkit, `escapeData`."""
    return shown(text).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
