"""What the benchmarks of the reference engine share: canary requests on a common prefix, run to their end."""

import random
from collections.abc import Callable, Sequence
from typing import Any

from kvfence.prompts import alphabet
from kvfence.reference_impl.engine import ReferenceEngine

Emitted = Callable[[dict[str, tuple[int, ...]]], None]


def canary_prompts(count: int, shared: int, own: int, rng: random.Random) -> list[tuple[int, ...]]:
    """Prompts of `shared` + `own` tokens; the first `shared` are the same in all, the next differs in all."""
    words = rng.sample(range(alphabet.FIRST_WORD, alphabet.WORDS), alphabet.WORDS - alphabet.FIRST_WORD)
    prefix, first, rest = words[: shared - 1], words[shared - 1 : shared - 1 + count], words[shared - 1 + count :]
    prompts = []
    for i in range(count):
        asked = (*prefix, first[i], *rng.sample(rest, own - 3))
        prompts.append(alphabet.prompt_tokens(asked, start=rng.randrange(len(asked))))
    return prompts


def run(engine: ReferenceEngine, requests: Sequence[tuple[Sequence[int], int]], emitted: Emitted | None = None) -> Any:
    """Submit (prompt, output tokens) all at once and step to the end; outputs in order."""
    for i, (prompt, new) in enumerate(requests):
        engine.submit(str(i), prompt, new)
    while engine.sequences:
        tokens = engine.step()
        if emitted:
            emitted(tokens)
    outputs = {}
    for ended in engine.finished():
        assert not ended.error, ended.error
        outputs[ended.id] = tuple(ended.output)
    return [outputs[str(i)] for i in range(len(requests))]


def answers(requests: Sequence[tuple[Sequence[int], int]]) -> list[tuple[int, ...]]:
    """What the canary must say to requests."""
    return [alphabet.answer(prompt, new) for prompt, new in requests]
