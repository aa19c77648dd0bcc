"""Triggers: the requests of a case without which its victim would not have been hit."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from kvfence.adapters.api import EngineFaultError
from kvfence.conformance.driven import PRIMER, Driven
from kvfence.conformance.scenarios.scenario import Scenario
from kvfence.reports.finding import Finding

MOST = 8  # neighbours that are left out, one by one

Harmed = Callable[[Collection[str]], Collection[str]]  # requests that are hit without these; EngineFaultError


@dataclass(frozen=True)
class Trigger:
    """What leaving out neighbours has shown."""

    requests: tuple[str, ...]  # without each of which the victim is not hit
    takes: str  # neighbours, several, nobody, before (the case), or unknown
    how: str  # one sentence


def find_trigger(driven: Driven, victim: Finding, harmed: Harmed) -> Trigger:
    """Run a case again without its victim's neighbours: all of them, then one after the other."""
    if victim.victim.startswith(PRIMER):
        return Trigger((), "unknown", "it only brings a prefix for the others: none can be left out")
    try:
        return _find(neighbours(driven, victim), victim.victim, harmed)
    except EngineFaultError as error:
        return Trigger((), "unknown", f"it could not be tried again: {error}")


def _find(others: Sequence[str], victim: str, harmed: Harmed) -> Trigger:
    if victim not in harmed(()):
        return Trigger((), "before", "run again by itself the case is golden's: it takes what came before")
    if not others or victim in harmed(others):
        return Trigger((), "nobody", "it happens without its neighbours too")
    found = tuple(name for name in others[:MOST] if victim not in harmed([name]))
    if not found:
        return Trigger((), "several", "it happens with any one neighbour left out, and not without all of them")
    return Trigger(found, "neighbours", f"it does not happen without {' or '.join(found)}")


def neighbours(driven: Driven, finding: Finding) -> list[str]:
    """Requests that can be left out and the victim's prompt stays what it is; the source comes first."""
    case, victim = driven.case, finding.victim
    if isinstance(case, Scenario):
        requests = {op.request.id.rpartition("/")[2]: op.request for op in case.schedule if op.request}
        own = requests.get(victim) or requests[victim.rpartition(".")[0]]
        talk = own.conversation
        names = [n for n, r in requests.items() if r is not own and (talk is None or r.conversation != talk)]
    else:
        names = list(dict.fromkeys(a.prompt.name.removesuffix("-primed") for a in driven.answers))
        names = [name for name in names if name != victim.removesuffix("-primed")]
    return sorted(names, key=lambda name: name != finding.source)
