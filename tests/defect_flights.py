"""The least that brings a fault of what is in flight about: transfers, copies and launched steps."""

from defect_runs import Watched
from defect_triggers import FIRST, LENGTH, OTHER, SECOND, ask, emitted
from roads import asked, evict_idle, finish, step_until, words

from kvfence.reference_impl.scheduler import Preemption
from kvfence.reference_impl.sequence import Status


def cancelled_in_flight(engine: Watched) -> None:
    engine.submit("a", FIRST, LENGTH)
    emitted(engine, "a", 2)
    engine.cancel("a")
    engine.submit("b", OTHER, LENGTH)


def cancelled_while_fetched(engine: Watched) -> None:
    ask(engine, "a", FIRST, 4)
    evict_idle(engine)
    engine.submit("b", SECOND, LENGTH)
    assert engine.sequences["b"].status is Status.FETCHING
    engine.cancel("b")
    engine.submit("c", OTHER, LENGTH)


def waits_long_for_a_fetch(engine: Watched) -> None:
    ask(engine, "a", FIRST, 4)
    evict_idle(engine)
    engine.submit("b", SECOND, LENGTH)
    for _ in range(3):
        engine.step()
    assert engine.sequences["b"].status is Status.FETCHING
    engine.submit("c", OTHER, LENGTH)


def crowd(engine: Watched) -> None:
    """More than the pool has room for."""
    for i in range(4):
        engine.submit(str(i), asked(12 + i, i, words(6)), 24 + i)


def cancelled_as_it_resumes(engine: Watched) -> None:
    engine.submit("a", FIRST, LENGTH)
    emitted(engine, "a", 2)
    engine.preempt("a", Preemption.SWAP)
    engine.settle()
    engine.cache.remote.clear()
    evict_idle(engine)
    engine.pool.free.reverse()
    step_until(engine, lambda: engine.sequences["a"].status is Status.RUNNING)
    engine.cancel("a")
    finish(engine)
    evict_idle(engine)
    ask(engine, "b", SECOND)


def store_is_taken(engine: Watched) -> None:
    """Others fill the store while a prefix is on its way from it."""
    ask(engine, "a", FIRST, 4)
    evict_idle(engine)
    engine.submit("b", SECOND, LENGTH)
    assert engine.sequences["b"].status is Status.FETCHING
    engine.submit("c", asked(40, 5), 2)
