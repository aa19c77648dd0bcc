"""Probes: a few scenarios that tell classes of faults apart, by which of them a fault shows in and which not."""

from collections.abc import Callable, Iterable, Iterator

from kvfence.conformance.scenarios.scenario import Scenario
from kvfence.conformance.subject import Subject
from kvfence.conformance.trial import Judged
from kvfence.reports.outcome import Outcome

# One mechanism each, as far as that can be; of two that exercise the same one the shorter.
PROBES = (
    "fork.in-a-block", "fork.at-the-edge", "cancel.decoding", "cancel.at-any-point", "transfer.fetched",
    "transfer.same-block-elsewhere", "key.media", "key.adapters", "key.salts", "key.weights", "preempt.parked",
    "preempt.for-room", "conversation.edited", "prefix.block-edges", "prefix.many", "batch.hits-and-misses",
    "evict.reset", "speculative.misled", "batch.ragged", "slot.recycled",
)  # fmt: skip
# Where there is a log it tells most: these break rules for who lets go of what others hold, too.
LOGGED = ("fork.at-the-edge", "fork.parent-withdrawn", "cancel.decoding")


def probe(cases: Iterable[Subject], first: Judged, judge: Callable[[Subject], Judged]) -> frozenset[str]:
    """Facts of a fault that was seen in one case, from what it does in those of `cases` that are probes.

    "fails:" and "holds:" name a scenario, "only:" the requirement that all which fail are about. Probes that come to
    no verdict say nothing.
    """
    names = LOGGED if first.driven.events else PROBES
    asked = first.driven.case
    probes = [case for case in cases if isinstance(case, Scenario) and case.name in names and case != asked]
    return frozenset(_facts([first, *map(judge, probes)]))


def _facts(tried: Iterable[Judged]) -> Iterator[str]:
    requirements = set()
    for judged in tried:
        case = judged.driven.case
        name = case.name if isinstance(case, Scenario) else case.requirement
        if judged.ruling.outcome is Outcome.VIOLATES:
            requirements.add(case.requirement)
            yield f"fails:{name}"
            yield from (f"case:{breach.kind}" for answer in judged.driven.answers for breach in answer.breaches)
        elif judged.ruling.outcome is Outcome.CONFORMS:
            yield f"holds:{name}"
    if len(requirements) == 1:
        yield f"only:{requirements.pop()}"
