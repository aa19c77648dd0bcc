"""The lab: one engine that is asked about one schedule after another."""

from collections import Counter
from collections.abc import Callable
from types import TracebackType
from typing import Self

from kvfence.adapters.wire import EngineInfo
from kvfence.conformance.driver import Driver
from kvfence.conformance.plan import Plan
from kvfence.conformance.probes import PROBES, probe
from kvfence.conformance.settings import Settings
from kvfence.conformance.subject import Subject
from kvfence.conformance.trial import Judged, Trial
from kvfence.conformance.yardstick import Yardstick
from kvfence.reports.outcome import Outcome


class Lab:
    """An engine with its noise. Each schedule is judged by itself, as if there had been none before."""

    def __init__(self, settings: Settings, plan: Plan) -> None:
        self._settings, self._plan = settings, plan
        self._driver = Driver(settings, plan, lambda record: None)
        self._yardstick = Yardstick(settings, plan, lambda record: None)
        self.info: EngineInfo | None = None  # of the engine, once it has been asked
        self.outcomes: Counter[Outcome] = Counter()  # of all that was asked

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._driver.close()
        self._yardstick.close()

    def judge(self, case: Subject) -> Judged:
        """What becomes of a schedule. Raises UsageError if the engine has never started and does not."""
        driven = self._driver.drive(case, self._prepare(case))
        judged = Trial(self._settings, self._plan, self._yardstick).judge(driven)
        self.outcomes[judged.ruling.outcome] += 1
        return judged

    def explain(self, judged: Judged) -> Judged:
        """Add to a violation which class of faults it looks like, by what the engine does with the probes too."""
        probes = [self._plan.write_scenario(name, judged.driven.case.dtype) for name in PROBES]
        beside = probe(probes, judged, self.judge)
        return Trial(self._settings, self._plan, self._yardstick).explain(judged, None, beside)

    def fails(self, case: Subject) -> bool:
        """Whether a schedule violates."""
        return self.judge(case).ruling.outcome is Outcome.VIOLATES

    def _prepare(self, case: Subject) -> Callable[[EngineInfo], bool]:
        def prepare(info: EngineInfo) -> bool:
            self.info = info
            return self._yardstick.prepare(case, info, self._driver.solo)

        return prepare
