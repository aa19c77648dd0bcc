"""The ladder: what a violation still takes when one thing after another is made simpler.

Prompts equal, sharing off, one at a time, steps serialised; then what the log of the cache says, and the smallest
schedule. Where the fault stops tells what it is made of.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from kvfence.adapters.schedule import Moment, Operation, Verb
from kvfence.conformance.oracles.slots import Breach
from kvfence.conformance.scenarios.scenario import Scenario
from kvfence.conformance.shrink import Shrinker, Size
from kvfence.conformance.trial import Judged
from kvfence.reports.outcome import Outcome
from kvfence.reports.records import Rung
from kvfence.reports.text import count

Judge = Callable[[Scenario], Judged]
QUESTIONS = 60  # that may be asked to find the smallest schedule


@dataclass(frozen=True)
class Climbed:
    """Rungs, lowest first, and the smallest schedule that was found to violate."""

    rungs: tuple[Rung, ...]
    smallest: Scenario


def climb(scenario: Scenario, first: Judged, judge: Judge) -> Climbed:
    """Climb from a schedule that violates, as `first` says."""
    rungs = [_asked(name, told, simpler, judge) for name, told, simpler in _simpler(scenario)]
    breaches = [breach for answer in first.driven.answers for breach in answer.breaches]
    logged = bool(first.driven.events)
    rungs.append(_log("block log", [b for b in breaches if b.kind not in ("key", "fork")], logged, scenario))
    rungs.append(_log("key log", [b for b in breaches if b.kind in ("key", "fork")], logged, scenario))
    if rungs[0].state != "fails":
        rungs.append(Rung("smallest schedule", "unknown", "it does not violate by itself"))
        return Climbed(tuple(rungs), scenario)
    smallest = Shrinker(lambda smaller: _violates(judge(smaller)), QUESTIONS).shrink(scenario)
    size = Size.of(smallest)
    sizes = {"request": size.requests, "operation": size.operations, "token": size.tokens}
    told = f"{', '.join(count(n, what) for what, n in sizes.items())} still violate"
    rungs.append(Rung("smallest schedule", "fails", told))
    return Climbed(tuple(rungs), smallest)


def _asked(name: str, told: str, simpler: Scenario, judge: Judge) -> Rung:
    judged = judge(simpler)
    outcome = judged.ruling.outcome
    if outcome is Outcome.VIOLATES:
        return Rung(name, "fails", f"{told}: {judged.ruling.reason}")
    if outcome is Outcome.CONFORMS:
        return Rung(name, "holds", f"{told}: all answers are golden's")
    return Rung(name, "unknown", f"{told}: {judged.ruling.reason}")


def _log(name: str, breaches: list[Breach], logged: bool, scenario: Scenario) -> Rung:
    if not logged:
        return Rung(name, "unknown", "the engine shows no log of its cache")
    if not breaches:
        return Rung(name, "holds", "no rule broke")
    first = breaches[0]
    more = f" (and {len(breaches) - 1} more)" if len(breaches) > 1 else ""
    return Rung(name, "fails", f"{scenario.short(first.victim)} {first.told}".replace(f"{scenario.id}/", "") + more)


def _violates(judged: Judged) -> bool:
    return judged.ruling.outcome is Outcome.VIOLATES


def _simpler(scenario: Scenario) -> Iterator[tuple[str, str, Scenario]]:
    """Each rung's schedule: its name, what is made simpler in a clause, and the schedule."""
    scenario = replace(scenario, hits=())
    yield "as it is", "run again from an empty cache", scenario
    yield "prompts equal", "with one prompt for all", _equal(scenario)
    yield "sharing off", "with nothing shared", replace(scenario, setup=replace(scenario.setup, sharing=False))
    yield (
        "concurrency 1",
        "with room for one at a time",
        replace(scenario, setup=replace(scenario.setup, concurrency=1)),
    )
    yield "steps serialised", "with each request begun when the one before has ended", _serialised(scenario)


def _equal(scenario: Scenario) -> Scenario:
    """With the longest prompt in the place of all others that begin no later turn."""
    requests = [op.request for op in scenario.schedule if op.request]
    longest = max((r for r in requests if r.conversation is None), key=lambda r: len(r.prompt), default=None)
    if longest is None:
        return scenario
    of = scenario.prompts[scenario.short(longest.id)]

    def same(operation: Operation) -> Operation:
        request = operation.request
        if request is None or request.conversation is not None:
            return operation
        return replace(operation, request=replace(request, prompt=longest.prompt))

    alone = {scenario.short(r.id) for r in requests if r.conversation is None}
    prompts = {name: replace(of, name=name) if name in alone else old for name, old in scenario.prompts.items()}
    return replace(scenario, schedule=tuple(map(same, scenario.schedule)), prompts=prompts)


def _serialised(scenario: Scenario) -> Scenario:
    """With each request handed over once the one before it has ended; what is done to one happens while it runs."""
    touching = (Verb.CANCEL, Verb.FORK, Verb.PREEMPT)
    withdrawn = {op.target for op in scenario.schedule if op.verb is Verb.CANCEL}
    schedule: list[Operation] = []
    last: Moment | None = None
    for operation in scenario.schedule:
        if operation.verb not in (Verb.STEP, *touching):
            schedule.append(replace(operation, when=last))
        if operation.request:
            schedule += [op for op in scenario.schedule if op.verb in touching and op.target == operation.target]
            if operation.target not in withdrawn:
                last = Moment(operation.target)
    return replace(scenario, schedule=tuple(schedule))
