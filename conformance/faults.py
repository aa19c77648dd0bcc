"""Faults planted in the reference engine, and the suite run against each of them until it sees it."""

import time
from collections.abc import Callable, Collection, Iterator
from collections.abc import Sequence as Several
from dataclasses import dataclass, fields, replace
from fnmatch import fnmatchcase
from typing import Any

from kvfence.adapters.api import EngineConfig, EngineStartError
from kvfence.adapters.host import Host, make_host
from kvfence.adapters.reference import ReferenceAdapter, build
from kvfence.adapters.wire import EngineInfo
from kvfence.conformance.driven import Driven
from kvfence.conformance.driver import Driver
from kvfence.conformance.judge import Ruling, foremost
from kvfence.conformance.naming import FAMILY
from kvfence.conformance.oracles.twin import Verdict
from kvfence.conformance.plan import Plan
from kvfence.conformance.probes import probe
from kvfence.conformance.scenarios.scenario import Scenario
from kvfence.conformance.settings import Settings, UsageError
from kvfence.conformance.subject import Subject
from kvfence.conformance.trial import Judged, Trial
from kvfence.conformance.yardstick import Yardstick
from kvfence.reference_impl.auditor import Breach, Rule
from kvfence.reference_impl.defects import DEFECTS, LATER, Defect, Sentinel
from kvfence.reference_impl.sequence import Sequence
from kvfence.reference_impl.settings import PARTS
from kvfence.reports.finding import Finding
from kvfence.reports.outcome import Outcome
from kvfence.reports.score import FaultRecord

SPEC = "kvfence.conformance.faults:open_faulty"
ARGUMENT, WITHOUT = "defect", "without"
MET = (Rule.READ, Rule.HELD)  # breaches in which a request meets others' K/V
FITTED = 103  # faults that the class-naming table was made with; what is planted behind them scores it


@dataclass(frozen=True)
class Truth:
    """What really happened in a faulty engine, which no oracle is shown."""

    exercised: int  # times the faulty line made a difference
    met: frozenset[
        tuple[str, str]
    ]  # requests, and those whose K/V they met: whose tokens give these K/V, by owner tags


class FaultyAdapter(ReferenceAdapter):
    """The reference engine with a fault planted."""

    name = "reference with a fault"

    def __init__(self, ran: Sentinel, *engine: Any) -> None:
        super().__init__(*engine)
        self._ran = ran
        self._met: set[tuple[str, str]] = set()
        self._ended: dict[str, Sequence] = {}

    def truth(self) -> Truth:
        """What has happened up to now."""
        if self.engine.tags:
            met = [breach for breach in self.engine.audit() if breach.rule in MET or len(breach.requests) == 2]
            self._met |= {(breach.requests[0], source) for breach in met for source in self._sources(breach)}
        return Truth(self._ran.count, frozenset(self._met))

    def _sources(self, breach: Breach) -> Iterator[str]:
        victim, *others = breach.requests
        yield from {*others, *(owner.request for owner in breach.owners)} - {victim}
        for owner in breach.owners:
            if (written := self._ended.get(owner.request)) is None:
                continue
            # Who begins with the same tokens has the same K/V there: no look at them can tell the two apart.
            end = owner.position + 1
            for id, other in self._ended.items():
                if other.namespace == written.namespace and other.tokens[:end] == written.tokens[:end]:
                    yield id

    def _keep(self, sequence: Sequence) -> None:
        super()._keep(sequence)
        self._ended[sequence.id] = sequence


def open_faulty(model: str, config: EngineConfig) -> FaultyAdapter:
    """Open the reference engine with the fault that the engine argument "defect" names.

    With "without" in its place the engine is right, and set up as that fault needs it.
    """
    arguments = dict(config.engine_args)
    planted, spared = arguments.pop(ARGUMENT, None), arguments.pop(WITHOUT, None)
    name = planted or spared
    if name is not None and name not in DEFECTS:
        raise EngineStartError(f"there is no planted fault {name}; `kvfence faults list` shows them")
    ran, config = Sentinel(), replace(config, engine_args=arguments)
    needs = DEFECTS[name].needs if name else {}
    parts = DEFECTS[planted].build(ran) if planted else DEFECTS[spared].right if spared else PARTS
    return FaultyAdapter(ran, build(model, config, parts, **{"tags": True, **needs}), config)


class Bench:
    """One plan against one fault after another, in one process for all of them.

    With `tokens_only` nothing is looked at but whether tokens are golden's, to the last one, as a usual regression test
    does; no noise is measured for that.
    """

    def __init__(self, settings: Settings, plan: Plan, tokens_only: bool = False) -> None:
        self._settings, self.plan, self._tokens_only = settings, plan, tokens_only
        self._host: Host = make_host(SPEC, str(plan.model.path.resolve()), settings.deadline, settings.in_process)
        self._yardstick = Yardstick(settings, plan, lambda record: None)

    def close(self) -> None:
        """End the engine's process."""
        self._host.close()
        self._yardstick.close()

    def score(
        self, defect: Defect | None, needed: Defect | None = None, cases: Several[Subject] | None = None
    ) -> FaultRecord:
        """Run the cases of the plan, or some, against one fault until one of them sees it.

        Without one, against an engine that is right, set up as the fault `needed` needs it.
        """
        arguments = {ARGUMENT: defect.name} if defect else {WITHOUT: needed.name} if needed else {}
        settings = replace(self._settings, engine=SPEC, engine_args=arguments)
        driver = Driver(settings, self.plan, lambda record: None, self._host)
        self._yardstick.forget()
        trial = Trial(settings, self.plan, self._yardstick)
        begun, ran, tokens, exercised, failed = time.monotonic(), 0, 0, False, ""
        among = self.plan.cases if cases is None else cases
        for case in among:
            ran += 1
            judged = self._judged(driver, trial, case)
            tokens += sum(len(answer.completion.tokens) for answer in judged.driven.answers)
            truth = self._truth()
            exercised = exercised or truth.exercised > 0
            if judged.ruling.outcome is Outcome.SUITE_ERROR:
                failed = failed or judged.ruling.reason
            if judged.ruling.outcome is Outcome.VIOLATES:
                break
        seconds = time.monotonic() - begun
        twin = None
        if judged.ruling.outcome is Outcome.VIOLATES and not self._tokens_only:
            beside = probe(among, judged, lambda other: self._judged(driver, trial, other))
            judged = trial.explain(judged, None, beside)
            found = driver.twin(case, foremost(judged.ruling.findings).victim) if isinstance(case, Scenario) else None
            twin = None if found is None else found.verdict is Verdict.DEPENDS
        return _record(defect, needed, exercised, judged, truth, twin, ran, tokens, seconds, failed)

    def _judged(self, driver: Driver, trial: Trial, case: Subject) -> Judged:
        if self._tokens_only:
            return self._compared(driver.drive(case, lambda info: False))
        return trial.judge(driver.drive(case, self._preparing(driver, case)))

    def _compared(self, driven: Driven) -> Judged:
        """Whether all tokens are golden's, and nothing beside: what a regression test sees."""
        if driven.outcome is not None:
            return Judged(driven, Ruling(driven.outcome, driven.reason))
        golden = self._yardstick.golden(driven.case.dtype)
        for answer in driven.answers:
            tokens = answer.completion.tokens
            if golden.verify(answer.prompt.tokens, tokens, None, answer.domain.media).choices != tokens:
                reason = f"request {answer.prompt.name} has other tokens than golden"
                return Judged(driven, Ruling(Outcome.VIOLATES, reason))
        return Judged(driven, Ruling(Outcome.CONFORMS, ""))

    def _preparing(self, driver: Driver, case: Subject) -> Callable[[EngineInfo], bool]:
        return lambda info: self._yardstick.prepare(case, info, driver.solo)

    def _truth(self) -> Truth:
        if self._host.info is None:  # it did not open, or died
            return Truth(0, frozenset())
        truth = self._host.call("truth")
        assert isinstance(truth, Truth)
        return truth


def _record(
    defect: Defect | None,
    needed: Defect | None,
    exercised: bool,
    judged: Judged,
    truth: Truth,
    twin: bool | None,
    cases: int,
    tokens: int,
    seconds: float,
    failed: str,
) -> FaultRecord:
    case, ruling = judged.driven.case, judged.ruling
    detected = ruling.outcome is Outcome.VIOLATES
    first = foremost(ruling.findings) if ruling.findings else None
    named = first.explanation if first else None
    oracles = {oracle: None for finding in ruling.findings for oracle in finding.oracles}
    return FaultRecord(
        fault=defect.name if defect else "",
        fault_class=defect.fault_class if defect else "",
        report=defect.report if defect else "",
        about=defect.about if defect else _settings(needed),
        subtle=defect.subtle if defect else "",
        exercised=exercised,
        detected=detected,
        oracles=tuple(oracles),
        case=case.id if detected else "",
        requirement=case.requirement if detected else "",
        summary=ruling.reason if detected else "",
        source_right=_right(case.id, first, truth) if first else None,
        source_how=first.source_how if first else "",
        twin=twin,
        family=FAMILY[defect.fault_class] if defect else "",
        named=named.fault_class or "" if named else "",
        named_family=named.family or "" if named else "",
        named_how=named.class_how if named else "",
        named_kind=named.class_kind if named else "",
        held_out=defect is not None and held_out(defect.name),
        cases=cases,
        tokens=tokens,
        seconds=seconds,
        failed=failed,
    )


def held_out(name: str) -> bool:
    """Whether the class-naming table was made without a fault: those behind the first `FITTED` of the list."""
    return list(DEFECTS).index(name) >= FITTED


def _settings(needed: Defect | None) -> str:
    if needed is None:
        return ""
    made = {each.name: getattr(needed.right, each.name) for each in fields(needed.right)}
    told = {name: part.__name__ for name, part in made.items() if part is not getattr(PARTS, name)}
    return ", ".join(f"{name} {value}" for name, value in {**needed.needs, **told}.items())


def _right(case: str, finding: Finding, truth: Truth) -> bool | None:
    """Whether the source named is one whose K/V the victim met; None where it met nobody's, by the owner tags."""
    sources = {source for victim, source in truth.met if victim == f"{case}/{finding.victim}"}
    return f"{finding.source_case}/{finding.source}" in sources if sources else None


def listing() -> Iterator[tuple[str, str, str]]:
    """Name, class and what is wrong of every planted fault; then the classes that there is no seam for yet, and why."""
    for defect in DEFECTS.values():
        yield defect.name, defect.fault_class, defect.about
    for fault_class, reason in LATER.items():
        yield "(later)", fault_class, reason


def against(
    settings: Settings, names: Several[str], tokens_only: bool = False, done: Collection[tuple[str, str]] = ()
) -> Iterator[FaultRecord]:
    """Score the planted faults of these names, after the engine without one. Raises UsageError for an unknown name.

    What is `done` is left out: (name, ""), and of the engine without a fault ("", what it is set up with).
    """
    patterns = names or ("*",)
    chosen = [defect for name, defect in DEFECTS.items() if any(fnmatchcase(name, pattern) for pattern in patterns)]
    if not chosen:
        raise UsageError(f"no planted fault matches {', '.join(names)}; `kvfence faults list` shows them")
    plan = Plan(settings)
    bench = Bench(settings, plan, tokens_only)
    try:
        chosen = [defect for defect in chosen if defect.window == bool(plan.model.window)]
        setups = {_settings(defect): defect for defect in chosen}
        for about, needed in {"": None, **setups}.items():
            if ("", about) not in done:
                yield bench.score(None, needed)
        for defect in chosen:
            if (defect.name, "") not in done:
                yield bench.score(defect)
    finally:
        bench.close()
