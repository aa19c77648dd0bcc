"""A fault is no crash: with each of them a busy engine runs on, and every request ends."""

import random
from collections.abc import Mapping
from typing import Any

import pytest
from defect_runs import shared_llama, shared_mistral
from roads import asked, finish

from kvfence.reference_impl.defects import DEFECTS, Sentinel
from kvfence.reference_impl.engine import EngineError, ReferenceEngine
from kvfence.reference_impl.key import Media
from kvfence.reference_impl.sequence import Finish
from kvfence.reference_impl.settings import Parts, Settings

BUSY = {"blocks": 30, "block_size": 4, "max_concurrency": 9, "token_budget": 48}
STEMS = [asked(28, i) for i in range(2)]
SEEDS = range(1)
MAY_FAIL = {"pub-fail.pass"}  # it has a pass fail, on purpose


def busy(engine: ReferenceEngine, seed: int, steps: int = 70) -> None:
    """Requests of two tenants that share, with media, forks, turns, cancels, preemptions, resets and edits."""
    rng = random.Random(seed)
    for i in range(steps):
        id = rng.choice(list(engine.sequences) or [""])
        try:
            match rng.randrange(10):
                case 0 | 1 | 2 | 3:
                    submit(engine, rng, str(i))
                case 4:
                    engine.cancel(id)
                case 5:
                    engine.fork(id, [rng.choice(STEMS)[1], rng.choice(STEMS)[2]])
                case 6:
                    engine.preempt(id)
                case 7 if rng.random() < 0.2:
                    engine.reset_cache()
                case 8 if rng.random() < 0.2:
                    engine.new_weights()
                case 9:
                    history = engine.conversations["talk"].history if "talk" in engine.conversations else []
                    engine.edit_history("talk", edited(rng, list(history)))
        except EngineError:
            pass
        engine.step()
    finish(engine, 1000)


def submit(engine: ReferenceEngine, rng: random.Random, id: str) -> None:
    prompt = [*rng.choice(STEMS)[: rng.randrange(28)], *asked(rng.randrange(2, 8), int(id))]
    salt, turn = rng.choice((None, None, "x")), rng.choice((None, None, "talk"))
    media = [Media(2, rng.choice(("a cat", "a dog")))] if not turn and rng.random() < 0.2 else []
    engine.submit(
        id, prompt, rng.randrange(1, 25), salt=salt, conversation=turn, media=media, timeout=rng.choice((None, None, 9))
    )


def edited(rng: random.Random, history: list[int]) -> list[int]:
    if history:
        history[rng.randrange(len(history))] = STEMS[0][3]
    return history[: rng.randrange(len(history) + 1)] if rng.random() < 0.5 else [*history, STEMS[1][3]]


def ran(parts: Parts, needs: Mapping[str, Any], window: bool, **settings: Any) -> list[str]:
    """Why requests failed."""
    model = shared_mistral() if window else shared_llama()
    engine = ReferenceEngine(model, Settings(**{**BUSY, **needs, **settings}), parts)
    ended = []
    engine.ending = ended.append
    for seed in SEEDS:
        busy(engine, seed)
    assert not engine.sequences
    return [sequence.error for sequence in ended if sequence.finish is Finish.FAILED]


@pytest.mark.parametrize("name", DEFECTS)
def test_a_busy_engine_with_a_fault_runs_on(name):
    defect = DEFECTS[name]
    failed = ran(defect.build(Sentinel()), defect.needs, defect.window, tags=True)
    assert bool(failed) <= (name in MAY_FAIL), failed
