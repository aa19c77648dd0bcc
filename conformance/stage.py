"""The stage: a scenario that was played, as answers with all that was seen of them."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from math import ceil

from kvfence.adapters.api import Support
from kvfence.adapters.check import check_observed
from kvfence.adapters.observation import Attention, Observed
from kvfence.adapters.player import Played
from kvfence.adapters.schedule import Verb, capabilities, served_before, waves
from kvfence.adapters.wire import EngineInfo
from kvfence.conformance.control import Control, servable
from kvfence.conformance.driven import Answer
from kvfence.conformance.oracles import side
from kvfence.conformance.oracles.canary import Owner
from kvfence.conformance.oracles.side import Sent, SideEvidence, TimeEvidence
from kvfence.conformance.oracles.slots import Breach
from kvfence.conformance.oracles.twin import TwinEvidence
from kvfence.conformance.performance import Part, marked, parts
from kvfence.conformance.scenarios.scenario import Scenario
from kvfence.conformance.subject import Subject
from kvfence.prompts.groups import Layout
from kvfence.reports.outcome import Outcome


def wanted(case: Subject) -> set[str]:
    """Names of the capabilities that an engine must have for a case."""
    needed = {"sharing"} if case.mode == "shared" else set()
    if isinstance(case, Scenario):
        needed |= capabilities(case.schedule)
        needed |= {"session"} if case.refused else set()  # a call is refused as a whole
    return needed


def unplayable(scenario: Scenario, info: EngineInfo) -> tuple[Outcome, str] | None:
    """Why a scenario cannot be played on an engine, if it cannot."""
    for name in sorted(wanted(scenario)):
        known = info.capabilities.get(name)
        if known is None or known.state is Support.UNKNOWN:
            return (
                Outcome.NOT_OBSERVABLE,
                f"whether the engine has {name} is not known: its adapter's capabilities do not say",
            )
        if known.state is Support.UNSUPPORTED:
            return Outcome.NOT_APPLICABLE, f"the engine has no {name}: {known.reason or 'no reason given'}"
    return None


class Stage:
    """What was played of one scenario. Raises EngineFaultError if what was observed cannot be of it."""

    def __init__(
        self,
        scenario: Scenario,
        played: Played,
        layout: Layout,
        observe: Sequence[str],
        *,
        emptied: bool = True,
        block_size: int | None = None,
        in_waves: bool = False,
        ordered: bool = True,
    ) -> None:
        """`emptied` says whether the cache was, before; `block_size` is the engine's own, tokens.

        `in_waves` says that the engine was handed whole batches, and computed each in an order of its own; where it is
        not `ordered`, it began in any order with what it had at the same time. So does one with too little room for all
        of it, which begins anew with what it has pushed out.
        """
        self._scenario, self._played, self._observe, self._emptied = scenario, played, observe, emptied
        self._block_size = block_size or 1
        batches = (waves(scenario.schedule) if in_waves else None) or []
        self._waves = {request.id: i for i, batch in enumerate(batches) for request in batch}
        self.parts = parts(scenario, played, layout)
        pressed = self._pressed
        self._served = None if ordered and not pressed else served_before(scenario.schedule, ended=pressed)
        ended = [part.request for part in self.parts if not part.cut]
        self.observed = check_observed(ended, played.observed) if observe else Observed()

    @cached_property
    def tokens(self) -> dict[str, Sequence[object]]:
        """What K/V of each request depend on, position by position."""
        return {part.request.id: marked(part) for part in self.parts}

    @cached_property
    def control(self) -> Control:
        """What could be shared and, as far as is told, was."""
        told = [p for p in self.parts if p.completion and p.completion.cached_tokens is not None]
        if not told:
            return Control(0, 0, None)
        return Control.of([part.prompt.tokens for part in told], [part.completion for part in told if part.completion])

    def answers(self, breaches: Sequence[Breach], twins: Mapping[str, TwinEvidence]) -> tuple[Answer, ...]:
        """An answer for each request that has emitted something."""
        found = []
        for i, part in enumerate(self.parts):
            if part.completion is None:
                continue
            id = part.request.id
            found.append(
                Answer(
                    part.prompt,
                    part.completion,
                    self._attention(part),
                    tuple(breach for breach in breaches if breach.victim == id),
                    self.observed.kv.get(id),
                    part.domain,
                    self._side(part, self._before(i)),
                    part.cut,
                    twins.get(id),
                    self._times if part.prompt.name == self._timed else None,
                )
            )
        return tuple(found)

    def _before(self, place: int) -> list[Part]:
        """What a request may have been served from: those handed over before it, and what may have overtaken it."""
        id = self.parts[place].request.id
        if self._waves:
            last = self._waves[id]
            return [p for i, p in enumerate(self.parts) if i != place and self._waves[p.request.id] <= last]
        served = self._served
        later = [p for p in self.parts[place + 1 :] if id not in served.get(p.request.id, {id})] if served else []
        return [*self.parts[:place], *later]

    @property
    def _pressed(self) -> bool:
        """Whether requests may have been pushed out: told to be, or for want of room."""
        pool, block = self._scenario.setup.pool, self._block_size
        blocks = sum(ceil((len(p.prompt.tokens) + p.request.max_tokens) / block) for p in self.parts)
        preempted = any(operation.verb is Verb.PREEMPT for operation in self._scenario.schedule)
        return preempted or (pool is not None and blocks * block > pool)

    @cached_property
    def silent(self) -> str:
        """Why the silence of all oracles would show nothing, in one line; or nothing."""
        played, scenario = self._played, self._scenario
        if played.missed:
            return played.missed.replace(f"{scenario.id}/", "")
        failed = {scenario.short(id): reason for id, reason in played.failed.items()}
        for name, reason in failed.items():
            if name not in scenario.refused:
                return f"request {name} failed: {reason}"
        if taken := [name for name in scenario.refused if name not in failed]:
            return f"the engine was to refuse {', '.join(taken)}, and did not"
        if scenario.arms and (unknown := self._untimed):
            return unknown
        cached = {p.prompt.name: p.completion.cached_tokens for p in self.parts if p.completion}
        missed = [name for name in scenario.hits if cached.get(name) == 0 and self._shareable(name)]
        if missed:
            return f"the cache was not hit by {', '.join(missed)}, though it could have been"
        return ""

    def _shareable(self, name: str) -> bool:
        """Whether a request has a block of the engine's size in common with what was sent before it."""
        place = next(i for i, part in enumerate(self.parts) if part.prompt.name == name)
        tokens = self.parts[place].prompt.tokens
        longest = max((servable(tokens, other.tokens) for other in self.parts[:place]), default=0)
        return longest >= self._block_size

    @property
    def _timed(self) -> str | None:
        """The request that a difference of times is told of: the first whose prefix another domain has sent."""
        return self._scenario.arms["other"][0] if self._scenario.arms else None

    def _seconds(self, arm: str) -> list[float]:
        first = self._played.first_token
        ids = [f"{self._scenario.id}/{name}" for name in self._scenario.arms[arm]]
        return [first[id] for id in ids if id in first]

    @cached_property
    def _untimed(self) -> str:
        """Why equal times would show nothing, or nothing."""
        if any(len(self._seconds(arm)) < len(names) for arm, names in self._scenario.arms.items()):
            return "the engine does not tell when first tokens come"
        if not side.times_differ(self._seconds("same"), self._seconds("fresh")):
            return "first tokens come no earlier where the same tenant has sent the prefix, so that times tell nothing"
        return ""

    @cached_property
    def _times(self) -> TimeEvidence | None:
        if self._untimed:
            return None
        return side.examine_times(self._seconds("other"), self._seconds("fresh"))

    def _attention(self, part: Part) -> Attention | None:
        seen, completion = self.observed.attention.get(part.request.id), part.completion
        if seen is None or completion is None or part.cut:
            return None
        return seen.last(len(completion.tokens))  # of a fork the first steps are its parent's

    def _side(self, part: Part, before: Sequence[Part]) -> SideEvidence | None:
        assert part.completion is not None
        sent = [
            Sent(Owner(self._scenario.id, other.prompt.name), other.domain, other.tokens)
            for other in before
            # What still runs when the cache is emptied is found in it afterwards.
            if other.over is None or other.over >= part.era
        ]
        found = side.examine(part.domain, part.prompt.tokens, part.completion.cached_tokens, sent)
        # A cache that was not empty may hold what nobody here has sent.
        return found if self._emptied or (found and found.source) else None
