"""Slots of a cache as its log tells of them: whose K/V are where, who relies on them, and which rule is broken."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from kvfence.adapters.observation import Action, CacheEvent

WHOLE = range(1 << 40)  # of a slot


class Mark(NamedTuple):
    """What the K/V of a position depend on, beside what is before it."""

    token: int
    salt: str | None
    adapter: tuple[str, str] | None
    weights: str
    media: tuple[tuple[int, str], ...]  # positions and contents up to there


@dataclass(frozen=True)
class Breach:
    """One rule broken, once: the request that is hit, and the one whose K/V it meets."""

    kind: str  # length, key, overlap, owner, free, table or fork
    victim: str  # request ids as the engine was given them
    source: str | None
    event: CacheEvent
    told: str
    # Of key and fork, what is wrong with what was taken: withdrawn, leftover (and never published for these tokens),
    # unpublished, beyond, position, unwritten, abandoned (by who would have written it), tail (its last token alone is
    # unwritten), overwritten, or what the K/V were made of otherwise: token, salt, adapter, weights or media. Of
    # overlap, how the writer came there: handed (it has the slot too), shared, freed (it had it), fetched, padding or
    # stray. Of free, what it had let go of before: twice, or used, where it went on computing with it.
    cause: str = ""


@dataclass(frozen=True)
class Line:
    """A line of the log, numbered over the engine's life."""

    number: int
    event: CacheEvent

    def position(self, offset: int) -> int:
        """The request's own position of the token that this line says is at an offset of the slot."""
        return self.event.position + offset - self.event.start

    def covers(self, offset: int) -> bool:
        """Whether an offset can be of what this line is about."""
        ahead = offset - self.event.start
        return ahead >= 0 and (not self.event.length or ahead < self.event.length)


class Fault(NamedTuple):
    """What is wrong with what was taken: whose it is, the cause, and a clause that tells it."""

    source: str | None
    cause: str
    told: str


@dataclass
class Slot:
    """What the log says of one slot up to now."""

    laid: dict[int, Line] = field(default_factory=dict)  # by offset, the last line that says whose K/V are there
    published: dict[str, Line] = field(default_factory=dict)  # by key
    withdrawn: list[Line] = field(default_factory=list)  # publications by which it could be found, and can no more
    held: dict[str, list[range]] = field(default_factory=dict)  # offsets that requests rely on, until they let go
    left: dict[str, int] = field(default_factory=dict)  # requests that let go of it, and the number of the line
    handed: int = 0  # number of the line that handed it out last; 0 = that is not told

    def owner(self, offset: int) -> str | None:
        """The request whose K/V are at an offset."""
        line = self.laid.get(offset)
        return line.event.request if line else None


def unfindable(slot: Slot, published: Line | None, offsets: range, fits: Callable[[Line], bool]) -> Fault | None:
    """Why nothing should have been found there, if so; `fits` says whether a publication was of the same tokens."""
    first = offsets[0]
    if published is None:
        if not slot.withdrawn:
            return Fault(slot.owner(first), "unpublished", "nobody has published them")
        cause = "withdrawn" if any(map(fits, slot.withdrawn)) else "leftover"
        return Fault(slot.owner(first), cause, "they were withdrawn again")
    if published.number < slot.handed:
        return Fault(slot.owner(first), "withdrawn", "it was handed out to another since they were published")
    beyond = next((offset for offset in offsets if not published.covers(offset)), None)
    if beyond is not None:
        told = f"published were {published.event.length} from offset {published.event.start} on"
        return Fault(slot.owner(beyond), "beyond", told)
    return None


def way(slot: Slot, event: CacheEvent) -> str:
    """How who writes to a slot came there."""
    if not event.request:
        return "padding"
    if event.action is Action.FETCH:
        return "fetched"
    if held := slot.held.get(event.request):
        return "handed" if WHOLE in held else "shared"
    return "freed" if event.request in slot.left else "stray"


def breach_of(event: CacheEvent, offsets: range, fault: Fault) -> Breach:
    """The breach of who takes K/V with a fault."""
    reused = event.action is Action.REUSE
    by = f"by key {event.key or '(none)'}" if reused else "as a fork or next turn"
    told = f"takes {len(offsets)} tokens of K/V {by} from slot {event.slot}; {fault.told}"
    return Breach("key" if reused else "fork", event.request, fault.source, event, told, fault.cause)


def differing(a: object, b: object) -> str:
    """The first thing in which two marks differ."""
    if not isinstance(a, Mark) or not isinstance(b, Mark):
        return "token"
    return next((name for name in Mark._fields if getattr(a, name) != getattr(b, name)), "token")


def untold(published: Line | None, taken: CacheEvent) -> int:
    """The length of what is taken where the log leaves it out: all that was published."""
    return published.event.start + published.event.length - taken.start if published else 0


def offsets_of(event: CacheEvent, length: int) -> range:
    """The offsets of a slot that a line is about."""
    return range(event.start, event.start + max(length, 1))


def overlap(a: range, b: range) -> bool:
    """Whether two ranges of offsets have any in common."""
    return max(a.start, b.start) < min(a.stop, b.stop)


def whose(owner: str | None) -> str:
    """A clause that tells whose K/V were there."""
    return "never written" if owner is None else f"left by {owner}"
