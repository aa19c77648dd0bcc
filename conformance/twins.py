"""Twins of a scenario: the same schedule with the secrets of one request's neighbours exchanged, played beside it."""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from kvfence.adapters.api import Completion, Request
from kvfence.adapters.player import Played
from kvfence.adapters.schedule import Operation, Schedule
from kvfence.conformance.oracles.twin import PAIRS, TwinEvidence, Verdict, bijection, examine, mapped
from kvfence.conformance.scenarios.scenario import Scenario
from kvfence.prompts import alphabet

Play = Callable[[Schedule], Played]  # in a cache that holds nothing


def examine_twins(
    scenario: Scenario, played: Played, limit: int, play: Play, only: str | None = None
) -> dict[str, TwinEvidence]:
    """What exchanging the neighbours' secrets does to up to `limit` requests of a scenario, by request id.

    `played` is the first run of the scenario as it is; `only` is the name of a request, if no other is looked at.
    """
    controls = {completion.id: completion for completion in played.completions}
    asked = [op.request for op in scenario.schedule if op.request and op.request.id in controls]
    if only is not None:
        asked = [request for request in asked if request.id == f"{scenario.id}/{only}"]
    # The last ones have most before them that they could meet.
    victims = asked[-limit:] if limit else []
    return {victim.id: _Pair(scenario.schedule, victim, play).examine(controls[victim.id]) for victim in victims}


def unsettled(twins: Mapping[str, TwinEvidence]) -> str:
    """Why the silence of twins would show nothing, in one line; or nothing."""
    told = {
        Verdict.UNSTABLE: "the answer changes from run to run",
        Verdict.UNLIKE: "answers or hits came in one arm and not in the other",
    }
    return next(
        (f"twins of {id.rpartition('/')[2]}: {told[t.verdict]}" for id, t in twins.items() if t.verdict in told), ""
    )


class _Pair:
    """The two arms of one request."""

    def __init__(self, schedule: Schedule, victim: Request, play: Play) -> None:
        self._control, self._victim, self._play = schedule, victim, play
        self._swap = swapped(schedule, victim)

    def examine(self, control: Completion) -> TwinEvidence:
        """Compare one run of each arm and, where they differ, as many more as make it sure."""
        found = examine([control], self._answers(self._swap))
        if found.verdict is Verdict.EQUAL:
            return found
        controls, swaps = [control], []
        for _ in range(PAIRS):
            swaps += self._answers(self._swap)
            controls += self._answers(self._control)
        confirmed = examine(controls, swaps)
        if confirmed.verdict is Verdict.DEPENDS:
            return replace(confirmed, sources=tuple(self._sources(controls[0])))
        return confirmed

    def _sources(self, control: Completion) -> Iterator[str]:
        """Neighbours whose secret alone, exchanged, moves the answer."""
        for neighbour in _requests(self._control):
            if neighbour.id != self._victim.id:
                swap = swapped(self._control, self._victim, neighbour)
                if examine([control], self._answers(swap)).verdict is Verdict.DEPENDS:
                    yield neighbour.id

    def _answers(self, schedule: Schedule) -> list[Completion]:
        return [completion for completion in self._play(schedule).completions if completion.id == self._victim.id]


def swapped(schedule: Schedule, victim: Request, neighbour: Request | None = None) -> Schedule:
    """A schedule in which the words of a request's neighbours, or of one of them only, are others.

    The request's own words stay, and those of its conversation: it has them before it. A word is exchanged in all of
    its alphabets, so that what a neighbour answers is exchanged with what it was asked.
    """
    own = {word for request in _requests(schedule) if _belongs(request, victim) for word in _words(request.prompt)}
    others = [request for request in _requests(schedule) if not _belongs(request, victim)]
    moved = [request for request in others if neighbour is None or request.id == neighbour.id]
    private = {word for request in moved for word in _words(request.prompt)} - own
    # Of one neighbour alone only what nobody else has is private.
    left = [request for request in others if request not in moved]
    private -= {word for request in left for word in _words(request.prompt)}
    used = {word for operation in schedule for word in (*_words(operation.tokens), *_asked(operation))}
    words = bijection(private, used - private, range(alphabet.FIRST_WORD, alphabet.WORDS), random.Random(victim.id))
    exchange = {
        word + shift: other + shift
        for word, other in words.items()
        for shift in range(0, alphabet.ALPHABETS * alphabet.WORDS, alphabet.WORDS)
    }
    return tuple(_exchanged(operation, exchange) for operation in schedule)


def _exchanged(operation: Operation, exchange: dict[int, int]) -> Operation:
    request = operation.request
    if request is not None:
        request = replace(request, prompt=mapped(request.prompt, exchange))
    return replace(operation, request=request, tokens=mapped(operation.tokens, exchange))


def _belongs(request: Request, victim: Request) -> bool:
    return request.id == victim.id or (request.conversation is not None and request.conversation == victim.conversation)


def _requests(schedule: Schedule) -> list[Request]:
    return [operation.request for operation in schedule if operation.request]


def _words(tokens: Sequence[int]) -> set[int]:
    return {word for token in tokens if (word := alphabet.word_of(token)) is not None}


def _asked(operation: Operation) -> set[int]:
    return _words(operation.request.prompt) if operation.request else set()
