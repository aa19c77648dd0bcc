"""The least that brings a planted fault about: for each kind a few requests, written against the engine."""

from collections import abc
from typing import Any

from defect_runs import Trigger, Watched, llama, scramble
from roads import asked, evict_idle, finish, step_until, words

from kvfence.reference_impl.key import Media
from kvfence.reference_impl.scheduler import Preemption

PREFIX = words(15)  # with BOS 4 blocks of 4
PART = words(17)  # with BOS 4 blocks and a half
FIRST, SECOND, LENGTH = asked(20, 1, PREFIX), asked(19, 2, PREFIX), 12
OTHER = asked(22, 9)


def ask(engine: Watched, id: str, prompt: abc.Sequence[int], n: int = LENGTH, **arguments: Any) -> None:
    """A request, to its end."""
    engine.submit(id, prompt, n, **arguments)
    finish(engine)


def emitted(engine: Watched, id: str, n: int) -> None:
    """Step until a request has emitted so many tokens."""
    step_until(engine, lambda: len(engine.sequences[id].output) >= n)


# What stands in the key beside the tokens.


def two(first: dict[str, Any], second: dict[str, Any], evict: bool = False) -> Trigger:
    """One prompt twice, with other arguments."""

    def trigger(engine: Watched) -> None:
        engine.adapt("x", 1)
        ask(engine, "a", FIRST, **first)
        if evict:
            evict_idle(engine)
            scramble(engine)
        ask(engine, "b", FIRST, **second)

    return trigger


def shows(*media: tuple[int, str]) -> dict[str, Any]:
    return {"media": [Media(position, content) for position, content in media]}


def reload(engine: Watched) -> None:
    for id, seed in (("a", 1), ("b", 2)):
        engine.adapt("x", seed)
        ask(engine, id, FIRST, adapter="x")


def turns_of_two_adapters(engine: Watched) -> None:
    engine.adapt("x", 1)
    ask(engine, "a", FIRST, conversation="talk")
    ask(engine, "b", OTHER[:5], conversation="talk", adapter="x")


def a_long_prompt_of_two_tenants(engine: Watched) -> None:
    prompt = asked(45, 5)
    ask(engine, "a", prompt, salt="x")
    ask(engine, "b", prompt)


def preempted_tenant(engine: Watched) -> None:
    engine.submit("a", FIRST, LENGTH, salt="x")
    emitted(engine, "a", 2)
    engine.preempt("a", Preemption.RECOMPUTE)
    finish(engine)
    ask(engine, "b", FIRST)


def forked_tenant(engine: Watched) -> None:
    engine.submit("a", FIRST, LENGTH, salt="x")
    emitted(engine, "a", 2)
    engine.fork("a", [OTHER[3]])
    finish(engine)
    ask(engine, "b", [*FIRST, OTHER[1]])


def like(change: abc.Callable[[list[int]], list[int]]) -> Trigger:
    """A prompt, then what a change makes of it."""

    def trigger(engine: Watched) -> None:
        ask(engine, "a", FIRST)
        if engine.settings.remote:
            evict_idle(engine)
        ask(engine, "b", change(list(FIRST)))

    return trigger


def rolled(prompt: list[int]) -> list[int]:
    """One token lowered by one, the next one raised by 31."""
    prompt[5] -= 1
    prompt[6] += 31
    return prompt


def alike_in_a_byte(prompt: list[int]) -> list[int]:
    """Another second block with the same last eight bits of its hash."""
    wanted = hash(tuple(prompt[4:8])) & 0xFF
    prompt[5] = next(t for t in range(100, 4000) if t != prompt[5] and _byte(prompt, t) == wanted)
    return prompt


def _byte(prompt: list[int], token: int) -> int:
    return hash((prompt[4], token, *prompt[6:8])) & 0xFF


def without_a_block(prompt: list[int]) -> list[int]:
    return [*prompt[:4], *prompt[8:]]


def between_samples(prompt: list[int]) -> list[int]:
    """Another token in the second block, neither its first nor its last."""
    return [*prompt[:5], OTHER[7], *prompt[6:]]


def new_weights(engine: Watched) -> None:
    ask(engine, "a", FIRST)
    engine.settle()
    engine.runner.model.load_state_dict(llama(1).state_dict())
    engine.new_weights()
    ask(engine, "b", FIRST)


def new_weights_between_turns(engine: Watched) -> None:
    ask(engine, "a", FIRST, conversation="talk")
    engine.runner.model.load_state_dict(llama(1).state_dict())
    engine.new_weights()
    ask(engine, "b", OTHER[:5], conversation="talk")


# What can be found.


def evicted(engine: Watched) -> None:
    ask(engine, "a", FIRST)
    evict_idle(engine)
    scramble(engine)
    ask(engine, "b", SECOND)


def reset(engine: Watched) -> None:
    ask(engine, "a", FIRST)
    engine.reset_cache()
    scramble(engine)
    ask(engine, "b", SECOND)


def evicted_beside(engine: Watched) -> None:
    """Of two prefixes the one that comes first in the index is evicted; others take its blocks, and it is asked for."""
    ask(engine, "a", FIRST)
    ask(engine, "b", OTHER)
    prompt = min(FIRST, OTHER)
    engine.cache.evict(engine.cache.tree.match(_namespace(engine), prompt)[0][0])
    ask(engine, "c", asked(40, 5))
    ask(engine, "d", [*prompt[:16], *asked(9, 3)])


def _namespace(engine: Watched) -> Any:
    return next(namespace for namespace, _, _ in engine.cache.tree.entries())


def edited(change: abc.Callable[[list[int]], list[int]]) -> Trigger:
    """A turn, an edit of the history, a turn."""

    def trigger(engine: Watched) -> None:
        ask(engine, "a", FIRST, conversation="talk")
        engine.edit_history("talk", change(list(engine.conversations["talk"].history)))
        ask(engine, "b", OTHER[:5], conversation="talk")

    return trigger


def longer(history: list[int]) -> list[int]:
    return [*history[:5], OTHER[7], *history[6:], *OTHER[3:6]]


def shorter(history: list[int]) -> list[int]:
    return [*history[:5], OTHER[7], *history[6:20]]


def stored(engine: Watched) -> None:
    """A prefix that has left the pool comes back from the store."""
    ask(engine, "a", FIRST, 4)
    evict_idle(engine)
    scramble(engine)
    ask(engine, "b", SECOND)


def stored_and_shared(engine: Watched) -> None:
    """Then somebody takes a part of it."""
    stored(engine)
    ask(engine, "c", [*FIRST[:8], *asked(9, 3)])


def stored_and_asked_for(engine: Watched) -> None:
    """Then somebody takes all of it."""
    stored(engine)
    ask(engine, "c", asked(21, 3, PREFIX))


def stored_in_part(engine: Watched) -> None:
    """The pool still has the first blocks of a prefix, the store has all."""
    ask(engine, "a", FIRST, 4)
    engine.cache.evict(engine.cache.tree.match(_namespace(engine), FIRST)[0][2])
    ask(engine, "b", SECOND)


def store_is_used_again(engine: Watched) -> None:
    for id, prompt in (("a", FIRST), ("b", OTHER), ("c", OTHER)):
        ask(engine, id, prompt, 4)
        evict_idle(engine)


def store_is_full(engine: Watched) -> None:
    """Others take the slots of the store before a prefix is asked for again, and again."""
    for id, prompt in (("a", FIRST), ("b", OTHER), ("c", SECOND), ("d", OTHER)):
        ask(engine, id, prompt)
        evict_idle(engine)


def together(engine: Watched) -> None:
    """Two that have a part of a block in common."""
    for i, id in enumerate("ab"):
        engine.submit(id, asked(21, i, PART), LENGTH)


def shared_while_fetched(engine: Watched) -> None:
    ask(engine, "a", FIRST, 4)
    evict_idle(engine)
    scramble(engine)
    engine.submit("b", SECOND, LENGTH)
    engine.submit("c", asked(21, 3, PREFIX), LENGTH)


def shared_while_prefilled(engine: Watched) -> None:
    """The second goes on from what the first has computed in whole chunks."""
    prompt = asked(45, 5)
    engine.submit("a", prompt, LENGTH)
    engine.submit("b", [*prompt[:40], *asked(9, 3)], LENGTH)


def a_pass_fails(engine: Watched) -> None:
    prompt = asked(45, 5)
    ask(engine, "a", prompt)
    ask(engine, "b", prompt)
