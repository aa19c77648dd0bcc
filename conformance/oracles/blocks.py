"""Oracle `blocks`: does the log of the cache keep the rules of ownership?

The three tell-tales of the experiment kvfence grew out of. The length log: a request that starts to write in a slot
behind what somebody else left there. The key log: a request that takes K/V by a key under which they were never
published, or which are not what its own tokens give. The overlap: a request that writes over what another one, not
finished yet, has written.

K/V of a position depend on all tokens up to it: they are right for another request only at the same position, behind
the same tokens. What was published is believed to be the publisher's, until the log shows another use of its offsets.

A length of 0 is not told: at least one token. Then what is taken is all that was published from there on, and what was
published reaches as far as it is taken; where neither is told, only the first token is compared. A request of which
only the prompt is known is compared as far as that goes.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial

from kvfence.adapters.observation import Action, CacheEvent

Tokens = Sequence[object]  # of a request; with what else K/V depend on, where requests differ in it


@dataclass(frozen=True)
class Breach:
    """One rule broken, once: the request that is hit, and the one whose K/V it meets."""

    kind: str  # length, key or overlap
    victim: str  # request ids as the engine was given them
    source: str | None
    event: CacheEvent
    told: str


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


@dataclass
class _Slot:
    laid: dict[int, _Line] = field(default_factory=dict)  # by offset, the last line that says whose K/V are there
    published: dict[str, _Line] = field(default_factory=dict)  # by key
    held: dict[str, list[range]] = field(default_factory=dict)  # offsets that requests rely on, until they let go

    def owner(self, offset: int) -> str | None:
        line = self.laid.get(offset)
        return line.event.request if line else None


class Ledger:
    """What an engine's slots hold, replayed from its log over all its life: a line left out is a rule broken."""

    def __init__(self) -> None:
        self._slots: dict[int, _Slot] = {}
        self._tokens: dict[str, Tokens] = {}
        self._unanswered: set[str] = set()  # requests of whose tokens only the prompt is known
        self._lines = 0

    def replay(self, events: Iterable[CacheEvent], tokens: Mapping[str, Tokens]) -> list[Breach]:
        """Go through the events of one call, of requests with these `tokens` (prompt and output), which end with it.

        Of each rule the first breach of each pair of requests is returned, where the one that is hit is of this call.
        """
        self._tokens.update(tokens)
        breaches: dict[tuple[str, str, str | None], Breach] = {}
        for event in events:
            self._lines += 1
            for breach in self._apply(_Line(self._lines, event)):
                if breach.victim in tokens:
                    breaches.setdefault((breach.kind, breach.victim, breach.source), breach)
        for slot in self._slots.values():
            slot.held.clear()
        return list(breaches.values())

    def replay_failed(self, events: Iterable[CacheEvent], prompts: Mapping[str, Tokens]) -> None:
        """Go through the events of a call that brought no answers: they are known, and nobody is judged by them."""
        self._unanswered.update(prompts)
        self.replay(events, prompts)

    def _apply(self, line: _Line) -> Iterable[Breach]:
        event = line.event
        slot = self._slots.setdefault(event.slot, _Slot())
        match event.action:
            case Action.WRITE:
                yield from self._write(slot, line)
            case Action.PUBLISH:
                slot.published[event.key] = line
                slot.laid.update(dict.fromkeys(_offsets(event, event.length), line))
            case Action.REUSE:
                yield from self._reuse(slot, event)
            case Action.FREE:
                slot.held.pop(event.request, None)

    def _write(self, slot: _Slot, line: _Line) -> Iterable[Breach]:
        event = line.event
        request, offsets = event.request, _offsets(event, event.length)
        stale = event.start - event.position
        if stale > 0 and request not in slot.held:
            source = slot.owner(stale - 1)
            told = f"begins at offset {event.start} of slot {event.slot} with its token {event.position}"
            yield Breach("length", request, source, event, f"{told}: what is before it was {_whose(source)}")
        for other, held in slot.held.items():
            if other != request and any(_overlap(offsets, part) for part in held):
                told = f"is overwritten by {request} in slot {event.slot} at offset {event.start} while it still runs"
                yield Breach("overlap", other, request, event, told)
        slot.held.setdefault(request, []).append(offsets)
        slot.laid.update(dict.fromkeys(offsets, line))

    def _reuse(self, slot: _Slot, event: CacheEvent) -> Iterable[Breach]:
        published = slot.published.get(event.key)
        untold = published.event.start + published.event.length - event.start if published else 0
        offsets = _offsets(event, event.length or untold)
        slot.held.setdefault(event.request, []).append(offsets)
        agreed = cache(partial(self._agreed, event.request))
        faults = (_fault(slot, published, event, offset, agreed) for offset in offsets)
        if first := next(filter(None, faults), None):
            source, fault = first
            told = f"takes {len(offsets)} tokens of K/V by key {event.key or '(none)'} from slot {event.slot}; {fault}"
            yield Breach("key", event.request, source, event, told)

    def _agreed(self, request: str, source: str) -> int:
        """The leading tokens in which a source is a request's equal, as far as its own are known."""
        own, theirs = self._tokens.get(request, ()), self._tokens.get(source, ())
        unknown = source not in self._tokens or source in self._unanswered
        equal = len(own) if unknown else min(len(own), len(theirs))
        return next((i for i, (a, b) in enumerate(zip(own, theirs, strict=False)) if a != b), equal)


def _fault(
    slot: _Slot, published: _Line | None, taken: CacheEvent, offset: int, agreed: Callable[[str], int]
) -> tuple[str | None, str] | None:
    """Whose K/V are taken at an offset and what is wrong with them, or None where they are right."""
    if published is None:
        return slot.owner(offset), "nobody has published them"
    if not published.covers(offset):
        told = f"published were {published.event.length} from offset {published.event.start} on"
        return slot.owner(offset), told
    line = max(published, slot.laid.get(offset, published), key=lambda line: line.number)
    source, theirs, position = line.event.request, line.position(offset), taken.position + offset - taken.start
    if theirs != position:
        return source, f"the K/V for position {position} are those of position {theirs}"
    if agreed(source) > position:
        return None
    if line is published:
        return source, f"they were published for other tokens, from position {agreed(source)} on"
    return source, f"they were overwritten by {source}, whose tokens are others from position {agreed(source)} on"


def _offsets(event: CacheEvent, length: int) -> range:
    return range(event.start, event.start + max(length, 1))


def _overlap(a: range, b: range) -> bool:
    return max(a.start, b.start) < min(a.stop, b.stop)


def _whose(owner: str | None) -> str:
    return "never written" if owner is None else f"left by {owner}"
