"""The search: schedules that nobody has thought of, drawn by a state machine and judged by all oracles.

A machine writes a schedule, rule by rule; when it is done, the schedule is played and must conform. Rules are those
that the engine can follow. What is found is made smaller, and kept in a corpus that each search begins with.
"""

import hashlib
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from hypothesis import HealthCheck, Phase, seed
from hypothesis import settings as budget
from hypothesis.database import DirectoryBasedExampleDatabase
from hypothesis.errors import Flaky
from hypothesis.stateful import run_state_machine_as_test

from kvfence.conformance import schedule_file
from kvfence.conformance.lab import Lab
from kvfence.conformance.machine import LONGEST, Machine
from kvfence.conformance.plan import Plan
from kvfence.conformance.scenarios.cast import Cast
from kvfence.conformance.scenarios.scenario import (
    CHUNKED,
    PRIVATE,
    ROOMY,
    SMALL,
    TIGHT,
    TIGHT_PRIVATE,
    Scenario,
    Setup,
)
from kvfence.conformance.seeds import SEEDS
from kvfence.conformance.settings import Settings, UsageError
from kvfence.conformance.shrink import Shrinker
from kvfence.conformance.trial import Judged
from kvfence.reports.file import write
from kvfence.reports.outcome import Outcome

ROUND = 8  # schedules that are drawn for one setup before the next
STEPS = 14  # rules a schedule
SETUPS = (TIGHT, ROOMY, TIGHT_PRIVATE, CHUNKED, SMALL, PRIVATE)
NAME, REQUIREMENT = "search.drawn", "search.any-schedule"


@dataclass(frozen=True)
class Find:
    """A schedule that violates, as it was drawn and as small as it was made."""

    judged: Judged  # of the small one, or of the drawn one where that does not violate by itself
    drawn: Scenario
    small: Scenario
    alone: bool  # whether it violates by itself
    schedules: int  # that were played up to then
    seconds: float  # to this
    drawn_seconds: float  # to the drawn one


class ViolationError(Exception):
    """A schedule violates."""


class Search:
    """One search on one engine, until it is `over`."""

    def __init__(self, lab: Lab, plan: Plan, corpus: Path, over: Callable[[], bool], first: int = 0) -> None:
        self._lab, self._plan, self._corpus, self._over, self._first = lab, plan, corpus, over, first
        self._begun = time.monotonic()
        self._drawn = 0
        self._found: Scenario | None = None

    def finds(self) -> Iterator[Find]:
        """What violates: schedules kept from earlier searches, the seeds, then drawn ones until the first find."""
        for scenario in [*self._kept(), *self._plan.scenarios]:
            if self._over():
                return
            if self._lab.fails(scenario):
                yield self._find(scenario)
        if (find := self.drawn()) is not None:
            yield find

    def drawn(self) -> Find | None:
        """Draw schedules until one violates."""
        found = self._draw()
        return None if found is None else self._find(found)

    def scenario(self, cast: Cast, setup: Setup) -> Scenario:
        """The schedule that a cast was told."""
        return _scenario(self._plan, cast, setup, NAME)

    def cast(self) -> Cast:
        """An empty stage. Prompts are drawn anew, and are the same each time."""
        return _cast(self._plan, NAME, self._first)

    def examine(self, scenario: Scenario) -> None:
        """Play a schedule that was drawn. Raises ViolationError if it violates."""
        self._drawn += 1
        if self._lab.fails(scenario):
            self._found = scenario
            raise ViolationError

    def _kept(self) -> Iterator[Scenario]:
        for file in sorted(self._corpus.glob("*.json")):
            text = file.read_text(encoding="utf-8")
            yield schedule_file.loads(text, str(file), self._plan.model.path.resolve(), self._plan.mirror)

    def _draw(self) -> Scenario | None:
        number = self._first
        while not self._over():
            setup = SETUPS[number % len(SETUPS)]
            try:
                _run(partial(self._machine, setup), self._corpus, number)
            except (ViolationError, Flaky):  # the latter where it does not violate a second time
                return self._found
            number += 1
        return None

    def _machine(self, setup: Setup) -> Machine:
        return Machine(self.cast(), setup, self._lab.info, lambda cast: self.examine(self.scenario(cast, setup)))

    def _find(self, drawn: Scenario) -> Find:
        found = time.monotonic() - self._begun
        alone = self._lab.fails(drawn)
        small = Shrinker(self._lab.fails).shrink(drawn) if alone else drawn
        judged = self._lab.judge(small)
        return Find(judged, drawn, small, alone, self._drawn, time.monotonic() - self._begun, found)


def planned(settings: Settings) -> Plan:
    """The plan of a search: its seeds, and room for what is drawn. Raises UsageError for a model of other words."""
    plan = Plan(settings, _seeds)
    plan.longest = LONGEST
    return plan


def _seeds(plan: Plan) -> Iterator[Scenario]:
    for name, (setup, direct) in SEEDS.items():
        cast = _cast(plan, name, 0)
        direct(cast)
        yield _scenario(plan, cast, setup, name)


def _cast(plan: Plan, name: str, seed: int) -> Cast:
    layouts = plan.write_layouts(seed)
    if "canary" not in layouts:
        raise UsageError(f"schedules are drawn in the canary's words, and {plan.model.path} has others")
    return Cast(f"{name}-{_dtype(plan)}", layouts["canary"], plan.model.path.resolve(), plan.mirror)


def _scenario(plan: Plan, cast: Cast, setup: Setup, name: str) -> Scenario:
    return replace(cast.scenario(name, REQUIREMENT, setup, _dtype(plan)), hits=())


def _dtype(plan: Plan) -> str:
    return plan.dtypes[0]


def _run(make: Callable[[], Machine], corpus: Path, number: int) -> None:
    """Draw a round of schedules. Raises ViolationError with the first that violates."""
    chosen = budget(
        max_examples=ROUND,
        stateful_step_count=STEPS,
        deadline=None,
        database=DirectoryBasedExampleDatabase(corpus / "examples"),
        phases=(Phase.reuse, Phase.generate),
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
        print_blob=False,
    )
    run_state_machine_as_test(seed(number)(make), settings=chosen)  # type: ignore[arg-type]  # any factory will do


def hunt(settings: Settings, corpus: Path, seconds: float, outcomes: Counter[Outcome]) -> Iterator[tuple[Find, Path]]:
    """Search an engine for so long; each find with the file that it is kept in. `outcomes` counts what was played.

    Raises UsageError for a corpus that cannot be written or holds what is no schedule, and where no schedule at all
    came to a verdict: then nothing found says nothing.
    """
    try:
        corpus.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot write to corpus {corpus}: {error.strerror}; name another with --corpus") from error
    plan, end = planned(settings), time.monotonic() + seconds
    with Lab(settings, plan) as lab:
        for find in Search(lab, plan, corpus, lambda: time.monotonic() > end, settings.seed).finds():
            yield find, _keep(find, corpus)
        outcomes.update(lab.outcomes)
        if not {Outcome.CONFORMS, Outcome.VIOLATES} & outcomes.keys():
            told = ", ".join(f"{n} {outcome}" for outcome, n in outcomes.items())
            raise UsageError(f"no schedule came to a verdict ({told}); try one with `kvfence run --profile scenarios`")


def _keep(find: Find, corpus: Path) -> Path:
    """Keep a find for later searches, under a name that its schedule gives it: the same one is kept once."""
    text = schedule_file.dumps(find.small)
    file = corpus / f"find-{hashlib.sha256(text.encode()).hexdigest()[:12]}.json"
    write(text, file)
    return file
