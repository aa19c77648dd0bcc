"""Leaving out: a case without some of its requests, to see whether it takes them."""

from collections.abc import Collection
from dataclasses import replace

from kvfence.adapters.schedule import Moment, Operation, Schedule, Verb
from kvfence.conformance.scenarios.scenario import Scenario


def scenario_without(scenario: Scenario, names: Collection[str]) -> Scenario:
    """A scenario without the requests of these names, their forks, and what was done to them."""
    gone = {f"{scenario.id}/{name}" for name in names}
    hits = tuple(name for name in scenario.hits if name not in names)
    refused = tuple(name for name in scenario.refused if name not in names)
    return replace(scenario, schedule=without(scenario.schedule, gone), hits=hits, refused=refused)


def without(schedule: Schedule, gone: Collection[str]) -> Schedule:
    """A schedule without these requests; what waited for one of them waits for what that one waited for."""
    waited = {op.request.id: op.when for op in schedule if op.request}
    talks = {op.request.conversation for op in schedule if op.request and op.request.id not in gone}

    def kept(operation: Operation) -> bool:
        if operation.verb is Verb.EDIT:
            return operation.target in talks
        return (operation.request.id if operation.request else operation.target) not in gone

    def moment(when: Moment | None) -> Moment | None:
        while when and when.request in gone:
            when = waited[when.request]
        return when

    return tuple(replace(op, when=moment(op.when)) for op in schedule if kept(op))
