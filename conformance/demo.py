"""The demo: the experiment kvfence grew out of. One at a time, sharing a prefix, sharing a slot by mistake."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from kvfence.conformance.case import OBSERVE
from kvfence.conformance.faults import ARGUMENT, SPEC
from kvfence.conformance.plan import Plan
from kvfence.conformance.settings import Settings
from kvfence.conformance.suite import Suite, new_run
from kvfence.conformance.terminal import write_reports
from kvfence.reports.card import badness
from kvfence.reports.outcome import Outcome, exit_code
from kvfence.reports.records import CaseRecord


@dataclass(frozen=True)
class Act:
    """One part of the experiment, and what is to come of it."""

    folder: str
    title: str
    about: str
    case: str
    expected: Outcome = Outcome.CONFORMS
    fault: str = ""  # that is planted for it


ACTS = (
    Act(
        "baseline",
        "Baseline",
        "Eight requests, each with a passphrase of its own behind a system prompt, one after another. The model "
        "recites what its prompt says: whose words come out is whose K/V were read.",
        "serial-canary-block+1-mixed-c8-float32",
    ),
    Act(
        "cache",
        "The cache",
        "The same requests side by side. System prompts that are the same are computed once, and shared.",
        "shared-canary-block+1-mixed-c8-float32",
    ),
    Act(
        "shared-slot",
        "A slot that two share",
        "The same again, on an engine with a fault: two requests that take a block in one step get the same one.",
        "shared-canary-block+1-mixed-c8-float32",
        Outcome.VIOLATES,
        "refcount.two-writers",
    ),
)


def play(act: Act, folder: Path) -> CaseRecord:
    """Run one act and leave its records and report in `folder`. Raises UsageError if that cannot be written."""
    settings = Settings(
        engine=SPEC if act.fault else "reference",
        model="canary",
        profile="quick",
        report=folder,
        cases=(act.case,),
        engine_args={ARGUMENT: act.fault} if act.fault else {},
        watch=OBSERVE,
    )
    with Suite(settings, Plan(settings), new_run()) as suite:
        [record] = suite.run_all(suite.plan.cases)
        suite.finish(exit_code(suite.outcomes))
    write_reports(folder, suite.run)
    return record


def told(record: CaseRecord) -> Iterator[str]:
    """What came of an act, in lines; of findings the one that its report shows first."""
    findings = sorted(record.findings, key=lambda finding: badness({"case": record.case}, asdict(finding)))
    if not findings:
        yield f"{record.outcome}: {record.reason}"
        return
    first, more = findings[0], f" (and {len(findings) - 1} more)" if len(findings) > 1 else ""
    yield f"{record.outcome}: {first.summary}{more}"
    secrets = {request.request: request.secret for request in record.requests}
    for spelling in first.spellings[:1]:
        yield f"  {first.victim} was given the passphrase  {secrets.get(first.victim, '')}"
        yield f"  {spelling.request} was given the passphrase  {secrets.get(spelling.request, '')}"
        yield f"  {first.victim} answered, from token {spelling.start} on:  {' '.join(spelling.words)}"
    yield f"  source: {first.source_how}"
    if first.explanation and first.explanation.fault_class:
        yield f"  looks like {first.explanation.fault_class}: {first.explanation.class_how}"
