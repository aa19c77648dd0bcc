"""A schedule: requests and operations on them, each timed by what requests have emitted and never by a clock.

It is plain data. Operations are done in their order, each as soon as its moment has come; in between the engine steps.
"""

from dataclasses import dataclass, replace
from enum import StrEnum

from kvfence.adapters.api import Request


class Verb(StrEnum):
    """What an operation does."""

    SUBMIT = "submit"  # hand `request` over
    CANCEL = "cancel"  # withdraw the request `target`
    FORK = "fork"  # others go on from the request `target`, one for each of `tokens`
    PREEMPT = "preempt"  # take the request `target` out of the batch
    EDIT = "edit"  # replace the history of the conversation `target` by `tokens`
    RESET = "reset"  # forget everything cached
    ADAPTER = "adapter"  # load the LoRA adapter in `folder` under the name `target`
    WEIGHTS = "weights"  # go on with the weights of the model in `folder`
    STEP = "step"  # run one forward pass


@dataclass(frozen=True)
class Moment:
    """When `request` has emitted `tokens` tokens, or, if None, when it has ended by itself."""

    request: str
    tokens: int | None = None


@dataclass(frozen=True)
class Operation:
    """One operation, done once `when` has come; at once where there is none."""

    verb: Verb
    target: str = ""
    when: Moment | None = None
    request: Request | None = None
    tokens: tuple[int, ...] = ()
    folder: str = ""


Schedule = tuple[Operation, ...]


def submit(request: Request, when: Moment | None = None) -> Operation:
    """Hand a request over."""
    return Operation(Verb.SUBMIT, request.id, when, request)


def anew(schedule: Schedule, time: int) -> Schedule:
    """A schedule with conversations of its own: an engine remembers what was said in those it knows."""
    return tuple(_anew(operation, time) for operation in schedule)


def _anew(operation: Operation, time: int) -> Operation:
    request = operation.request
    if operation.verb is Verb.EDIT:
        return replace(operation, target=f"{operation.target}#{time}")
    if request is None or request.conversation is None:
        return operation
    return replace(operation, request=replace(request, conversation=f"{request.conversation}#{time}"))


# The capability that an engine with sessions needs for an operation, where it is not one that all have.
NEEDS = {
    Verb.FORK: "fork",
    Verb.PREEMPT: "preempt",
    Verb.EDIT: "conversations",
    Verb.RESET: "reset_cache",
    Verb.ADAPTER: "adapters",
    Verb.WEIGHTS: "weights",
}


def capabilities(schedule: Schedule) -> set[str]:
    """Names of the capabilities that it takes to run a schedule."""
    requests = [operation.request for operation in schedule if operation.request]
    wanted = {NEEDS[operation.verb] for operation in schedule if operation.verb in NEEDS}
    wanted |= {"salt" for request in requests if request.salt is not None}
    wanted |= {"adapters" for request in requests if request.adapter is not None}
    wanted |= {"media" for request in requests if request.media}
    wanted |= {"conversations" for request in requests if request.conversation is not None}
    return wanted if waves(schedule) is not None else wanted | {"session"}


def served_before(schedule: Schedule, *, ended: bool) -> dict[str, frozenset[str]]:
    """For each request those that found nothing of it in the cache, as something had come of them when it came.

    With `ended`, those that had ended: one that is pushed out is begun anew, and then finds what came meanwhile.
    """
    come: set[str] = set()
    found = {}
    for operation in schedule:
        if operation.when and not (ended and operation.when.tokens is not None):
            come.add(operation.when.request)
        if operation.request:
            found[operation.request.id] = frozenset(come)
    return found


def waves(schedule: Schedule) -> list[list[Request]] | None:
    """A schedule as batches, one after another, for an engine that can only run those; None if it is more.

    A request that waits for another one to end begins a batch, and that one must be of the batch before.
    """
    batches: list[list[Request]] = []
    for operation in schedule:
        if operation.verb is not Verb.SUBMIT or operation.request is None:
            return None
        if operation.when is None:
            batches = batches or [[]]
            batches[-1].append(operation.request)
            continue
        known = {request.id for request in batches[-1]} if batches else set()
        if operation.when.tokens is not None or operation.when.request not in known:
            return None
        batches.append([operation.request])
    return batches
