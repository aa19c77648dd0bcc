"""The suite: drives an engine through the cases of a plan, has them judged, and records each verdict."""

import time
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from secrets import token_hex
from types import TracebackType
from typing import Self

from kvfence.conformance.baseline import Baseline
from kvfence.conformance.case_record import case_record
from kvfence.conformance.driven import Driven
from kvfence.conformance.driver import Driver
from kvfence.conformance.ladder import climb
from kvfence.conformance.plan import Plan
from kvfence.conformance.probes import probe
from kvfence.conformance.scenarios.factors import combinable
from kvfence.conformance.scenarios.scenario import Scenario
from kvfence.conformance.schedule_file import dumps, lines
from kvfence.conformance.settings import Settings, UsageError
from kvfence.conformance.subject import Subject
from kvfence.conformance.trial import Judged, Trial
from kvfence.conformance.versions import package_versions
from kvfence.conformance.yardstick import Yardstick
from kvfence.reports.file import write
from kvfence.reports.outcome import Outcome
from kvfence.reports.records import CaseRecord, EndRecord, RecordError, Rung, RunRecord, Writer


def new_run() -> str:
    """A sortable id for a run."""
    return f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{token_hex(2)}"


class Suite:
    """One run of a plan on an engine, by one worker. Raises UsageError if its records cannot be written."""

    def __init__(self, settings: Settings, plan: Plan, run: str, worker: str = "main") -> None:
        self.settings, self.plan, self.run = settings, plan, run
        self._begun = time.monotonic()
        self._baseline = Baseline.load(settings.baseline) if settings.baseline else Baseline()
        try:
            self._writer = Writer(settings.report, run, worker)
        except RecordError as error:
            raise UsageError(str(error)) from error
        self.outcomes: list[Outcome] = []  # as they count: not those of violations that are known
        self.known = 0
        self._writer.write(self._header())
        self._driver = Driver(settings, plan, self._writer.write)
        self._yardstick = Yardstick(settings, plan, self._writer.write)
        self._trial = Trial(settings, plan, self._yardstick)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, KeyboardInterrupt):
            error.add_note(f"`kvfence report {self.settings.report}` tells what was done")
        self.close()

    def close(self) -> None:
        """End the engine's process, the loading of golden and the record file."""
        self._driver.close()
        self._yardstick.close()
        self._writer.close()

    def finish(self, exit_code: int) -> None:
        """Record that the run came to its end."""
        self._writer.write(EndRecord(time.monotonic() - self._begun, exit_code))

    def examine(self, case: Subject) -> CaseRecord:
        """Run one case and record its verdict. Raises UsageError if the engine has never started and does not."""
        return self._conclude(self._judge(self._drive(case)))

    def _judge(self, driven: Driven) -> Judged:
        """Judge a case and record the verdict at once: what the engine is asked next may never end."""
        judged = self._trial.judge(driven)
        self._writer.write(self._told(judged, ()))
        return judged

    def _conclude(self, judged: Judged) -> CaseRecord:
        """Count a verdict; of a violation, once it has been tried what it takes."""
        case = judged.driven.case
        judged = self._trial.explain(judged, lambda without: self._driver.emptied(case, without))
        several = case.mode != "serial" and case.company != "alone"
        if self.settings.plan.serialise and several and judged.ruling.outcome is Outcome.VIOLATES:
            together, alone = (self._driver.again(case, one_by_one) for one_by_one in (False, True))
            judged = self._trial.locked(judged, together, alone)
        return self._count(judged)

    def diagnose(self, scenario: Scenario) -> CaseRecord:
        """Examine a schedule and, if it violates, climb the ladder; the class goes by the plan's probes too."""
        judged = self._judge(self._drive(scenario))
        if judged.ruling.outcome is not Outcome.VIOLATES:
            return self._count(judged)
        beside = probe(self.plan.cases, judged, lambda case: self._trial.judge(self._drive(case)))
        judged = self._trial.explain(judged, lambda without: self._driver.emptied(scenario, without), beside)
        climbed = climb(scenario, judged, lambda simpler: self._trial.judge(self._drive(simpler)))
        file = self.settings.report / "schedules" / "smallest.json"
        _written(dumps(climbed.smallest), file)
        return self._count(judged, climbed.rungs)

    def run_all(self, cases: Iterable[Subject]) -> Iterator[CaseRecord]:
        """Examine cases in order, judging each while the engine already works on the next."""
        if self.settings.plan.serialise:
            # What a violation says under a lock must be asked before the engine goes on.
            yield from map(self.examine, cases)
            return
        pending: Future[Judged] | None = None
        with ThreadPoolExecutor(1) as judge:
            for case in cases:
                # Another dtype needs another golden, and measuring noise the engine and golden both.
                if pending and not self._yardstick.ready(case):
                    yield self._conclude(pending.result())
                    pending = None
                driven = self._drive(case)
                if pending:
                    yield self._conclude(pending.result())
                pending = judge.submit(self._judge, driven)
            if pending:
                yield self._conclude(pending.result())

    def _drive(self, case: Subject) -> Driven:
        return self._driver.drive(case, lambda info: self._yardstick.prepare(case, info, self._driver.solo))

    def _told(self, judged: Judged, ladder: tuple[Rung, ...]) -> CaseRecord:
        record = replace(case_record(self.settings, judged), ladder=ladder)
        case = judged.driven.case
        if record.outcome is Outcome.VIOLATES and isinstance(case, Scenario):
            record = replace(record, schedule=tuple(lines(case)), replay=self._keep(case))
        return replace(record, known=self._known(judged))

    def _count(self, judged: Judged, ladder: tuple[Rung, ...] = ()) -> CaseRecord:
        """Count a recorded verdict; a violation is recorded anew, with what was found out since."""
        record = self._told(judged, ladder)
        if record.outcome is Outcome.VIOLATES:
            self._writer.write(record)
        if record.known:
            self.known += 1
        elif self.settings.require_level and record.outcome is Outcome.NOT_OBSERVABLE:
            self.outcomes.append(Outcome.INCONCLUSIVE)
        else:
            self.outcomes.append(record.outcome)
        return record

    def _known(self, judged: Judged) -> str:
        """Why a violation is expected, or nothing."""
        info, requirement = judged.driven.info, judged.driven.case.requirement
        if info is None or judged.ruling.outcome is not Outcome.VIOLATES:
            return ""
        known = self._baseline.of(requirement, self.settings.engine, info.version)
        return " ".join(filter(None, (known.reason, known.link))) if known else ""

    def _keep(self, scenario: Scenario) -> str:
        """Write down a scenario to be replayed; the command that does."""
        file = self.settings.schedule or self.settings.report / "schedules" / f"{scenario.id}.json"
        if not self.settings.schedule:
            _written(dumps(scenario), file)
        return self.settings.replay(file)

    def _header(self) -> RunRecord:
        return RunRecord(
            run=self.run,
            command=self.settings.command(),
            started=datetime.now(UTC).isoformat(timespec="seconds"),
            kvfence=package_versions()["kvfence"],
            engine=self.settings.engine,
            engine_args=self.settings.engine_args,
            model=self.settings.model,
            model_kind=self.plan.model.kind,
            profile=self.settings.profile,
            seed=self.settings.seed,
            cases=1 if self.settings.schedule else len(self.plan.cases),
            versions=package_versions(),
            strength=self.plan.strength,
            combinations=len(combinable(self.plan.strength)) if self.plan.strength else 0,
        )


def _written(text: str, file: Path) -> None:
    try:
        write(text, file)
    except RecordError as error:
        raise UsageError(str(error)) from error
