"""Runs of the engine, faulty or not, on one trigger, and what can be told from them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from math import isnan
from typing import Any

from roads import NOISE, asked, evict_idle, finish
from tiny_models import tiny

from kvfence.prompts import alphabet
from kvfence.reference_impl.adapter import Adapters
from kvfence.reference_impl.auditor import Rule
from kvfence.reference_impl.defects import Defect, Sentinel
from kvfence.reference_impl.engine import ReferenceEngine
from kvfence.reference_impl.golden import Golden
from kvfence.reference_impl.key import AdapterId
from kvfence.reference_impl.scaled import ScaledStorage
from kvfence.reference_impl.sequence import Finish, Sequence
from kvfence.reference_impl.settings import PARTS, Parts, Settings

SMALL: dict[str, Any] = {"blocks": 33, "block_size": 4, "tags": True, "trace": True, "logprobs": 1}
ROUNDED = 1.0  # logits by which int8 may be off


class Watched(ReferenceEngine):
    """An engine that notes the rules that are broken, step by step."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.broken: set[Rule] = set()
        self.deltas: dict[AdapterId, Any] = {}

    def step(self) -> dict[str, tuple[int, ...]]:
        emitted = super().step()
        self.broken |= {breach.rule for breach in self.audit()}
        return emitted

    def adapt(self, name: str, seed: int) -> None:
        """Load an adapter of random deltas."""
        self.deltas[self.load_adapter(name, deltas(seed))] = deltas(seed)


Trigger = Callable[[Watched], None]


@dataclass(frozen=True)
class Case:
    """What shows a defect: a trigger, settings beside those the defect needs, and all that is to be seen."""

    trigger: Trigger
    shows: str  # of "audit", "cached", "output", "logprobs" and "pool"
    settings: Mapping[str, Any] = field(default_factory=dict)
    used: bool = True  # whether every block holds something of others


@dataclass(frozen=True)
class Run:
    """What came of a trigger."""

    engine: Watched
    done: dict[str, Sequence]


@cache
def deltas(seed: int) -> dict[str, Any]:
    """Deltas of the weights that K and V come from."""
    other = dict(llama(seed).named_parameters())
    return {name: 0.5 * other[name].detach() for name in other if "k_proj" in name or "v_proj" in name}


def llama(seed: int = 0) -> Any:
    return tiny("llama", 2, vocab_size=alphabet.VOCAB_SIZE, seed=seed)


def mistral() -> Any:
    return tiny("mistral", 2, vocab_size=alphabet.VOCAB_SIZE)


shared_llama, shared_mistral = cache(llama), cache(mistral)


def run(case: Case, parts: Parts, needs: Mapping[str, Any], window: bool) -> Run:
    """Run a trigger to its end."""
    # New weights are loaded into the model.
    model = shared_mistral() if window else llama() if "weights" in case.trigger.__name__ else shared_llama()
    engine = Watched(model, Settings(**SMALL | dict(needs) | dict(case.settings)), parts)
    done: dict[str, Sequence] = {}
    ending = engine.finished

    def finished() -> list[Sequence]:
        ended = ending()
        done.update({sequence.id: sequence for sequence in ended})
        return ended

    engine.finished = finished  # type: ignore[method-assign]
    if case.used:
        scramble(engine)
    case.trigger(engine)
    finish(engine)
    engine.broken |= {breach.rule for breach in engine.audit()}
    return Run(engine, done)


def scramble(engine: Watched) -> None:
    """Have every block hold K/V of a request that is gone."""
    room = (engine.pool.size - 2) * engine.settings.block_size
    engine.submit("gone", asked(room - 4, 77), 1, salt="gone")
    finish(engine)
    evict_idle(engine)


_clean: dict[str, Run] = {}  # by all that matters


def clean(defect: Defect, case: Case) -> Run:
    """The same trigger on the engine without a fault."""
    scaled = issubclass(defect.build(Sentinel()).storage, ScaledStorage)
    sizes = dict(defect.needs) | dict(case.settings)
    key = f"{id(case.trigger)} {sorted(sizes.items())} {defect.window} {scaled} {case.used}"
    if key not in _clean:
        parts = replace(PARTS, storage=ScaledStorage) if scaled else PARTS
        _clean[key] = run(case, parts, defect.needs, defect.window)
        assert_right(_clean[key])
    return _clean[key]


def seen(faulty: Run, right: Run) -> set[str]:
    """What differs."""
    found = {"audit"} if faulty.engine.broken else set()
    for id, one in right.done.items():
        other = faulty.done[id]
        if one.cached != other.cached:
            found.add("cached")
        if other.finish is not Finish.FAILED and one.output != other.output:
            found.add("output")
        pairs = zip(one.logprobs, other.logprobs, strict=False)
        # Of a forced token it may be unknown; where only one is no number they differ.
        if any(not abs(a - b) <= NOISE and not (isnan(a) and isnan(b)) for a, b in pairs):
            found.add("logprobs")
    pools = [(run.engine.pool.used, run.engine.pool.cached) for run in (faulty, right)]
    return found | ({"pool"} if pools[0] != pools[1] else set())


def assert_right(run: Run) -> None:
    """No rule was broken, and every output is golden's."""
    assert run.engine.broken == set()
    most = ROUNDED if isinstance(run.engine.storage, ScaledStorage) else NOISE
    for sequence in run.done.values():
        assert sequence.finish in (Finish.LENGTH, Finish.CANCELLED)
        if margins := _margins(run.engine, sequence):
            assert max(margins) <= most, (sequence.id, margins)


@cache
def _golden(seed: int) -> Golden:
    return Golden(mistral() if seed < 0 else llama(seed))


def _margins(engine: Watched, sequence: Sequence) -> tuple[float, ...]:
    first = 0 if sequence.forced is None else sequence.forced + 1
    prompt, output = [*sequence.tokens[: sequence.prompt], *sequence.output[:first]], sequence.output[first:]
    if not output:
        return ()
    namespace = sequence.namespace
    golden = _golden(-1 if engine.runner.window else namespace.epoch)
    adapters = Adapters(golden.model)
    if namespace.adapter:
        adapters.load(namespace.adapter.name, engine.deltas[namespace.adapter])
    media = [(item.position, item.content) for item in namespace.media]
    with adapters.applied(adapters.id(namespace.adapter and namespace.adapter.name)):
        return golden.verify(prompt, output, media=media).margins
