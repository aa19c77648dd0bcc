"""The judge: from what was found in a case, and whether its control happened, to its outcome and reason."""

from collections.abc import Sequence
from dataclasses import dataclass

from kvfence.conformance.control import Control
from kvfence.conformance.scenarios.scenario import Scenario
from kvfence.conformance.subject import Subject
from kvfence.reports.finding import Finding
from kvfence.reports.outcome import Outcome


@dataclass(frozen=True)
class Ruling:
    """Outcome of a case, why, and the victims found."""

    outcome: Outcome
    reason: str
    findings: tuple[Finding, ...] = ()
    ties: int = 0


def rule(
    case: Subject, control: Control, block_size: int | None, findings: Sequence[Finding], ties: int, unseen: str = ""
) -> Ruling:
    """The outcome of a case from its findings and its positive controls; `unseen` is why silence shows nothing."""
    if findings:
        first = foremost(findings)
        more = f" (and {len(findings) - 1} more)" if len(findings) > 1 else ""
        return Ruling(Outcome.VIOLATES, first.summary + more, tuple(findings), ties)
    if unseen:
        return Ruling(Outcome.INCONCLUSIVE, unseen, (), ties)
    outcome, reason = _without_findings(case, control, block_size)
    tied = f" up to {ties} numeric tie{'s' if ties > 1 else ''}" if ties and outcome is Outcome.CONFORMS else ""
    return Ruling(outcome, reason + tied, (), ties)


def foremost(findings: Sequence[Finding]) -> Finding:
    """The finding that is told first: one whose source is known, the plainest and earliest of these."""
    return min(findings, key=lambda finding: (finding.source is None, _faint(finding), finding.first_step))


def _faint(finding: Finding) -> bool:
    """Whether others' keys were met and nothing came of it that is more than noise."""
    seen = finding.attention
    return finding.oracles == ("attention",) and seen is not None and all(excess <= 1 for excess in seen.excess)


def _without_findings(case: Subject, control: Control, block_size: int | None) -> tuple[Outcome, str]:
    if isinstance(case, Scenario):
        return _played(case, control)
    if case.mode != "shared":
        if control.cached:
            return Outcome.INCONCLUSIVE, f"{control.cached} prompt tokens came from the cache with sharing off"
        return Outcome.CONFORMS, "all outputs are golden's"
    if control.longest < (block_size or 1):
        return Outcome.CONFORMS, "all outputs are golden's; nothing could be shared"
    if control.cached is None:
        return Outcome.NOT_OBSERVABLE, "the engine does not tell whether its cache was hit"
    if control.missed(block_size):
        reason = f"the cache was never hit, though prompts had {control.longest} tokens in common"
        return Outcome.INCONCLUSIVE, reason
    return Outcome.CONFORMS, f"all outputs are golden's; {control.cached} prompt tokens were shared"


def _played(scenario: Scenario, control: Control) -> tuple[Outcome, str]:
    if scenario.hits and control.cached is None:
        return Outcome.NOT_OBSERVABLE, "the engine does not tell whether its cache was hit"
    shared = f"; {control.cached} prompt tokens were shared" if control.cached else ""
    return Outcome.CONFORMS, f"all outputs are golden's{shared}"
