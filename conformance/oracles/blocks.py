"""Oracle `blocks`: does the log of the cache keep the rules of ownership?

The three tell-tales of the experiment kvfence grew out of. The length log: a request that starts to write in a slot
behind what somebody else left there. The key log: a request that takes K/V which were published for other tokens under
the same key. The overlap: a request that writes over what another one, not finished yet, has written.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from kvfence.adapters.observation import Action, CacheEvent

Tokens = Sequence[int]


@dataclass(frozen=True)
class Breach:
    """One rule broken, once: the request that is hit, and the one whose K/V it meets."""

    kind: str  # length, key or overlap
    victim: str  # request ids as the engine was given them
    source: str | None
    event: CacheEvent
    told: str


@dataclass
class _Slot:
    owners: dict[int, str] = field(default_factory=dict)  # by offset, who wrote it last
    held: dict[str, list[range]] = field(default_factory=dict)  # offsets that requests rely on, until they let go


class Ledger:
    """What an engine's slots hold, replayed from its log over all its life."""

    def __init__(self) -> None:
        self._slots: dict[int, _Slot] = {}
        self._published: dict[tuple[int, str], tuple[str, int, int]] = {}  # by slot and key: request, position, length
        self._tokens: dict[str, Tokens] = {}

    def replay(self, events: Iterable[CacheEvent], tokens: Mapping[str, Tokens]) -> list[Breach]:
        """Go through the events of one call, of requests with these `tokens` (prompt and output), which end with it.

        Of each rule the first breach of each pair of requests is returned.
        """
        self._tokens.update(tokens)
        breaches: dict[tuple[str, str, str | None], Breach] = {}
        for event in events:
            for breach in self._apply(event):
                breaches.setdefault((breach.kind, breach.victim, breach.source), breach)
        for slot in self._slots.values():
            for request in tokens:
                slot.held.pop(request, None)
        return list(breaches.values())

    def _apply(self, event: CacheEvent) -> Iterable[Breach]:
        slot = self._slots.setdefault(event.slot, _Slot())
        match event.action:
            case Action.WRITE:
                yield from self._write(slot, event)
            case Action.PUBLISH:
                self._published[event.slot, event.key] = event.request, event.position, event.length
            case Action.REUSE:
                slot.held.setdefault(event.request, []).append(range(event.start, event.start + event.length))
                yield from self._reuse(event)
            case Action.FREE:
                slot.held.pop(event.request, None)

    def _write(self, slot: _Slot, event: CacheEvent) -> Iterable[Breach]:
        request, offsets = event.request, range(event.start, event.start + event.length)
        stale = event.start - event.position
        if stale > 0 and request not in slot.held:
            source = slot.owners.get(stale - 1)
            told = f"begins at offset {event.start} of slot {event.slot} with its token {event.position}"
            yield Breach("length", request, source, event, f"{told}: what is before it was {_whose(source)}")
        for other, held in slot.held.items():
            if other != request and any(_overlap(offsets, part) for part in held):
                told = f"is overwritten by {request} in slot {event.slot} at offset {event.start} while it still runs"
                yield Breach("overlap", other, request, event, told)
        slot.held.setdefault(request, []).append(offsets)
        slot.owners.update(dict.fromkeys(offsets, request))

    def _reuse(self, event: CacheEvent) -> Iterable[Breach]:
        published = self._published.get((event.slot, event.key))
        if published is None:
            return
        source, position, length = published
        begin, end = event.position, event.position + min(event.length, length)
        theirs = self._tokens.get(source, ())[position : position + end - begin]
        own = self._tokens.get(event.request, ())[begin:end]
        if (begin, tuple(theirs)) != (position, tuple(own)):
            first = next((i for i, (a, b) in enumerate(zip(own, theirs, strict=False)) if a != b), 0)
            told = f"takes {event.length} tokens of K/V by key {event.key or '(none)'} from slot {event.slot}"
            told += f"; they were published for other tokens, from position {begin + first} on"
            yield Breach("key", event.request, source, event, told)


def _overlap(a: range, b: range) -> bool:
    return max(a.start, b.start) < min(a.stop, b.stop)


def _whose(owner: str | None) -> str:
    return "never written" if owner is None else f"left by {owner}"
