"""More triggers of planted faults: who is in a batch together, who waits, and who comes back."""

from defect_runs import Watched
from defect_triggers import FIRST, LENGTH, OTHER, PREFIX, SECOND, ask, emitted
from roads import asked, evict_idle, finish, step_until

from kvfence.reference_impl.scheduler import Preemption

# Swapping and preemption.


def swapped(engine: Watched) -> None:
    """Two come back from the host to other blocks than they left."""
    for i, id in enumerate("ab"):
        engine.submit(id, asked(17 + i, i), LENGTH)
    emitted(engine, "b", 3)
    for id in "ab":
        engine.preempt(id, Preemption.SWAP)
    engine.settle()
    evict_idle(engine)
    engine.pool.free.reverse()


def preempted(engine: Watched) -> None:
    engine.submit("a", FIRST, LENGTH)
    emitted(engine, "a", 6)
    engine.preempt("a", Preemption.RECOMPUTE)
    evict_idle(engine)
    engine.pool.free.reverse()


def preempted_in_its_prompt(engine: Watched) -> None:
    engine.submit("a", FIRST, LENGTH)
    engine.step()
    engine.preempt("a", Preemption.SWAP)
    evict_idle(engine)
    engine.pool.free.reverse()


def preempted_twice(engine: Watched) -> None:
    engine.submit("a", FIRST, LENGTH)
    for n in (3, 6):
        emitted(engine, "a", n)
        engine.preempt("a", Preemption.SWAP)
        evict_idle(engine)
        engine.pool.free.reverse()


# References, tables, copies.


def one_of_two_ends(engine: Watched) -> None:
    """Two share a prefix; when the first has ended a third takes what is free."""
    engine.submit("a", FIRST, 3)
    engine.submit("b", SECOND, 20)
    step_until(engine, lambda: "a" not in engine.sequences)
    engine.submit("c", asked(92, 5), LENGTH)


def no_room_beside_a_hit(engine: Watched) -> None:
    """One runs on a prefix that was cached; the next one needs more than is left."""
    ask(engine, "a", FIRST)
    engine.submit("b", SECOND, 20)
    emitted(engine, "b", 1)
    engine.submit("c", asked(86, 5), LENGTH)


def one_of_two_is_cancelled(engine: Watched) -> None:
    engine.submit("a", FIRST, LENGTH)
    engine.submit("b", SECOND, 20)
    emitted(engine, "b", 1)
    engine.cancel("a")
    engine.submit("c", asked(92, 5), LENGTH)


def no_room_for_the_second(engine: Watched) -> None:
    """The second finds its prefix, and the pool has no room for the rest of it."""
    engine.submit("a", FIRST, 60)
    emitted(engine, "a", 1)
    engine.submit("c", asked(50, 6), 40)
    emitted(engine, "c", 1)
    engine.submit("b", [*FIRST[:16], *asked(50, 5)], LENGTH)
    for _ in range(20):
        engine.step()


def forked(engine: Watched) -> None:
    engine.submit("a", FIRST, LENGTH)
    emitted(engine, "a", 3)
    engine.fork("a", [OTHER[3], OTHER[4]])


def long_windows(engine: Watched) -> None:
    """Two leave blocks behind; whenever one of them has ended another takes blocks."""
    for i, id in enumerate("ab"):
        engine.submit(id, asked(40, 3 + i), 20 + 4 * i)
    for i, (id, gone) in enumerate(("ca", "db")):
        step_until(engine, lambda gone=gone: gone not in engine.sequences)
        engine.submit(id, asked(20, 5 + i), LENGTH)


def alone(engine: Watched) -> None:
    ask(engine, "a", FIRST, 20)


def apart(engine: Watched) -> None:
    """Two with nothing in common, of about one length."""
    engine.submit("a", asked(20, 1), LENGTH)
    engine.submit("b", asked(22, 2), LENGTH)


def far_apart(engine: Watched) -> None:
    """Two of lengths that are still computed together, in another number of blocks."""
    engine.submit("a", asked(16, 1), LENGTH)
    engine.submit("b", asked(22, 2), LENGTH)


def copied_twice(engine: Watched) -> None:
    """Two go on, both at once, from the middle of a block that is nobody's."""
    ask(engine, "a", asked(20, 1, PREFIX), 4)
    for i, id in enumerate("bc"):
        engine.submit(id, [*FIRST[:18], *asked(9, 3 + i)], 20)
    emitted(engine, "c", 2)
    engine.submit("d", asked(40, 5), 4)


def partly_hit(engine: Watched) -> None:
    """A hit that ends within a block."""
    ask(engine, "a", FIRST)
    ask(engine, "b", [*FIRST[:18], *asked(9, 3)])


def hit_on_scattered_blocks(engine: Watched) -> None:
    """Blocks are handed out in another order than they lie."""
    engine.pool.free.reverse()
    partly_hit(engine)


def copies_of_two(engine: Watched) -> None:
    """Two prefixes, each gone on from within a block."""
    ask(engine, "a", FIRST)
    ask(engine, "b", OTHER)
    ask(engine, "c", [*FIRST[:18], *asked(9, 3)])
    ask(engine, "d", [*OTHER[:18], *asked(9, 4)])


def repeated(engine: Watched) -> None:
    """A prompt of whole blocks, again, while a third takes what is free."""
    prompt = asked(21, 1)
    assert len(prompt) % 4 == 0
    ask(engine, "a", prompt, 4)
    engine.submit("b", prompt, LENGTH)
    emitted(engine, "b", 1)
    engine.submit("c", OTHER, LENGTH)


def continued(engine: Watched) -> None:
    """Somebody goes on from all that a request has said."""
    ask(engine, "a", FIRST, LENGTH)
    ask(engine, "b", [*said(engine, FIRST), *OTHER[:6]])


def said(engine: Watched, prompt: list[int]) -> list[int]:
    """The longest published tokens that begin like a prompt."""
    entries = [tokens for _, tokens, _ in engine.cache.tree.entries() if list(tokens[:16]) == prompt[:16]]
    return list(max(entries, key=len))


# Batches.


def one_leaves(engine: Watched) -> None:
    for i, id in enumerate("abcd"):
        engine.submit(id, asked(20 + i, i), 4 if id == "a" else LENGTH)


def eight(engine: Watched) -> None:
    for i in range(8):
        engine.submit(str(i), asked(9, i), 6)


def hit_and_miss(engine: Watched) -> None:
    ask(engine, "a", FIRST)
    engine.submit("b", SECOND, LENGTH)
    engine.submit("c", asked(30, 5), LENGTH)


def chunks(engine: Watched) -> None:
    ask(engine, "a", asked(45, 5))


def two_shares_around_one(engine: Watched) -> None:
    """The first and the last have a prefix in common, the one between them has not."""
    ask(engine, "a", FIRST)
    for id, prompt in (("b", FIRST), ("c", OTHER), ("d", SECOND)):
        engine.submit(id, prompt, LENGTH)


def two_after_two(engine: Watched) -> None:
    """Two that share a prefix, then two that share nothing."""
    ask(engine, "a", FIRST)
    for id, prompt in (("b", FIRST[:-1]), ("c", SECOND)):
        engine.submit(id, prompt, LENGTH)
    finish(engine)
    apart_again = (("d", OTHER), ("e", asked(23, 4)))
    for id, prompt in apart_again:
        engine.submit(id, prompt, LENGTH)


def forks_wait(engine: Watched) -> None:
    """Forks of the first of two wait for a place in the batch."""
    engine.submit("a", FIRST, 20)
    engine.submit("b", OTHER, 20)
    emitted(engine, "b", 2)
    engine.fork("a", [OTHER[3], OTHER[4]])


def a_turn_is_retained(engine: Watched) -> None:
    """A turn has ended, and its neighbour goes on in a padded batch."""
    engine.submit("a", asked(22, 1), 4, conversation="talk")
    engine.submit("b", asked(20, 2), 20)
    step_until(engine, lambda: "a" not in engine.sequences)
    emitted(engine, "b", 10)
    engine.submit("c", OTHER[:5], LENGTH, conversation="talk")


# Guesses.


def guessed(engine: Watched) -> None:
    """All guesses are wrong; a second request takes blocks at the same time, and a third goes on from the first."""
    engine.scheduler._draft = lambda sequence: (11, 12, 13)
    engine.submit("a", FIRST, LENGTH)
    engine.submit("b", asked(22, 3), LENGTH)
    step_until(engine, lambda: not engine.sequences)
    engine.settle()
    ask(engine, "c", [*said(engine, FIRST), *OTHER[:6]])


# Windows.


def evicted_behind_a_window(engine: Watched) -> None:
    """A prefix is evicted while its request runs, which publishes more after that."""
    prompt = asked(40, 3)
    engine.submit("a", prompt, 20)
    emitted(engine, "a", 2)
    evict_idle(engine)
    finish(engine)
    ask(engine, "b", [*prompt[:30], *OTHER[:9]])
