"""The driver: opens the engine as a case needs it, hands over the requests, and says what came of it."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvfence.adapters import registry
from kvfence.adapters.api import (
    AdapterError,
    Completion,
    Request,
    Support,
    UnsupportedConfigError,
    check_completions,
)
from kvfence.adapters.host import make_host
from kvfence.adapters.wire import EngineInfo
from kvfence.conformance.case import Case
from kvfence.conformance.plan import Plan
from kvfence.conformance.settings import Settings, UsageError
from kvfence.reports.outcome import Outcome
from kvfence.reports.records import EngineRecord


@dataclass(frozen=True)
class Driven:
    """What an engine did with a case: completions in the order of its prompts, or why there are none."""

    case: Case
    info: EngineInfo | None = None
    completions: tuple[Completion, ...] = ()
    seconds: float = 0.0  # that the engine's calls took
    outcome: Outcome | None = None  # decided already, without an oracle
    reason: str = ""


class Driver:
    """One engine under test. `opened` is called with a record whenever it is opened anew."""

    def __init__(self, settings: Settings, plan: Plan, opened: Callable[[EngineRecord], None]) -> None:
        self._settings, self._plan, self._opened = settings, plan, opened
        spec, path = registry.spec(settings.engine), str(plan.model.path.resolve())
        self._host = make_host(spec, path, settings.deadline, settings.in_process)
        self._started = False
        self._known: EngineInfo | None = None

    def close(self) -> None:
        """End the engine."""
        self._host.close()

    def drive(self, case: Case, prepare: Callable[[EngineInfo], None]) -> Driven:
        """Run a case's requests; `prepare` may use the opened engine first, its time is not counted.

        Raises UsageError if the engine has never started and does not, or lacks a dtype that was asked for.
        """
        try:
            info = self._open(case)
            if reason := _not_applicable(case, info):
                return Driven(case, info, outcome=Outcome.NOT_APPLICABLE, reason=reason)
            prepare(info)
            begun = time.monotonic()
            completions = self._generate(case)
            return Driven(case, info, completions, time.monotonic() - begun)
        except UnsupportedConfigError as error:
            if case.dtype in self._settings.dtypes or not self._started:
                raise UsageError(str(error)) from error
            return Driven(case, outcome=Outcome.NOT_APPLICABLE, reason=str(error))
        except AdapterError as error:
            if not self._started:
                raise UsageError(f"the engine did not start: {error}") from error
            # The case is named already; without it, equal reasons of many cases read as one.
            return Driven(case, outcome=Outcome.SUITE_ERROR, reason=str(error).replace(f"{case.id}/", ""))

    def solo(self, prompt: tuple[int, ...], n: int) -> Completion:
        """One request by itself, for measuring noise."""
        return self._call([Request("noise", prompt, n)])[0]

    def _open(self, case: Case) -> EngineInfo:
        begun = time.monotonic()
        config = self._settings.config(case)
        info = self._host.open(config)
        self._started = True
        if info is not self._known:
            self._known = info
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
        return info

    def _generate(self, case: Case) -> tuple[Completion, ...]:
        """Hand the requests over as the mode says: one call each, or all in one."""
        n = self._settings.plan.max_tokens
        requests = [Request(f"{case.id}/{p.name}", p.tokens, n) for p in self._plan.prompts(case)]
        one_by_one = case.mode == "serial" or case.company == "alone"
        calls = [[request] for request in requests] if one_by_one else [requests]
        return tuple(completion for call in calls for completion in self._call(call))

    def _call(self, requests: Sequence[Request]) -> list[Completion]:
        return check_completions(requests, self._host.generate(requests), self._plan.model.vocabulary)


def _not_applicable(case: Case, info: EngineInfo) -> str | None:
    sharing = info.capabilities.get("sharing")
    if case.mode == "shared" and sharing is not None and sharing.state is Support.UNSUPPORTED:
        return f"the engine does not share prefixes: {sharing.reason or 'no reason given'}"
    return None
