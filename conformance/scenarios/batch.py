"""Requests side by side, and one after another on the same blocks."""

from kvfence.conformance.scenarios.cast import Cast, scenario
from kvfence.conformance.scenarios.scenario import PRIVATE, ROOMY, TIGHT, TIGHT_PRIVATE


@scenario("batch.independent", PRIVATE)
def strangers(cast: Cast) -> None:
    """Eight at once that have nothing in common."""
    for i in range(8):
        cast.ask(f"A{i}", cast.prefix(1, i), n=20)


@scenario("batch.independent", PRIVATE)
def ragged(cast: Cast) -> None:
    """Short and long ones in one batch, and one that comes when the others are under way."""
    cast.ask("short", cast.write("short"))
    cast.ask("long", cast.prefix(6, 3))
    cast.ask("middle", cast.prefix(2, -1))
    cast.ask("late", cast.write("late"), at=("short", 5))


@scenario("padding.writes-nothing", PRIVATE)
def uneven_rows(cast: Cast) -> None:
    """Three rows, then two, then one: what a batch is padded to is no multiple of that. One is parked meanwhile."""
    cast.ask("parked", cast.prefix(2), n=40)
    cast.preempt("parked", at=("parked", 6))
    for i, n in enumerate((12, 18, 24)):
        cast.ask(f"B{i}", cast.prefix(1, i), n=n)


@scenario("slot.begins-empty", TIGHT_PRIVATE)
def recycled(cast: Cast) -> None:
    """One after another on a pool that holds two: each gets blocks that others have filled."""
    before = cast.ask("A0", cast.prefix(4), n=36)
    for i, blocks in enumerate((1, 3, 2, 4, 0), start=1):
        before = cast.ask(f"A{i}", cast.prefix(blocks, i % 3), after=before)


@scenario("slot.begins-empty", TIGHT_PRIVATE)
def recycled_in_batch(cast: Cast) -> None:
    """Short ones come and go beside a long one."""
    cast.ask("long", cast.prefix(2), n=60)
    for i in range(5):
        cast.ask(f"B{i}", cast.prefix(1, i - 2), at=("long", 4 + 9 * i), n=8)


@scenario("batch.shared", ROOMY)
def hits_and_misses(cast: Cast) -> None:
    """A batch in which some find their prefix and some find nothing, of several lengths."""
    prefix = cast.prefix(2)
    cast.ask("first", prefix)
    cast.ask("hit", prefix, after="first", hit=True)
    cast.ask("miss", cast.prefix(2))
    cast.ask("tiny", cast.write("tiny"))
    cast.ask("long-miss", cast.prefix(4, 5))
    cast.ask("hit-too", cast.write("hit-too", prefix, share=0.9), hit=True)


@scenario("batch.shared", ROOMY)
def eight_on_a_prefix(cast: Cast) -> None:
    """Eight on one prefix, all at once; then eight of their own, all at once."""
    prefix = cast.prefix(3)
    cast.ask("first", prefix, n=8)
    cast.ask("A0", prefix, after="first", n=12, hit=True)
    for i in range(1, 8):
        cast.ask(f"A{i}", prefix, n=12, hit=True)
    cast.ask("B0", cast.prefix(3), after="A7", n=16)
    for i in range(1, 8):
        cast.ask(f"B{i}", cast.prefix(3), n=16)


@scenario("attention.own-only", TIGHT_PRIVATE)
def long_beside_short(cast: Cast) -> None:
    """A short row beside long ones, on blocks that another has filled: most of what it could read is not its own."""
    cast.ask("filler", cast.prefix(9), n=20)
    cast.ask("short", cast.write("short"), after="filler", n=20)
    for i, blocks in enumerate((3, 1)):
        cast.ask(f"A{i}", cast.prefix(blocks, i), n=20)


@scenario("capacity.waits", TIGHT)
def beyond_all_room(cast: Cast) -> None:
    """More than there are places, on one prefix and beside it, and one that no pool would hold."""
    prefix = cast.prefix(2)
    cast.ask("first", prefix, n=4)
    for i in range(4):
        cast.ask(f"A{i}", cast.write(f"A{i}", prefix, share=0.9), after="first" if i == 0 else None, n=24)
    cast.ask("large", (*prefix, *cast.prefix(20, beside=prefix)), refused=True)
    for i in range(4):
        cast.ask(f"B{i}", cast.prefix(2, i), n=16)
    cast.ask("later", cast.write("later", prefix, share=0.9), after="B3")
