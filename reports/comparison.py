"""Comparison: runs side by side, requirement by requirement, and what changed from one run to another."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kvfence.reports.matrix import MARKS
from kvfence.reports.outcome import Outcome
from kvfence.reports.records import Run
from kvfence.reports.text import count, duration, literal

# Of the cases of one requirement those speak that say most of the engine: what does not apply says nothing.
SPEAKS = (
    Outcome.VIOLATES,
    Outcome.SUITE_ERROR,
    Outcome.INCONCLUSIVE,
    Outcome.CONFORMS,
    Outcome.NOT_OBSERVABLE,
    Outcome.NOT_APPLICABLE,
)
DECIDED = (Outcome.CONFORMS, Outcome.VIOLATES)


@dataclass(frozen=True)
class Cell:
    """How one requirement came out in one run; of its cases those speak that say most of the engine."""

    outcome: Outcome
    cases: str  # of that outcome, and of how many where not all are
    told: str  # every outcome with its count


@dataclass(frozen=True)
class Column:
    """One run: how its requirements came out."""

    name: str  # engine, version, model and profile
    outcomes: dict[str, Counter[Outcome]]  # of cases, by requirement
    seconds: float | None  # None = it did not come to its end

    @property
    def observed(self) -> int:
        """Requirements of which a case was decided."""
        return sum(any(found[outcome] for outcome in DECIDED) for found in self.outcomes.values())

    def cell(self, requirement: str) -> Cell | None:
        """How a requirement came out; None where it has no case."""
        if not (found := self.outcomes.get(requirement)):
            return None
        first = next(outcome for outcome in SPEAKS if found[outcome])
        cases = f"{found[first]}" if found[first] == found.total() else f"{found[first]} of {found.total()}"
        return Cell(first, cases, ", ".join(f"{found[each]} {each}" for each in SPEAKS if found[each]))

    @property
    def wall(self) -> str:
        """Its wall time in words."""
        return "not ended" if self.seconds is None else duration(self.seconds)


@dataclass(frozen=True)
class Change:
    """A case that came out otherwise."""

    case: str
    requirement: str
    before: Outcome | None  # None = there was no such case
    after: Outcome
    reason: str  # one line, of `after`


@dataclass(frozen=True)
class Changes:
    """What changed from one run to another."""

    broken: tuple[Change, ...]  # violates, and did not
    fixed: tuple[Change, ...]  # conforms, and violated
    lost: tuple[Change, ...]  # is not decided any more, or not observed
    gone: tuple[str, ...]  # cases of the old run that the new one does not have

    @property
    def exit_code(self) -> int:
        """1 where something is newly broken, 3 where something is not known any more, else 0."""
        return 1 if self.broken else 3 if self.lost or self.gone else 0


def column(run: Run) -> Column:
    """A run as one column."""
    outcomes: defaultdict[str, Counter[Outcome]] = defaultdict(Counter)
    for case in run.cases:
        outcomes[case["requirement"]][Outcome(case["outcome"])] += 1
    opened = run.engines[0] if run.engines else {"name": run.header["engine"], "version": "not opened"}
    arguments = [f"{key}={value}" for key, value in sorted(run.header["engine_args"].items())]
    name = " ".join([opened["name"], opened["version"], *arguments])
    name += f", {run.header['model']}, {run.header['profile']}"
    return Column(name, dict(outcomes), run.end["seconds"] if run.end else None)


def changes(old: Run, new: Run) -> Changes:
    """What became of the cases of a run in another one."""
    before = {case["case"]: Outcome(case["outcome"]) for case in old.cases}
    found = [_change(case, before.get(case["case"])) for case in new.cases]
    kept = {change.case for change in found}
    return Changes(
        broken=tuple(c for c in found if c.after is Outcome.VIOLATES and c.before is not Outcome.VIOLATES),
        fixed=tuple(c for c in found if c.after is Outcome.CONFORMS and c.before is Outcome.VIOLATES),
        lost=tuple(c for c in found if c.before in DECIDED and c.after not in DECIDED),
        gone=tuple(name for name in before if name not in kept),
    )


def _change(case: dict[str, Any], before: Outcome | None) -> Change:
    return Change(case["case"], case["requirement"], before, Outcome(case["outcome"]), case["reason"])


def requirements_of(columns: Sequence[Column]) -> list[str]:
    """Those that any of the runs has a case of, in their order."""
    return sorted({name for each in columns for name in each.outcomes})


def table(columns: Sequence[Column]) -> str:
    """Requirements by runs, as a table of Markdown with its legend."""
    requirements = requirements_of(columns)
    lines = [["requirement", *(literal(each.name) for each in columns)], ["---"] * (1 + len(columns))]
    for name in requirements:
        cells = [each.cell(name) for each in columns]
        lines.append([literal(name), *(f"{MARKS[cell.outcome]} {cell.cases}" if cell else "" for cell in cells)])
    share = [f"{each.observed} of {len(requirements)}" for each in columns]
    lines.append(["requirements decided", *share])
    lines.append(["wall time", *(each.wall for each in columns)])
    legend = ", ".join(f"{MARKS[outcome]} {outcome}" for outcome in SPEAKS)
    text = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    return f"{text}\n\n{legend}; how many of how many cases, where not all came out alike.\n"


def told(found: Changes) -> str:
    """What changed, as a list of Markdown; one line where nothing did."""
    parts = [
        _listed("Newly broken", found.broken),
        _listed("Newly fixed", found.fixed),
        _listed("Not known any more", found.lost),
    ]
    if found.gone:
        parts.append(f"{count(len(found.gone), 'case')} less: {', '.join(map(literal, found.gone))}\n")
    return "\n".join(part for part in parts if part) or "No case came out otherwise.\n"


def _listed(title: str, found: Sequence[Change]) -> str:
    lines = [
        f"- {literal(c.case)} ({literal(c.requirement)}): {c.before or 'not there'} before, "
        f"{c.after} now: {literal(c.reason)}"
        for c in found
    ]
    return f"{title}:\n\n" + "\n".join(lines) + "\n" if lines else ""
