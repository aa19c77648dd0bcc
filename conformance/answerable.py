"""What the canary can answer: a schedule whose answers follow from what stands once in what comes before."""

from collections.abc import Sequence

from kvfence.adapters.schedule import Operation, Verb
from kvfence.conformance.scenarios.scenario import Scenario
from kvfence.prompts import alphabet


def answerable(scenario: Scenario) -> bool:
    """Whether there is a request, and no answer, of a fork either, is longer than the canary can say without doubt."""
    histories: dict[str, tuple[int, ...]] = {}
    asked: dict[str, tuple[tuple[int, ...], int]] = {}
    for operation in scenario.schedule:
        if operation.verb is Verb.EDIT:
            histories[operation.target] = operation.tokens
        if request := operation.request:
            prompt = (*histories.get(request.conversation or "", ()), *request.prompt)
            n = request.max_tokens
            if alphabet.unambiguous(prompt, n) < n:
                return False
            asked[request.id] = prompt, n
            if request.conversation:
                histories[request.conversation] = (*prompt, *alphabet.answer(prompt, n))
        if operation.verb is Verb.FORK and operation.target in asked:
            prompt, n = asked[operation.target]
            if not forkable(prompt, n, _emitted(operation), operation.tokens):
                return False
    return bool(asked)


def forkable(prompt: Sequence[int], n: int, emitted: int, firsts: Sequence[int]) -> bool:
    """Whether forks of a request are answerable: it has emitted so many of its `n` tokens, or some more already.

    A fork has one of `firsts` in place of the token that was emitted last. An operation may wait for those before it.
    """
    answer = alphabet.answer(prompt, n)
    for k in range(max(1, emitted), n):
        for first in firsts:
            begun = (*prompt, *answer[: k - 1], first)
            if alphabet.unambiguous(begun, n - k) < n - k:
                return False
    return True


def _emitted(fork: Operation) -> int:
    return fork.when.tokens or 0 if fork.when and fork.when.request == fork.target else 0
