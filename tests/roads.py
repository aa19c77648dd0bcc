"""What the tests of the reference engine's roads share: an engine audited at every step, and golden's verdict."""

import random
from collections import Counter, abc
from functools import cache
from typing import Any

from tiny_models import tiny

from kvfence.prompts import alphabet, models
from kvfence.reference_impl.engine import ReferenceEngine
from kvfence.reference_impl.golden import Golden, load_model
from kvfence.reference_impl.sequence import Sequence
from kvfence.reference_impl.settings import PARTS, Parts, Settings
from kvfence.reference_impl.trace import Event, Kind

MODELS = ("canary", "random")
NOISE = 1e-4  # logits by which float32 in other shapes may differ from golden


def load(name: str) -> Any:
    """The canary, or a model of random weights whose output depends on all of its context."""
    if name == "canary":
        return load_model(models.resolve(name).path)
    return tiny("llama", 2, vocab_size=alphabet.VOCAB_SIZE)


engine_model = cache(load)  # engines change how it attends


@cache
def golden(name: str) -> Golden:
    return Golden(load(name))


def audited(name: str = "canary", parts: Parts = PARTS, **settings: Any) -> ReferenceEngine:
    """An engine with blocks of 4 tokens, 64 of them, that traces and is audited after every step."""
    small: dict[str, Any] = {"blocks": 65, "block_size": 4, "trace": True, "tags": True, "audit": True}
    return ReferenceEngine(engine_model(name), Settings(**small | settings), parts)


def words(n: int, seed: int = 0) -> list[int]:
    """Distinct words."""
    return random.Random(seed).sample(range(alphabet.FIRST_WORD, alphabet.WORDS), n)


def asked(n: int, seed: int = 0, prefix: abc.Sequence[int] = ()) -> list[int]:
    """A prompt of n + 3 tokens that the canary answers with the words in it: those of `prefix`, then others."""
    own = [word for word in words(n + len(prefix), seed + 1000) if word not in prefix]
    return list(alphabet.prompt_tokens([*prefix, *own[: n - len(prefix)]]))


def step_until(engine: ReferenceEngine, happened: abc.Callable[[], object], limit: int = 200) -> None:
    """Step until something has happened; it does."""
    for _ in range(limit):
        if happened():
            return
        engine.step()
    raise AssertionError(f"it does not happen within {limit} steps")


def finish(engine: ReferenceEngine, limit: int = 400) -> dict[str, Sequence]:
    """Step until nothing is left to do; what has ended since the last call, by request."""
    step_until(engine, lambda: not engine.sequences, limit)
    engine.settle()
    return {sequence.id: sequence for sequence in engine.finished()}


def assert_golden(name: str, sequences: abc.Iterable[Sequence], forced: int = 0) -> None:
    """Each output is golden's; where tokens of it were forced, from the last of the first `forced` on."""
    for sequence in sequences:
        prompt = [*sequence.tokens[: sequence.prompt], *sequence.output[:forced]]
        margins = golden(name).verify(prompt, sequence.output[forced:]).margins
        assert max(margins) <= (0 if name == "canary" else NOISE), (sequence.id, margins)


def assert_empty(engine: ReferenceEngine) -> None:
    """Nobody holds a block and nothing can be found: all are free but the scratch block."""
    assert not engine.sequences
    engine.reset_cache()
    assert not engine.cache.draining
    assert not engine.cache.retained
    assert sorted(engine.pool.free) == list(range(1, engine.pool.size))
    assert engine.audit() == []


def events(engine: ReferenceEngine, *kinds: Kind) -> list[Event]:
    """The events of these kinds since they were last taken."""
    assert engine.trace is not None
    return [event for event in engine.trace.take() if event.kind in kinds]


def count(engine: ReferenceEngine) -> Counter[Kind]:
    """How often each kind of event came since they were last taken."""
    assert engine.trace is not None
    return Counter(event.kind for event in engine.trace.take())


def evict_idle(engine: ReferenceEngine) -> None:
    """Empty the pool of prefixes that nobody uses, as a crowd of other requests would."""
    while (block := engine.pool.oldest_idle()) is not None:
        engine.cache.evict(block)
