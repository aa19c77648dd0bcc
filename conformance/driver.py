"""The driver: opens the engine as a case needs it, hands over the requests, and says what came of it."""

import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import count

from kvfence.adapters import registry
from kvfence.adapters.api import (
    AdapterError,
    EngineConfig,
    EngineFaultError,
    Request,
    Support,
    UnsupportedConfigError,
)
from kvfence.adapters.check import check_completions, check_observed
from kvfence.adapters.host import Host, make_host
from kvfence.adapters.observation import CacheEvent, Observed
from kvfence.adapters.player import Played
from kvfence.adapters.schedule import Schedule, Verb, anew
from kvfence.adapters.wire import EngineInfo
from kvfence.conformance.case import Case
from kvfence.conformance.control import Control
from kvfence.conformance.driven import PRIMER, Answer, Driven
from kvfence.conformance.leave_out import scenario_without
from kvfence.conformance.oracles.blocks import Ledger
from kvfence.conformance.oracles.twin import TwinEvidence
from kvfence.conformance.performance import check_played, marks
from kvfence.conformance.plan import Plan
from kvfence.conformance.scenarios.scenario import Scenario
from kvfence.conformance.settings import Settings, UsageError
from kvfence.conformance.stage import Stage, unplayable
from kvfence.conformance.subject import Subject
from kvfence.conformance.twins import examine_twins, unsettled
from kvfence.prompts.prompt import Prompt
from kvfence.reports.outcome import Outcome
from kvfence.reports.records import EngineRecord


class Driver:
    """One engine under test. `opened` is called with a record each time it is opened to drive cases."""

    def __init__(
        self, settings: Settings, plan: Plan, opened: Callable[[EngineRecord], None], host: Host | None = None
    ) -> None:
        self._settings, self._plan, self._opened = settings, plan, opened
        spec, path = registry.spec(settings.engine), str(plan.model.path.resolve())
        self._host = host or make_host(spec, path, settings.deadline, settings.in_process)
        self._started = False
        self._known: EngineInfo | None = None
        self._ledger = Ledger()
        self._lost = False  # a part of the log: what is left of it may seem to break rules
        self._solos = 0
        self._plays = count()

    def close(self) -> None:
        """End the engine."""
        self._host.close()

    def drive(self, case: Subject, prepare: Callable[[EngineInfo], bool]) -> Driven:
        """Run a case's requests; `prepare` may use the opened engine first and says whether it did.

        Its time is not counted. Raises UsageError if the engine has never started and does not, or lacks a dtype that
        was asked for.
        """
        try:
            info = self._open(case)
            if refused := _refused(case, info):
                outcome, reason = refused
                return Driven(case, info, outcome=outcome, reason=reason)
            if prepare(info) and info.can("reset_cache"):
                # What measuring left in the cache is nobody's business.
                self._host.reset_cache()
            return self._run(case, info)
        except UnsupportedConfigError as error:
            if case.dtype in self._settings.dtypes or not self._started:
                raise UsageError(str(error)) from error
            return Driven(case, outcome=Outcome.NOT_APPLICABLE, reason=str(error))
        except AdapterError as error:
            if not self._started:
                raise UsageError(f"the engine did not start: {error}") from error
            # The case is named already; without it, equal reasons of many cases read as one.
            return Driven(case, outcome=Outcome.SUITE_ERROR, reason=str(error).replace(f"{case.id}/", ""))

    def again(self, case: Subject, one_by_one: bool = False, without: Collection[str] = ()) -> Driven:
        """Run a case's requests once more, on a fresh engine; one at a time is as under a global lock.

        Some may be left out, by name.
        """
        try:
            begun = time.monotonic()
            info = self._host.restart()
            self._begin(self._config(case), info, begun)
            return self._run(case, info, one_by_one, without)
        except AdapterError as error:
            return Driven(case, outcome=Outcome.SUITE_ERROR, reason=str(error))

    def emptied(self, case: Subject, without: Collection[str] = ()) -> Driven:
        """Run a case's requests once more, without some of them, from an empty cache: on a fresh engine if need be."""
        if self._known is None or not self._known.can("reset_cache"):
            return self.again(case, without=without)
        try:
            info = self._open(case)
            self._host.reset_cache()
            return self._run(case, info, False, without)
        except AdapterError as error:
            return Driven(case, outcome=Outcome.SUITE_ERROR, reason=str(error))

    def solo(self, prompt: tuple[int, ...], n: int) -> Answer:
        """One request by itself, in a cache that holds nothing as far as the engine can be told to: a clean run."""
        try:
            return self._solo(prompt, n)
        except EngineFaultError:
            if self._known is None or self._host.info is not self._known:
                raise
            # An engine that gives up a request now and then, and lives on, has clean runs all the same.
            return self._solo(prompt, n)

    def _solo(self, prompt: tuple[int, ...], n: int) -> Answer:
        if self._known and self._known.can("reset_cache"):
            self._host.reset_cache()
        self._solos += 1
        request = Request(f"noise/{self._solos}", prompt, n)
        return self._call([(Prompt("", "", prompt, 0, (), ()), request)])[0][0]

    def _config(self, case: Subject) -> EngineConfig:
        return self._settings.config(case, self._plan.pool_size)

    def _open(self, case: Subject) -> EngineInfo:
        begun = time.monotonic()
        config = self._config(case)
        info = self._host.open(config)
        self._started = True
        if info is self._known and self._lost:
            info = self._host.restart()
        if info is not self._known:
            self._begin(config, info, begun)
        return info

    def _begin(self, config: EngineConfig, info: EngineInfo, begun: float) -> None:
        """Start with an engine that has just been opened, and holds nothing yet."""
        self._known, self._ledger, self._lost = info, Ledger(), False
        self._opened(
            EngineRecord(
                config={k: v for k, v in vars(config).items() if v is not None},
                name=info.name,
                version=info.version,
                block_size=info.block_size,
                capabilities={
                    name: {"state": str(c.state), "reason": c.reason} for name, c in info.capabilities.items()
                },
                seconds=time.monotonic() - begun,
            )
        )

    def _run(self, case: Subject, info: EngineInfo, one_by_one: bool = False, without: Collection[str] = ()) -> Driven:
        if isinstance(case, Scenario):
            return self._play(scenario_without(case, without), info)
        begun = time.monotonic()
        prompts = [prompt for prompt in self._plan.prompts(case) if prompt.name not in without]
        answers, events = self._round(case, prompts, one_by_one)
        control = _control(answers)
        if case.mode == "shared" and control.missed(info.block_size) and info.can("reset_cache"):
            # An engine that shares only what is finished: begin anew, with every prefix in the cache.
            self._host.reset_cache()
            primers = _primers(case, prompts)
            primed, priming = self._round(case, primers, one_by_one=True, n=2)
            warm, more = self._round(case, [replace(p, name=f"{p.name}-primed") for p in prompts], one_by_one)
            control = _control(warm, primers)
            # A primer asks nothing, so that golden's margins say little of its output: it counts where it is hit.
            answers = [*answers, *(answer for answer in primed if answer.breaches), *warm]
            events = [*events, *priming, *more]
        return Driven(case, info, tuple(answers), control, tuple(events), time.monotonic() - begun)

    def _play(self, scenario: Scenario, info: EngineInfo) -> Driven:
        begun = time.monotonic()
        if info.can("reset_cache"):
            self._host.reset_cache()
        # What a schedule that breaks off leaves behind, other weights above all, is not gone on with.
        self._lost = True
        played = self._played(scenario, scenario.schedule)
        layout, seen = self._plan.layout(scenario), self._settings.observe
        emptied = info.can("reset_cache")
        order = {"in_waves": not info.can("session"), "ordered": not info.lacks("ordered")}
        stage = Stage(scenario, played, layout, seen, emptied=emptied, block_size=info.block_size, **order)
        breaches = self._ledger.replay(stage.observed.events, stage.tokens)
        twins = self._twins(scenario, played, self._settings.plan.twins)
        # Nor are adapters that are still loaded, which no reset takes back.
        self._lost = any(operation.verb in (Verb.WEIGHTS, Verb.ADAPTER) for operation in scenario.schedule)
        answers = stage.answers(breaches, twins)
        return Driven(
            scenario,
            info,
            answers,
            stage.control,
            stage.observed.events,
            time.monotonic() - begun,
            reason=stage.silent or unsettled(twins),
        )

    def twin(self, scenario: Scenario, name: str) -> TwinEvidence | None:
        """What exchanging its neighbours' secrets does to one request; None if that cannot be tried."""
        try:
            self._open(scenario)
            played = self._emptied(scenario, scenario.schedule)
            return next(iter(self._twins(scenario, played, 1, name).values()), None)
        except AdapterError:
            return None

    def _emptied(self, scenario: Scenario, schedule: Schedule) -> Played:
        self._host.reset_cache()
        return self._played(scenario, schedule)

    def _played(self, scenario: Scenario, schedule: Schedule) -> Played:
        played = self._host.play(anew(schedule, next(self._plays)))
        return check_played(scenario, played, self._plan.model.vocabulary)

    def _twins(
        self, scenario: Scenario, played: Played, limit: int, only: str | None = None
    ) -> dict[str, TwinEvidence]:
        """What exchanging secrets shows, where the engine can be made to forget what it has cached."""
        if self._known is None or not self._known.can("reset_cache"):
            return {}
        return examine_twins(scenario, played, limit, partial(self._emptied, scenario), only)

    def _round(
        self, case: Case, prompts: Sequence[Prompt], one_by_one: bool, n: int | None = None
    ) -> tuple[list[Answer], list[CacheEvent]]:
        """Hand requests over as the mode says: one call each, or all in one."""
        n = n or self._settings.plan.max_tokens
        requests = [(prompt, Request(f"{case.id}/{prompt.name}", prompt.tokens, n)) for prompt in prompts]
        alone = one_by_one or case.mode == "serial" or case.company == "alone"
        answers: list[Answer] = []
        events: list[CacheEvent] = []
        for call in [[request] for request in requests] if alone else [requests]:
            answered, seen = self._call(call)
            answers += answered
            events += seen
        return answers, events

    def _call(self, sent: Sequence[tuple[Prompt, Request]]) -> tuple[list[Answer], tuple[CacheEvent, ...]]:
        requests = [request for _, request in sent]
        try:
            completions = check_completions(requests, self._host.generate(requests), self._plan.model.vocabulary)
        except AdapterError:
            self._give_up(requests)
            raise
        seen = self._observe(requests)
        tokens = {r.id: marks((*r.prompt, *c.tokens)) for r, c in zip(requests, completions, strict=True)}
        breaches = self._ledger.replay(seen.events, tokens)
        answers = [
            Answer(
                prompt,
                completion,
                seen.attention.get(r.id),
                tuple(b for b in breaches if b.victim == r.id),
                seen.kv.get(r.id),
            )
            for (prompt, r), completion in zip(sent, completions, strict=True)
        ]
        return answers, seen.events

    def _give_up(self, requests: Sequence[Request]) -> None:
        """Take what an engine that lives on has noted of a failed call, or it would seem to be of the next one."""
        if self._host.info is self._known:
            with suppress(AdapterError):
                self._ledger.replay_failed(self._observe([]).events, {r.id: marks(r.prompt) for r in requests})

    def _observe(self, requests: Sequence[Request]) -> Observed:
        if not self._settings.observe:
            return Observed()
        try:
            return check_observed(requests, self._host.observe())
        except AdapterError:
            self._lost = True
            raise


def _control(answers: Sequence[Answer], before: Sequence[Prompt] = ()) -> Control:
    prompts = [answer.prompt.tokens for answer in answers]
    return Control.of(prompts, [answer.completion for answer in answers], [prompt.tokens for prompt in before])


def _primers(case: Case, prompts: Sequence[Prompt]) -> list[Prompt]:
    """Requests that bring every prefix of a case into the cache; whole prompts, where those are what is shared."""
    heads = {p.tokens if case.edge.repeated else p.tokens[: p.prefix_tokens]: p for p in prompts if p.prefix_tokens}
    return [Prompt(f"{PRIMER}{i}", p.group, head, len(head), (), ()) for i, (head, p) in enumerate(heads.items())]


def _refused(case: Subject, info: EngineInfo) -> tuple[Outcome, str] | None:
    """Why an engine cannot be driven through a case, if it cannot."""
    if isinstance(case, Scenario):
        return unplayable(case, info)
    sharing = info.capabilities.get("sharing")
    if case.mode == "shared" and sharing is not None and sharing.state is Support.UNSUPPORTED:
        return Outcome.NOT_APPLICABLE, f"the engine does not share prefixes: {sharing.reason or 'no reason given'}"
    return None
