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
from functools import cache

from kvfence.adapters.observation import Action, CacheEvent
from kvfence.conformance.oracles.slots import (
    WHOLE,
    Breach,
    Fault,
    Line,
    Slot,
    breach_of,
    differing,
    offsets_of,
    overlap,
    unfindable,
    untold,
    way,
    whose,
)

Tokens = Sequence[object]  # of a request; a Mark each, where requests differ in what else K/V depend on


class Ledger:
    """What an engine's slots hold, replayed from its log over all its life: a line left out is a rule broken."""

    def __init__(self) -> None:
        self._slots: dict[int, Slot] = {}
        self._tokens: dict[str, Tokens] = {}
        self._unanswered: set[str] = set()  # requests of whose tokens only the prompt is known
        self._taken: dict[str, list[Line]] = {}  # by requests that have not computed since
        self._copied: set[tuple[str, int]] = set()  # requests with positions that were copied for them
        self._wrote: dict[str, int] = {}  # number of the last line by which requests have written
        self._begun: set[str] = set()  # requests that have come to a slot in this call
        self._lines = 0

    def replay(self, events: Iterable[CacheEvent], tokens: Mapping[str, Tokens]) -> list[Breach]:
        """Go through the events of one call, of requests with these `tokens` (prompt and output), which end with it.

        Of each rule the first breach of each pair of requests is returned, where the one that is hit is of this call.
        """
        self._tokens.update(tokens)
        breaches: dict[tuple[str, str, str | None], Breach] = {}
        for event in events:
            self._lines += 1
            for breach in self._apply(Line(self._lines, event), tokens):
                if breach.victim in tokens:
                    breaches.setdefault((breach.kind, breach.victim, breach.source), breach)
        for slot in self._slots.values():
            slot.held.clear()
        self._taken.clear()
        self._copied.clear()
        self._wrote.clear()
        self._begun.clear()
        return list(breaches.values())

    def replay_failed(self, events: Iterable[CacheEvent], prompts: Mapping[str, Tokens]) -> None:
        """Go through the events of a call that brought no answers: they are known, and nobody is judged by them."""
        self._unanswered.update(prompts)
        self.replay(events, prompts)

    def _apply(self, line: Line, current: Mapping[str, Tokens]) -> Iterator[Breach]:
        event = line.event
        slot = self._slots.setdefault(event.slot, Slot())
        if event.action is not Action.FREE:
            self._begun.add(event.request)
        match event.action:
            case Action.ALLOCATE:
                yield from self._hand_out(slot, line)
            case Action.WRITE:
                self._wrote[event.request] = line.number
                yield from self._look(self._taken.pop(event.request, ()))
                yield from self._stray(slot, line, event.request in current)
                yield from self._write(slot, line)
            case Action.COPY | Action.RESTORE | Action.FETCH:
                if event.action is Action.COPY:
                    self._copied.add((event.request, event.position))
                yield from self._write(slot, line)
            case Action.PUBLISH:
                self._publish(slot, line)
            case Action.REUSE | Action.FORK:
                yield from self._take(slot, line)
            case Action.EVICT:
                slot.withdrawn += slot.published.values()
                slot.published.clear()
            case Action.FREE:
                # One of the same name may let go of what it has kept since an earlier call.
                begun = event.request in self._begun
                yield from self._let_go(slot, line, begun and event.request in current)

    def _hand_out(self, slot: Slot, line: Line) -> Iterator[Breach]:
        request = line.event.request
        for other in slot.held:
            if other != request:
                told = f"has slot {line.event.slot} when it is handed to {request}"
                yield Breach("owner", other, request, line.event, told)
        slot.handed = line.number
        slot.held[request] = [WHOLE]

    def _stray(self, slot: Slot, line: Line, current: bool) -> Iterator[Breach]:
        """A request that writes to a slot which nobody has hits itself: its next owner will write there too."""
        event = line.event
        if slot.handed and current and not slot.held:
            had = ", which it has let go of" if event.request in slot.left else ", which it was never given"
            yield Breach("table", event.request, None, event, f"writes to slot {event.slot}{had}")

    def _write(self, slot: Slot, line: Line) -> Iterator[Breach]:
        event = line.event
        request, offsets = event.request, offsets_of(event, event.length)
        stale = event.start - event.position
        if stale > 0 and request and request not in slot.held:
            source = slot.owner(stale - 1)
            told = f"begins at offset {event.start} of slot {event.slot} with its token {event.position}"
            yield Breach("length", request, source, event, f"{told}: what is before it was {whose(source)}")
        for other, held in slot.held.items():
            unread = any(one.event.slot == event.slot for one in self._taken.get(other, ()))
            if other != request and not unread and any(overlap(offsets, part) for part in held):
                by = request or "padding"
                told = f"is overwritten by {by} in slot {event.slot} at offset {event.start} while it still runs"
                yield Breach("overlap", other, request or None, event, told, way(slot, event))
        # Who shares a slot relies on what it wrote there, too; who was handed it has all of it.
        shares = request in slot.held and WHOLE not in slot.held[request]
        if request and (shares or not slot.handed):
            slot.held.setdefault(request, []).append(offsets)
        slot.laid.update(dict.fromkeys(offsets, line))

    def _publish(self, slot: Slot, line: Line) -> None:
        event = line.event
        slot.published[event.key] = line
        slot.withdrawn.clear()
        if not slot.handed:
            slot.laid.update(dict.fromkeys(offsets_of(event, event.length), line))

    def _take(self, slot: Slot, line: Line) -> Iterator[Breach]:
        event, published = line.event, slot.published.get(line.event.key)
        offsets = offsets_of(event, event.length or untold(published, event))
        slot.held.setdefault(event.request, []).append(offsets)
        fault = None
        if event.action is Action.REUSE:
            end = event.position + len(offsets)
            fault = unfindable(
                slot, published, offsets, lambda old: self._agreed(event.request, old.event.request)[0] >= end
            )
        if fault is None and slot.handed:
            self._taken.setdefault(event.request, []).append(line)
            return
        if fault := fault or self._foreign(slot, published, event, offsets):
            yield breach_of(event, offsets, fault)

    def _look(self, taken: Iterable[Line]) -> Iterator[Breach]:
        """What a request has taken is read for the first time."""
        for line in taken:
            event, slot = line.event, self._slots[line.event.slot]
            offsets = offsets_of(event, event.length)
            if fault := self._foreign(slot, slot.published.get(event.key), event, offsets):
                yield breach_of(event, offsets, fault)

    def _let_go(self, slot: Slot, line: Line, current: bool) -> Iterator[Breach]:
        request, taken = line.event.request, self._taken.get(line.event.request, [])
        unread = [one for one in taken if one.event.slot == line.event.slot]
        for one in unread:
            taken.remove(one)
        # What was not copied before it was let go of has not been read, and may have been written later.
        late = ("unwritten", "abandoned", "tail")
        copied = any((request, one.event.position) in self._copied for one in unread)
        yield from (breach for breach in self._look(unread) if copied or breach.cause not in late)
        wrote = self._wrote.get(request, 0) > slot.left.get(request, line.number)
        slot.left[request] = line.number
        if slot.held.pop(request, None) is None and slot.handed and current:
            for victim in slot.held or (request,):
                held = ", which it has," if victim != request else ""
                told = f"sees slot {line.event.slot}{held} let go of by {request}, which does not have it"
                source, cause = request if victim != request else None, "used" if wrote else "twice"
                yield Breach("free", victim, source, line.event, told, cause)

    def _foreign(self, slot: Slot, published: Line | None, taken: CacheEvent, offsets: range) -> Fault | None:
        """What is wrong with the first of the K/V at these offsets that are not what the taker's own tokens give."""
        agreed = cache(lambda source: self._agreed(taken.request, source))
        for offset in offsets:
            line = slot.laid.get(offset, None if slot.handed else published)
            if line is None or line.number < slot.handed:
                left = slot.owner(offset)
                tail = offset == offsets[-1] and len(offsets) > 1
                gone = published is not None and slot.handed and published.event.request not in slot.held
                cause = "tail" if tail else "abandoned" if gone else "unwritten"
                return Fault(left, cause, f"nobody has written them since it was handed out ({whose(left)})")
            if published and published.number > line.number and not slot.handed:
                line = published
            source, theirs, position = line.event.request, line.position(offset), taken.position + offset - taken.start
            if theirs != position:
                return Fault(source, "position", f"the K/V for position {position} are those of position {theirs}")
            at, differs = agreed(source)
            if at > position:
                continue
            if published and source != published.event.request:
                told = f"they were overwritten by {source or 'padding'}, whose tokens are others from position {at} on"
                return Fault(source or None, "overwritten", told)
            other = "other tokens" if differs == "token" else f"another {differs}"
            return Fault(source, differs, f"they were made for {other}, from position {at} on")
        return None

    def _agreed(self, request: str, source: str) -> tuple[int, str]:
        """The leading tokens in which a source is a request's equal, as far as its own are known; what differs then."""
        own, theirs = self._tokens.get(request, ()), self._tokens.get(source, ())
        unknown = source not in self._tokens or source in self._unanswered
        equal = len(own) if unknown and source else min(len(own), len(theirs))
        at = next((i for i, (a, b) in enumerate(zip(own, theirs, strict=False)) if a != b), equal)
        return at, differing(own[at], theirs[at]) if at < min(len(own), len(theirs)) else "token"
