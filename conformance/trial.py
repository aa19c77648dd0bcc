"""The trial of a case: golden beside every answer, the oracles asked, the ruling made."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from kvfence.conformance.driver import Answer, Driven
from kvfence.conformance.evidence import Evidence, Observation, ask
from kvfence.conformance.judge import Ruling, rule
from kvfence.conformance.oracles.attention import Comparison, Thresholds
from kvfence.conformance.oracles.canary import Owner, Owners
from kvfence.conformance.plan import Plan
from kvfence.conformance.settings import Settings
from kvfence.conformance.victim import finding
from kvfence.conformance.yardstick import Yardstick
from kvfence.reference_impl.golden import Golden
from kvfence.reports.finding import Telltale
from kvfence.reports.outcome import Outcome

Tokens = Sequence[int]


@dataclass(frozen=True)
class Judged:
    """A case with its ruling. Per request: what was observed, what the oracles say, and golden's own output."""

    driven: Driven
    ruling: Ruling
    observations: tuple[Observation, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    baselines: tuple[Tokens, ...] = ()  # empty where it was not decoded
    telltales: tuple[Telltale, ...] = ()
    seconds: float = 0.0


@dataclass
class Trial:
    """Judges the cases of one run, in the order they were driven."""

    settings: Settings
    plan: Plan
    yardstick: Yardstick
    _owners: Owners = field(default_factory=Owners)
    _decoded: int = 0

    def judge(self, driven: Driven) -> Judged:
        """Judge a case that an engine was driven through."""
        begun = time.monotonic()
        if driven.outcome is not None:
            return Judged(driven, Ruling(driven.outcome, driven.reason))
        case, layout = driven.case, self.plan.layout(driven.case)
        golden = self.yardstick.golden(case.dtype)
        thresholds = self.yardstick.thresholds(case)
        observations = tuple(_observe(golden, answer, thresholds) for answer in driven.answers)
        for observation in observations:
            self._owners.add(Owner(case.id, observation.prompt.name), observation.prompt.words)
        tolerance, complaint = self.yardstick.tolerance(case)
        evidence = tuple(ask(case, o, tolerance, thresholds, self._owners, layout) for o in observations)
        baselines = tuple(self._baseline(golden, o) for o in observations)
        secrets = {word: o.prompt.name for o in observations for word in o.prompt.secret}
        findings = tuple(
            finding(case, o, e, expected, secrets, layout, tolerance.epsilon)
            for o, e, expected in zip(observations, evidence, baselines, strict=True)
            if e.oracles
        )
        ties = sum(len(e.golden.ties) for e in evidence)
        hard = {oracle for found in findings for oracle in found.oracles} - {"golden", "attention"}
        if complaint and not tolerance.exact and not hard:
            ruling = Ruling(Outcome.INCONCLUSIVE, complaint, (), ties)
        else:
            assert driven.info is not None
            assert driven.control is not None
            ruling = rule(case, driven.control, driven.info.block_size, findings, ties)
        telltales = _telltales(driven, evidence) if ruling.findings else ()
        return Judged(driven, ruling, observations, evidence, baselines, telltales, time.monotonic() - begun)

    def locked(self, judged: Judged, together: Driven, alone: Driven) -> Judged:
        """Add what a violating case says when it is run again on fresh engines: as it was, and under a global lock."""
        harmed = [self._harmed(driven) for driven in (together, alone)]
        if failed := next((driven for driven in (together, alone) if driven.outcome is not None), None):
            told = f"it could not be tried again: {failed.reason}"
        elif not harmed[0]:
            told = "on a fresh engine the same requests, together, are golden's: it takes what came before them"
        elif not harmed[1]:
            told = "on a fresh engine, one request at a time, all outputs are golden's: it takes two at once"
        else:
            told = f"on a fresh engine, one request at a time, {', '.join(harmed[1])} still left golden"
        return replace(judged, telltales=(*judged.telltales, Telltale("lock", "", None, None, told)))

    def _harmed(self, driven: Driven) -> list[str]:
        """Names of the requests of a case run again that any oracle finds harmed."""
        if driven.outcome is not None:
            return []
        case, golden = driven.case, self.yardstick.golden(driven.case.dtype)
        tolerance, _ = self.yardstick.tolerance(case)
        thresholds, layout = self.yardstick.thresholds(case), self.plan.layout(case)
        seen = [_observe(golden, answer, thresholds) for answer in driven.answers]
        return [o.prompt.name for o in seen if ask(case, o, tolerance, thresholds, self._owners, layout).oracles]

    def _baseline(self, golden: Golden, observation: Observation) -> Tokens:
        """Golden's own output, which is the engine's where golden would have chosen each of its tokens."""
        tokens = observation.completion.tokens
        if observation.verification.choices == tokens:
            return tokens
        if self._decoded == self.settings.plan.baselines:
            return ()
        self._decoded += 1
        return golden.output(observation.prompt.tokens, len(tokens))


def _observe(golden: Golden, answer: Answer, thresholds: Thresholds | None) -> Observation:
    comparison = Comparison(answer.attention) if answer.attention and thresholds else None
    verification = golden.verify(answer.prompt.tokens, answer.completion.tokens, comparison)
    return Observation(answer.prompt, answer.completion, verification, comparison, answer.breaches)


def _telltales(driven: Driven, evidence: Sequence[Evidence]) -> tuple[Telltale, ...]:
    here = f"{driven.case.id}/"
    found = []
    for answer, said in zip(driven.answers, evidence, strict=True):
        for breach in said.breaches:
            case, _, source = (breach.source or "").rpartition("/")
            told = f"{answer.prompt.name} {breach.told}".replace(here, "")
            found.append(Telltale(breach.kind, answer.prompt.name, source or None, case or None, told))
    return tuple(found)
