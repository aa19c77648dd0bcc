"""The trial of a case: golden beside every answer, the oracles asked, the ruling made."""

import math
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace

from kvfence.adapters.api import EngineFaultError
from kvfence.conformance.driven import Answer, Driven
from kvfence.conformance.evidence import Evidence, Observation, ask
from kvfence.conformance.facts import block_of, facts
from kvfence.conformance.golden_kv import GoldenKV
from kvfence.conformance.judge import Ruling, foremost, rule
from kvfence.conformance.level import demanded, missing
from kvfence.conformance.naming import explanation, suggest
from kvfence.conformance.oracles.attention import Comparison
from kvfence.conformance.oracles.canary import Owner, Owners
from kvfence.conformance.oracles.golden import Tolerance
from kvfence.conformance.oracles.side import Sent
from kvfence.conformance.plan import Plan
from kvfence.conformance.scenarios.scenario import Scenario
from kvfence.conformance.settings import Settings
from kvfence.conformance.subject import Subject
from kvfence.conformance.trigger import find_trigger
from kvfence.conformance.victim import finding
from kvfence.conformance.yardstick import Calibration, Yardstick
from kvfence.prompts.mirror import ROUNDED
from kvfence.reference_impl.golden import Golden
from kvfence.reports.finding import Finding, Telltale
from kvfence.reports.outcome import Outcome

Tokens = Sequence[int]
# Logits: thirty times the largest error that was seen where pictures stand among the canary's words.
MEDIA_EPSILON = 0.01
RECENT = 40  # requests of earlier cases whose K/V are looked for where none of a case's own are found


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
    asked: tuple[str, ...] = ()  # names of the oracles that were


@dataclass
class Trial:
    """Judges the cases of one run, in the order they were driven."""

    settings: Settings
    plan: Plan
    yardstick: Yardstick
    _owners: Owners = field(default_factory=Owners)
    _decoded: int = 0
    _before: deque[Sent] = field(default_factory=lambda: deque(maxlen=RECENT))  # requests of earlier cases

    def judge(self, driven: Driven) -> Judged:
        """Judge a case that an engine was driven through."""
        begun = time.monotonic()
        if driven.outcome is not None:
            return Judged(driven, Ruling(driven.outcome, driven.reason))
        case, layout = driven.case, self.plan.layout(driven.case)
        golden, scale = self.yardstick.golden(case.dtype), self.yardstick.calibration(case)
        try:
            observations = self._observe(golden, driven, scale)
        except EngineFaultError as error:
            return Judged(driven, Ruling(Outcome.SUITE_ERROR, str(error)))
        for name, words in driven.words.items():
            self._owners.add(Owner(case.id, name), words)
        evidence = tuple(self._ask(case, observation, scale) for observation in observations)
        baselines = tuple(self._baseline(golden, o) for o in observations)
        secrets = {word: o.prompt.name for o in observations for word in o.prompt.secret}
        findings = tuple(
            finding(case.id, o, e, expected, secrets, layout, _own(scale, o.adapted).tolerance.epsilon)
            for o, e, expected in zip(observations, evidence, baselines, strict=True)
            if e.oracles
        )
        ruling = self._rule(driven, scale, evidence, findings)
        telltales = _telltales(driven, evidence) if ruling.findings else ()
        self._before += [
            Sent(Owner(case.id, a.prompt.name), a.domain, (*a.prompt.tokens, *a.completion.tokens))
            for a in driven.answers
        ]
        seconds, asked = time.monotonic() - begun, _asked(driven, observations, scale)
        levels = demanded(case.requirement, self.settings.require_level)
        why = next(filter(None, (missing(level, asked, observations, scale.unjudged) for level in levels)), "")
        if ruling.outcome is Outcome.CONFORMS and why:
            ruling = replace(ruling, outcome=Outcome.NOT_OBSERVABLE, reason=why)
        return Judged(driven, ruling, observations, evidence, baselines, telltales, seconds, asked)

    def _rule(
        self, driven: Driven, scale: Calibration, evidence: Sequence[Evidence], findings: Sequence[Finding]
    ) -> Ruling:
        assert driven.info is not None
        assert driven.control is not None
        observe = self.settings.observe
        ties = sum(len(e.golden.ties) for e in evidence)
        unseen = scale.fault or driven.reason or not_shown(driven, observe) or _too_coarse(driven, scale)
        soft = all({"golden", "attention"}.issuperset(found.oracles) and not _tagged(found) for found in findings)
        if scale.doubt and soft and not any(e.golden.overflowed for e in evidence):
            ruling = Ruling(Outcome.INCONCLUSIVE, unseen or scale.doubt, (), ties)
        else:
            ruling = rule(driven.case, driven.control, driven.info.block_size, findings, ties, unseen)
        shown = "attention" in observe and driven.info.can("attention")
        if shown and scale.thresholds is None and ruling.reason != unseen:
            return replace(ruling, reason=f"{ruling.reason}; attention not judged: {scale.unjudged}")
        return ruling

    def explain(
        self, judged: Judged, again: Callable[[Collection[str]], Driven] | None, beside: frozenset[str] = frozenset()
    ) -> Judged:
        """Add to what is told first of a violation what it takes, by running the case `again` without some requests.

        All findings get the class that the table suggests, by what is known of each and the facts that are known
        `beside`.
        """
        findings = judged.ruling.findings
        if not findings:
            return judged
        first = foremost(findings)
        # Samples of times are not worth taking again.
        timed = isinstance(judged.driven.case, Scenario) and judged.driven.case.arms
        harmed = None if timed or again is None else lambda without: self._still_harmed(again(without))
        trigger = find_trigger(judged.driven, first, harmed) if harmed else None
        said = {o.prompt.name: (o, e) for o, e in zip(judged.observations, judged.evidence, strict=True)}
        beside |= self._of_the_model(judged.driven.case)
        known = {found.victim: facts(judged.driven, *said[found.victim]) | beside for found in findings}
        if trigger:
            known[first.victim] |= {f"takes:{trigger.takes}"}
        named, explained = suggest(known), []
        for found in findings:
            told = explanation(found.victim, named, trigger if found is first else None)
            request, (_, evidence) = f"{judged.driven.case.id}/{found.victim}", said[found.victim]
            block = block_of(request, evidence, judged.driven.events)
            explained.append(replace(found, explanation=told, block=block))
        return replace(judged, ruling=replace(judged.ruling, findings=tuple(explained)))

    def _of_the_model(self, case: Subject) -> frozenset[str]:
        """Facts of a whole run that tell classes apart."""
        left = self.yardstick.calibration(case).solo_left
        return frozenset([*(["with:window"] if self.plan.model.window else []), *(["solo:left"] if left else [])])

    def _still_harmed(self, driven: Driven) -> list[str]:
        if driven.outcome is not None:
            raise EngineFaultError(driven.reason)
        return self._harmed(driven)

    def locked(self, judged: Judged, together: Driven, alone: Driven) -> Judged:
        """Add what a violating case says when it is run again on fresh engines: as it was, and under a global lock."""
        try:
            told = self._retold(together, alone)
        except EngineFaultError as error:
            told = f"it could not be tried again: {error}"
        return replace(judged, telltales=(*judged.telltales, Telltale("lock", "", None, None, told)))

    def _retold(self, together: Driven, alone: Driven) -> str:
        harmed = [self._harmed(driven) for driven in (together, alone)]
        if failed := next((driven for driven in (together, alone) if driven.outcome is not None), None):
            return f"it could not be tried again: {failed.reason}"
        if not harmed[0]:
            return "on a fresh engine the same requests, together, are golden's: it takes what came before them"
        if not harmed[1]:
            return "on a fresh engine, one request at a time, all outputs are golden's: it takes two at once"
        return f"on a fresh engine, one request at a time, {', '.join(harmed[1])} still left golden"

    def _harmed(self, driven: Driven) -> list[str]:
        """Names of the requests of a case run again that any oracle finds harmed."""
        if driven.outcome is not None:
            return []
        golden, scale = self.yardstick.golden(driven.case.dtype), self.yardstick.calibration(driven.case)
        seen = self._observe(golden, driven, scale)
        return [o.prompt.name for o in seen if self._ask(driven.case, o, scale).oracles]

    def _ask(self, case: Subject, observation: Observation, scale: Calibration) -> Evidence:
        scale = _own(scale, observation.adapted)
        tolerance, layout = _tolerance(observation, scale), self.plan.layout(case)
        return ask(case.id, observation, tolerance, scale.thresholds, self._owners, layout)

    def _observe(self, golden: Golden, driven: Driven, scale: Calibration) -> tuple[Observation, ...]:
        """Golden, and what else there is to compare with, beside every answer."""
        golden_kv = GoldenKV(golden, driven.case.id, driven.answers, self._before) if scale.kv else None
        return tuple(_observed(golden, answer, scale, golden_kv) for answer in driven.answers)

    def _baseline(self, golden: Golden, observation: Observation) -> Tokens:
        """Golden's own output, which is the engine's where golden would have chosen each of its tokens."""
        tokens = observation.completion.tokens
        if observation.verification.choices == tokens:
            return tokens
        if observation.media:
            return ()
        if self._decoded == self.settings.plan.baselines:
            return ()
        self._decoded += 1
        return golden.output(observation.prompt.tokens, len(tokens))


def _tagged(finding: Finding) -> bool:
    """Whether owner tags show that others' keys were met, which is no noise."""
    return finding.attention is not None and bool(finding.attention.foreign)


def _asked(driven: Driven, observations: Sequence[Observation], scale: Calibration) -> tuple[str, ...]:
    """Names of the oracles that had something to look at."""
    counted = any(o.completion.cached_tokens is not None for o in observations)
    could = {
        "golden": True,
        "canary": any(o.prompt.words for o in observations),
        "attention": scale.thresholds is not None and any(o.attention for o in observations),
        "blocks": bool(driven.events),
        "kv": any(o.kv_judged for o in observations),
        "side": isinstance(driven.case, Scenario) and counted,
        "twin": any(o.twin for o in observations),
    }
    return tuple(name for name, asked in could.items() if asked)


def not_shown(driven: Driven, observe: Sequence[str]) -> str:
    """What an engine says it shows and, asked to `observe` it, did not show of some requests; one line, or nothing."""
    logged = {event.request for event in driven.events}
    requests = [answer.prompt.name for answer in driven.answers if not answer.cut]
    missing = {
        "attention": [a.prompt.name for a in driven.answers if a.attention is None and not a.cut],
        "events": [name for name in requests if f"{driven.case.id}/{name}" not in logged],
    }
    for name, of in missing.items():
        if name in observe and driven.info and driven.info.can(name) and of:
            whom = "any request" if len(of) == len(requests) else ", ".join(of)
            return f"the engine says it shows {name}, and showed none of {whom}"
    return ""


def _too_coarse(driven: Driven, scale: Calibration) -> str:
    """Why answers to prompts with pictures cannot be judged, if so; one line, or nothing."""
    if scale.coarse and any(answer.domain.media for answer in driven.answers):
        return f"answers to prompts with media are not judged: {scale.coarse}"
    return ""


def _own(scale: Calibration, adapted: bool) -> Calibration:
    """What a request is judged by: an adapter's share is added up with that of the weights, and both are rounded."""
    return scale.widened(ROUNDED) if adapted else scale


def _tolerance(observation: Observation, scale: Calibration) -> Tolerance:
    """The canary is exact on its own words; what stands in the place of a picture is none, and rounds more."""
    if not observation.media:
        return scale.tolerance
    return Tolerance(math.inf if scale.coarse else max(scale.tolerance.epsilon, MEDIA_EPSILON), exact=False)


def _telltales(driven: Driven, evidence: Sequence[Evidence]) -> tuple[Telltale, ...]:
    here = f"{driven.case.id}/"
    found = []
    for answer, said in zip(driven.answers, evidence, strict=True):
        for breach in said.breaches:
            case, _, source = (breach.source or "").rpartition("/")
            told = f"{answer.prompt.name} {breach.told}".replace(here, "")
            at = breach.event
            found.append(
                Telltale(breach.kind, answer.prompt.name, source or None, case or None, told, at.step, at.slot)
            )
    return tuple(found)


def _observed(golden: Golden, answer: Answer, scale: Calibration, golden_kv: GoldenKV | None) -> Observation:
    comparison = Comparison(answer.attention, golden.layers) if answer.attention and scale.comparable else None
    media, adapted = answer.domain.media, answer.domain.adapter is not None
    if media:
        comparison = None  # golden's attention is looked at for tokens only
    verification = golden.verify(answer.prompt.tokens, answer.completion.tokens, comparison, media)
    tolerance = _own(scale, adapted).kv
    kv = golden_kv.examine(answer, tolerance) if golden_kv and tolerance and answer.kv else None
    return Observation(
        answer.prompt,
        answer.completion,
        verification,
        comparison,
        answer.breaches,
        kv,
        answer.side,
        golden_kv is not None and answer.kv is not None and not media,
        bool(media),
        adapted,
        answer.twin,
        answer.times,
    )
