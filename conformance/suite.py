"""The suite: drives an engine through the cases of a plan, judges what it answered, and records each verdict."""

import platform
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from secrets import token_hex
from types import TracebackType
from typing import Self

from kvfence.conformance.case import Case
from kvfence.conformance.driver import Driven, Driver
from kvfence.conformance.judge import Control, Observation, Ruling, ask, finding, rule
from kvfence.conformance.oracles.canary import Owner, Owners
from kvfence.conformance.plan import Plan
from kvfence.conformance.settings import Settings, UsageError
from kvfence.conformance.yardstick import Yardstick
from kvfence.reports.outcome import Outcome
from kvfence.reports.records import CaseRecord, EndRecord, RecordError, RequestRecord, RunRecord, Writer

PACKAGES = ("kvfence", "torch", "transformers", "tokenizers", "numpy")
# Golden continuations shown in a report are decoded token by token; a badly broken engine must not cost hours.
CONTINUATIONS = 12


def new_run() -> str:
    """A sortable id for a run."""
    return f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{token_hex(2)}"


class Suite:
    """One run of a plan on an engine, by one worker. Raises UsageError if its records cannot be written."""

    def __init__(self, settings: Settings, plan: Plan, run: str, worker: str = "main") -> None:
        self.settings, self.plan, self.run = settings, plan, run
        self._begun = time.monotonic()
        try:
            self._writer = Writer(settings.report, run, worker)
        except RecordError as error:
            raise UsageError(str(error)) from error
        self.outcomes: list[Outcome] = []
        self._writer.write(self._header())
        self._driver = Driver(settings, plan, self._writer.write)
        self._yardstick = Yardstick(settings, plan, self._writer)
        self._owners = Owners()
        self._continuations = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the engine's process and the record file."""
        self._driver.close()
        self._writer.close()

    def finish(self, exit_code: int) -> None:
        """Record that the run came to its end."""
        self._writer.write(EndRecord(time.monotonic() - self._begun, exit_code))

    def examine(self, case: Case) -> CaseRecord:
        """Run one case and record its verdict. Raises UsageError if the engine has never started and does not."""
        return self._conclude(self._drive(case))

    def run_all(self, cases: Iterable[Case]) -> Iterator[CaseRecord]:
        """Examine cases in order, judging each while the engine already works on the next."""
        pending: Future[CaseRecord] | None = None
        with ThreadPoolExecutor(1) as judge:
            for case in cases:
                # Another dtype needs another golden, and measuring noise the engine and golden both.
                if pending and not self._yardstick.ready(case):
                    yield pending.result()
                    pending = None
                driven = self._drive(case)
                if pending:
                    yield pending.result()
                pending = judge.submit(self._conclude, driven)
            if pending:
                yield pending.result()

    def _drive(self, case: Case) -> Driven:
        return self._driver.drive(case, lambda info: self._yardstick.prepare(case, info, self._driver.solo))

    def _conclude(self, driven: Driven) -> CaseRecord:
        begun = time.monotonic()
        if driven.outcome is not None:
            return self._record(driven, Ruling(driven.outcome, driven.reason))
        golden = self._yardstick.golden(driven.case.dtype)
        prompts = self.plan.prompts(driven.case)
        observations = [
            Observation(prompt, completion, golden.verify(prompt.tokens, completion.tokens))
            for prompt, completion in zip(prompts, driven.completions, strict=True)
        ]
        control = Control.of(prompts, driven.completions)
        ruling = self._rule(driven, observations, control)
        return self._record(driven, ruling, observations, control, time.monotonic() - begun)

    def _rule(self, driven: Driven, observations: Sequence[Observation], control: Control) -> Ruling:
        case, layout = driven.case, self.plan.layout(driven.case)
        for observation in observations:
            self._owners.add(Owner(case.id, observation.prompt.name), observation.prompt.words)
        tolerance, complaint = self._yardstick.tolerance(case)
        secrets = {word: o.prompt.name for o in observations for word in o.prompt.secret}
        findings, ties = [], 0
        for observation in observations:
            evidence = ask(case, observation, tolerance, self._owners, layout)
            ties += len(evidence.golden.ties)
            if evidence.harmed:
                expected = self._continuation(case, observation)
                findings.append(finding(case, observation, evidence, expected, secrets, layout, tolerance.epsilon))
        if complaint and not tolerance.exact and not any("canary" in found.oracles for found in findings):
            return Ruling(Outcome.INCONCLUSIVE, complaint, (), ties)
        assert driven.info is not None
        return rule(case, control, driven.info.block_size, tuple(findings), ties)

    def _continuation(self, case: Case, observation: Observation) -> Sequence[int]:
        if self._continuations == CONTINUATIONS:
            return ()
        self._continuations += 1
        n = len(observation.completion.tokens)
        return self._yardstick.golden(case.dtype).generate(observation.prompt.tokens, n)

    def _record(
        self,
        driven: Driven,
        ruling: Ruling,
        observations: Sequence[Observation] = (),
        control: Control | None = None,
        suite_seconds: float = 0.0,
    ) -> CaseRecord:
        case = driven.case
        record = CaseRecord(
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
            reproduce=self.settings.command(case, [f.source_case for f in ruling.findings if f.source_case]),
            engine_seconds=driven.seconds,
            suite_seconds=suite_seconds,
            shareable_tokens=control.shareable if control else None,
            cached_tokens=control.cached if control else None,
            positions=sum(len(o.completion.tokens) for o in observations),
            ties=ruling.ties,
            requests=tuple(_request(observation) for observation in observations),
            findings=ruling.findings,
        )
        self._writer.write(record)
        self.outcomes.append(record.outcome)
        return record

    def _header(self) -> RunRecord:
        return RunRecord(
            run=self.run,
            command=self.settings.command(),
            started=datetime.now(UTC).isoformat(timespec="seconds"),
            kvfence=_version("kvfence"),
            engine=self.settings.engine,
            engine_args=self.settings.engine_args,
            model=self.settings.model,
            model_kind=self.plan.model.kind,
            profile=self.settings.profile,
            seed=self.settings.seed,
            cases=len(self.plan.cases),
            versions={"python": platform.python_version(), **{name: _version(name) for name in PACKAGES}},
        )


def _request(observation: Observation) -> RequestRecord:
    prompt, completion = observation.prompt, observation.completion
    return RequestRecord(
        request=prompt.name,
        group=prompt.group,
        prompt_tokens=len(prompt.tokens),
        prefix_tokens=prompt.prefix_tokens,
        secret=" ".join(prompt.secret),
        output=completion.tokens,
        cached_tokens=completion.cached_tokens,
    )


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
