"""Oracle `blocks`: does the log of the cache keep the rules of ownership?

Three rules are the tell-tales of the experiment kvfence grew out of. The length log: a request that starts to write in
a slot behind what somebody else left there. The key log: a request that takes K/V by a key under which they were never
published, or which are not what its own tokens give. The overlap: a request that writes over what another one, not
finished yet, relies on. A log that tells to whom slots are handed out breaks three more: a slot handed out that another
request has; one let go of by who does not have it; and K/V that a fork or a next turn takes, not being its own.

K/V of a position depend on all tokens up to it: they are right for another request only at the same position, behind
the same tokens. What was published is believed to be the publisher's, until the log shows another use of its offsets;
where it tells to whom slots were handed out, only what was written since then is there, and what is taken is looked at
when the taker first computes: what is written in between is there to be read.

A length of 0 is not told: at least one token. Then what is taken is all that was published from there on, and what was
published reaches as far as it is taken; where neither is told, only the first token is compared. A request of which
only the prompt is known is compared as far as that goes.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import NamedTuple

from kvfence.adapters.observation import Action, CacheEvent

Tokens = Sequence[object]  # of a request; a Mark each, where requests differ in what else K/V depend on
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

    kind: str  # length, key, overlap, owner, free or fork
    victim: str  # request ids as the engine was given them
    source: str | None
    event: CacheEvent
    told: str
    # Of key and fork, what is wrong with what was taken: withdrawn, unpublished, beyond, position, unwritten,
    # overwritten, or what the K/V were made of otherwise: token, salt, adapter, weights or media. Of overlap, how the
    # writer came there: handed (it has the slot too), shared, freed (it had it), fetched, padding or stray.
    cause: str = ""


@dataclass(frozen=True)
class _Line:
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


class _Fault(NamedTuple):
    source: str | None
    cause: str
    told: str


@dataclass
class _Slot:
    laid: dict[int, _Line] = field(default_factory=dict)  # by offset, the last line that says whose K/V are there
    published: dict[str, _Line] = field(default_factory=dict)  # by key
    withdrawn: bool = False  # whether it could be found once, and can no more
    held: dict[str, list[range]] = field(default_factory=dict)  # offsets that requests rely on, until they let go
    left: set[str] = field(default_factory=set)  # requests that let go of it
    handed: int = 0  # number of the line that handed it out last; 0 = that is not told

    def owner(self, offset: int) -> str | None:
        line = self.laid.get(offset)
        return line.event.request if line else None


class Ledger:
    """What an engine's slots hold, replayed from its log over all its life: a line left out is a rule broken."""

    def __init__(self) -> None:
        self._slots: dict[int, _Slot] = {}
        self._tokens: dict[str, Tokens] = {}
        self._unanswered: set[str] = set()  # requests of whose tokens only the prompt is known
        self._taken: dict[str, list[_Line]] = {}  # by requests that have not computed since
        self._lines = 0

    def replay(self, events: Iterable[CacheEvent], tokens: Mapping[str, Tokens]) -> list[Breach]:
        """Go through the events of one call, of requests with these `tokens` (prompt and output), which end with it.

        Of each rule the first breach of each pair of requests is returned, where the one that is hit is of this call.
        """
        self._tokens.update(tokens)
        breaches: dict[tuple[str, str, str | None], Breach] = {}
        for event in events:
            self._lines += 1
            for breach in self._apply(_Line(self._lines, event), tokens):
                if breach.victim in tokens:
                    breaches.setdefault((breach.kind, breach.victim, breach.source), breach)
        for slot in self._slots.values():
            slot.held.clear()
        self._taken.clear()
        return list(breaches.values())

    def replay_failed(self, events: Iterable[CacheEvent], prompts: Mapping[str, Tokens]) -> None:
        """Go through the events of a call that brought no answers: they are known, and nobody is judged by them."""
        self._unanswered.update(prompts)
        self.replay(events, prompts)

    def _apply(self, line: _Line, current: Mapping[str, Tokens]) -> Iterator[Breach]:
        event = line.event
        slot = self._slots.setdefault(event.slot, _Slot())
        match event.action:
            case Action.ALLOCATE:
                yield from self._hand_out(slot, line)
            case Action.WRITE:
                yield from self._look(self._taken.pop(event.request, ()))
                yield from self._write(slot, line)
            case Action.COPY | Action.RESTORE | Action.FETCH:
                yield from self._write(slot, line)
            case Action.PUBLISH:
                self._publish(slot, line)
            case Action.REUSE | Action.FORK:
                yield from self._take(slot, line)
            case Action.EVICT:
                slot.published.clear()
                slot.withdrawn = True
            case Action.FREE:
                yield from self._let_go(slot, line, event.request in current)

    def _hand_out(self, slot: _Slot, line: _Line) -> Iterator[Breach]:
        request = line.event.request
        for other in slot.held:
            if other != request:
                told = f"has slot {line.event.slot} when it is handed to {request}"
                yield Breach("owner", other, request, line.event, told)
        slot.handed = line.number
        slot.held[request] = [WHOLE]

    def _write(self, slot: _Slot, line: _Line) -> Iterator[Breach]:
        event = line.event
        request, offsets = event.request, _offsets(event, event.length)
        stale = event.start - event.position
        if stale > 0 and request and request not in slot.held:
            source = slot.owner(stale - 1)
            told = f"begins at offset {event.start} of slot {event.slot} with its token {event.position}"
            yield Breach("length", request, source, event, f"{told}: what is before it was {_whose(source)}")
        for other, held in slot.held.items():
            unread = any(one.event.slot == event.slot for one in self._taken.get(other, ()))
            if other != request and not unread and any(_overlap(offsets, part) for part in held):
                by = request or "padding"
                told = f"is overwritten by {by} in slot {event.slot} at offset {event.start} while it still runs"
                yield Breach("overlap", other, request or None, event, told, _way(slot, event))
        if request and not slot.handed:
            slot.held.setdefault(request, []).append(offsets)
        slot.laid.update(dict.fromkeys(offsets, line))

    def _publish(self, slot: _Slot, line: _Line) -> None:
        event = line.event
        slot.published[event.key] = line
        slot.withdrawn = False
        if not slot.handed:
            slot.laid.update(dict.fromkeys(_offsets(event, event.length), line))

    def _take(self, slot: _Slot, line: _Line) -> Iterator[Breach]:
        event, published = line.event, slot.published.get(line.event.key)
        offsets = _offsets(event, event.length or _untold(published, event))
        slot.held.setdefault(event.request, []).append(offsets)
        fault = _unfindable(slot, published, offsets) if event.action is Action.REUSE else None
        if fault is None and slot.handed:
            self._taken.setdefault(event.request, []).append(line)
            return
        if fault := fault or self._foreign(slot, published, event, offsets):
            yield _breach(event, offsets, fault)

    def _look(self, taken: Iterable[_Line]) -> Iterator[Breach]:
        """What a request has taken is read for the first time."""
        for line in taken:
            event, slot = line.event, self._slots[line.event.slot]
            offsets = _offsets(event, event.length)
            if fault := self._foreign(slot, slot.published.get(event.key), event, offsets):
                yield _breach(event, offsets, fault)

    def _let_go(self, slot: _Slot, line: _Line, current: bool) -> Iterator[Breach]:
        request, taken = line.event.request, self._taken.get(line.event.request, [])
        unread = [one for one in taken if one.event.slot == line.event.slot]
        for one in unread:
            taken.remove(one)
        # It may have been copied; what is still to be written there was not.
        yield from (breach for breach in self._look(unread) if breach.cause != "unwritten")
        slot.left.add(request)
        if slot.held.pop(request, None) is None and slot.handed and current:
            for victim in slot.held or (request,):
                whose = f"slot {line.event.slot}, which it has," if victim != request else f"slot {line.event.slot}"
                told = f"sees {whose} let go of by {request}, which does not have it"
                yield Breach("free", victim, request if victim != request else None, line.event, told)

    def _foreign(self, slot: _Slot, published: _Line | None, taken: CacheEvent, offsets: range) -> _Fault | None:
        """What is wrong with the first of the K/V at these offsets that are not what the taker's own tokens give."""
        agreed = cache(lambda source: self._agreed(taken.request, source))
        for offset in offsets:
            line = slot.laid.get(offset, None if slot.handed else published)
            if line is None or line.number < slot.handed:
                left = slot.owner(offset)
                return _Fault(left, "unwritten", f"nobody has written them since it was handed out ({_whose(left)})")
            if published and published.number > line.number and not slot.handed:
                line = published
            source, theirs, position = line.event.request, line.position(offset), taken.position + offset - taken.start
            if theirs != position:
                return _Fault(source, "position", f"the K/V for position {position} are those of position {theirs}")
            at, differs = agreed(source)
            if at > position:
                continue
            if published and source != published.event.request:
                told = f"they were overwritten by {source or 'padding'}, whose tokens are others from position {at} on"
                return _Fault(source or None, "overwritten", told)
            other = "other tokens" if differs == "token" else f"another {differs}"
            return _Fault(source, differs, f"they were made for {other}, from position {at} on")
        return None

    def _agreed(self, request: str, source: str) -> tuple[int, str]:
        """The leading tokens in which a source is a request's equal, as far as its own are known; what differs then."""
        own, theirs = self._tokens.get(request, ()), self._tokens.get(source, ())
        unknown = source not in self._tokens or source in self._unanswered
        equal = len(own) if unknown and source else min(len(own), len(theirs))
        at = next((i for i, (a, b) in enumerate(zip(own, theirs, strict=False)) if a != b), equal)
        return at, _differing(own[at], theirs[at]) if at < min(len(own), len(theirs)) else "token"


def _unfindable(slot: _Slot, published: _Line | None, offsets: range) -> _Fault | None:
    """Why nothing should have been found there, if so."""
    first = offsets[0]
    if published is None:
        cause, told = ("withdrawn", "withdrawn again") if slot.withdrawn else ("unpublished", "never published")
        return _Fault(slot.owner(first), cause, f"they were {told}" if slot.withdrawn else "nobody has published them")
    if published.number < slot.handed:
        return _Fault(slot.owner(first), "withdrawn", "it was handed out to another since they were published")
    beyond = next((offset for offset in offsets if not published.covers(offset)), None)
    if beyond is not None:
        told = f"published were {published.event.length} from offset {published.event.start} on"
        return _Fault(slot.owner(beyond), "beyond", told)
    return None


def _way(slot: _Slot, event: CacheEvent) -> str:
    """How who writes to a slot came there."""
    if not event.request:
        return "padding"
    if event.action is Action.FETCH:
        return "fetched"
    if held := slot.held.get(event.request):
        return "handed" if WHOLE in held else "shared"
    return "freed" if event.request in slot.left else "stray"


def _breach(event: CacheEvent, offsets: range, fault: _Fault) -> Breach:
    reused = event.action is Action.REUSE
    by = f"by key {event.key or '(none)'}" if reused else "as a fork or next turn"
    told = f"takes {len(offsets)} tokens of K/V {by} from slot {event.slot}; {fault.told}"
    return Breach("key" if reused else "fork", event.request, fault.source, event, told, fault.cause)


def _differing(a: object, b: object) -> str:
    if not isinstance(a, Mark) or not isinstance(b, Mark):
        return "token"
    return next((name for name in Mark._fields if getattr(a, name) != getattr(b, name)), "token")


def _untold(published: _Line | None, taken: CacheEvent) -> int:
    return published.event.start + published.event.length - taken.start if published else 0


def _offsets(event: CacheEvent, length: int) -> range:
    return range(event.start, event.start + max(length, 1))


def _overlap(a: range, b: range) -> bool:
    return max(a.start, b.start) < min(a.stop, b.stop)


def _whose(owner: str | None) -> str:
    return "never written" if owner is None else f"left by {owner}"
