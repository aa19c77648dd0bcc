"""The record of a case that was judged."""

from collections.abc import Sequence

from rapidfuzz.distance import Levenshtein

from kvfence.conformance.evidence import Evidence, Observation
from kvfence.conformance.scenarios.scenario import Scenario
from kvfence.conformance.settings import Settings
from kvfence.conformance.trial import Judged
from kvfence.reports.finding import LogLine
from kvfence.reports.outcome import Outcome
from kvfence.reports.records import CaseRecord, RequestRecord

LOG_LINES = 2_000  # of one case's cache log


def case_record(settings: Settings, judged: Judged) -> CaseRecord:
    """What is written down of a case: its verdict, its requests, and what is known of each."""
    driven, ruling, case = judged.driven, judged.ruling, judged.driven.case
    control = driven.control
    # Only cases can be run again, not what measured the noise.
    earlier = [f.source_case for f in ruling.findings if f.source_case and f.source_case != "noise"]
    return CaseRecord(
        case=case.id,
        requirement=case.requirement,
        outcome=ruling.outcome,
        reason=ruling.reason,
        mode=case.mode,
        layout=case.layout,
        edge=case.edge.name,
        company=case.company,
        concurrency=case.concurrency,
        dtype=case.dtype,
        reproduce=settings.command(case, earlier),
        engine_seconds=driven.seconds,
        suite_seconds=judged.seconds,
        shareable_tokens=control.shareable if control else None,
        cached_tokens=control.cached if control else None,
        positions=sum(len(o.completion.tokens) for o in judged.observations),
        ties=ruling.ties,
        requests=tuple(map(_request, judged.observations, judged.evidence, judged.baselines)),
        findings=ruling.findings,
        log=_log(judged) if ruling.outcome is Outcome.VIOLATES else (),
        log_left_out=max(0, len(driven.events) - LOG_LINES) if ruling.outcome is Outcome.VIOLATES else 0,
        telltales=judged.telltales,
        asked=judged.asked,
        factors=case.cell.told if isinstance(case, Scenario) and case.cell else {},
    )


def _request(observation: Observation, evidence: Evidence, baseline: Sequence[int]) -> RequestRecord:
    prompt, completion, comparison = observation.prompt, observation.completion, observation.attention
    tokens, choices = completion.tokens, observation.verification.choices
    return RequestRecord(
        request=prompt.name,
        group=prompt.group,
        prompt_tokens=len(prompt.tokens),
        prefix_tokens=prompt.prefix_tokens,
        secret=" ".join(prompt.secret),
        output=tokens,
        cached_tokens=completion.cached_tokens,
        edit_distance=Levenshtein.distance(tokens, baseline) if baseline else None,
        first_changed=next((i for i, (a, b) in enumerate(zip(tokens, choices, strict=True)) if a != b), None),
        largest_margin=max(observation.verification.margins),
        attention_step=evidence.attention.step if evidence.attention else None,
        attention_shift=float(comparison.shifts.max()) if comparison else None,
    )


def _log(judged: Judged) -> tuple[LogLine, ...]:
    here = f"{judged.driven.case.id}/"
    return tuple(
        LogLine(e.step, e.request.removeprefix(here), str(e.action), e.slot, e.start, e.length, e.position, e.key)
        for e in judged.driven.events[:LOG_LINES]
    )
