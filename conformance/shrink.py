"""Shrinking: a schedule that breaks, made smaller as long as it still does: fewer requests, operations, tokens.

Chunks are taken away, first large ones and then smaller ones, as in delta debugging (Zeller and Hildebrandt,
Simplifying and isolating failure-inducing input, TSE 2002).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from kvfence.adapters.api import Request
from kvfence.adapters.schedule import Operation, Verb
from kvfence.conformance.answerable import answerable
from kvfence.conformance.leave_out import scenario_without
from kvfence.conformance.scenarios.scenario import Scenario
from kvfence.prompts import alphabet
from kvfence.prompts.prompt import Prompt

T = TypeVar("T")
LEAST = 2  # words that are taken away at once


@dataclass(frozen=True, order=True)
class Size:
    """How large a schedule is; the first figure that differs decides."""

    requests: int
    operations: int
    tokens: int  # prompts and outputs

    @classmethod
    def of(cls, scenario: Scenario) -> "Size":
        requests = [op.request for op in scenario.schedule if op.request]
        tokens = sum(len(request.prompt) + request.max_tokens for request in requests)
        return cls(len(requests), len(scenario.schedule), tokens)


class Shrinker:
    """Shrinks schedules that `fails` says it of, with at most so many questions to it."""

    def __init__(self, fails: Callable[[Scenario], bool], questions: int = 200) -> None:
        self._fails, self._left = fails, questions
        self._seen: set[tuple[Operation, ...]] = set()

    def shrink(self, scenario: Scenario) -> Scenario:
        """A smallest schedule that was found. Whether hits come is not asked of it any more."""
        scenario = replace(scenario, hits=())
        while self._left:
            before = Size.of(scenario)
            for step in (self._requests, self._operations, self._waits, self._words, self._outputs):
                scenario = step(scenario)
            if Size.of(scenario) >= before:
                break
        return scenario

    def _try(self, smaller: Scenario) -> bool:
        if not self._left or smaller.schedule in self._seen or not answerable(smaller):
            return False
        if smaller.unprovided:
            return False
        self._seen.add(smaller.schedule)
        self._left -= 1
        return self._fails(smaller)

    def _without(
        self, scenario: Scenario, parts: Sequence[T], take: Callable[[Scenario, Sequence[T]], Scenario]
    ) -> Scenario:
        """Take away as many `parts` as can be spared, in ever smaller chunks."""
        left, size = list(parts), max(1, len(parts) // 2)
        while left:
            for chunk in reversed(list(_chunks(left, size))):
                smaller = take(scenario, chunk)
                if self._try(smaller):
                    scenario, left = smaller, [part for part in left if part not in chunk]
            if size == 1:
                break
            size //= 2
        return scenario

    def _requests(self, scenario: Scenario) -> Scenario:
        return self._without(scenario, [scenario.short(r.id) for r in _requests(scenario)], scenario_without)

    def _operations(self, scenario: Scenario) -> Scenario:
        others = [op for op in scenario.schedule if op.verb is not Verb.SUBMIT]
        return self._without(scenario, others, _without_operations)

    def _waits(self, scenario: Scenario) -> Scenario:
        waiting = [op for op in scenario.schedule if op.when and op.verb is Verb.SUBMIT]
        return self._without(scenario, waiting, _at_once)

    def _words(self, scenario: Scenario) -> Scenario:
        """Take words out of all prompts at once, so that what is shared stays shared."""
        asked = {alphabet.word_of(r.prompt[-1]) for r in _requests(scenario)}
        asked |= {alphabet.word_of(token) for op in scenario.schedule if op.verb is Verb.FORK for token in op.tokens}
        words = list(dict.fromkeys(token for r in _requests(scenario) for token in r.prompt[:-1]))
        words = [token for token in words if alphabet.FIRST_WORD <= token < alphabet.WORDS and token not in asked]
        chunks = [tuple(words[i : i + LEAST]) for i in range(0, len(words), LEAST)]
        return self._without(scenario, chunks, lambda s, some: without_words(s, {w for chunk in some for w in chunk}))

    def _outputs(self, scenario: Scenario) -> Scenario:
        for request in _requests(scenario):
            least, most = 0, request.max_tokens
            while most - least > 1 and self._left:
                half = (least + most) // 2
                smaller = _asking(scenario, request.id, half)
                if self._try(smaller):
                    scenario, most = smaller, half
                else:
                    least = half
        return scenario


def _chunks(parts: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    return (parts[i : i + size] for i in range(0, len(parts), size))


def _requests(scenario: Scenario) -> list[Request]:
    return [op.request for op in scenario.schedule if op.request]


def _without_operations(scenario: Scenario, gone: Sequence[Operation]) -> Scenario:
    kept = tuple(op for op in scenario.schedule if not any(op is one for one in gone))
    return replace(scenario, schedule=kept)


def _at_once(scenario: Scenario, waiting: Sequence[Operation]) -> Scenario:
    """With operations that no longer wait for their moment."""
    changed = (replace(op, when=None) if any(op is one for one in waiting) else op for op in scenario.schedule)
    return replace(scenario, schedule=tuple(changed))


def _asking(scenario: Scenario, id: str, n: int) -> Scenario:
    """With so many new tokens asked of one request."""
    changed = (
        replace(op, request=replace(op.request, max_tokens=n)) if op.request and op.request.id == id else op
        for op in scenario.schedule
    )
    return replace(scenario, schedule=tuple(changed))


def without_words(scenario: Scenario, gone: set[int]) -> Scenario:
    """A scenario from all of whose prompts and histories some words are taken."""

    def cut(tokens: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(token for token in tokens if token not in gone)

    def shorter(prompt: Prompt) -> Prompt:
        spelled = {alphabet.spell(word) for word in gone}
        words, secret = (tuple(w for w in some if w not in spelled) for some in (prompt.words, prompt.secret))
        prefix = len(cut(prompt.tokens[: prompt.prefix_tokens]))
        return replace(prompt, tokens=cut(prompt.tokens), prefix_tokens=prefix, words=words, secret=secret)

    changed = (
        replace(op, request=replace(op.request, prompt=cut(op.request.prompt))) if op.request
        else replace(op, tokens=cut(op.tokens)) if op.verb is Verb.EDIT
        else op
        for op in scenario.schedule
    )  # fmt: skip
    prompts = {name: shorter(prompt) for name, prompt in scenario.prompts.items()}
    return replace(scenario, schedule=tuple(changed), prompts=prompts)
