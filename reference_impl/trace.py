"""The trace: every use of a block, in order."""

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """What happened to a block."""

    ALLOCATE = "allocate"  # a request got it, private
    SHARE = "share"  # a request took what it holds, having found it by its tokens
    FORK = "fork"  # a child, or a conversation's next turn, took what its parent has written to it
    COPY = "copy"  # its K/V were copied from block `source`
    WRITE = "write"  # K/V of a request's tokens, or of padding, were written to it
    PUBLISH = "publish"  # it can be found by its tokens
    EVICT = "evict"  # it can be found no more
    RELEASE = "release"  # a request let go of it
    SWAP_OUT = "swap-out"  # its K/V were copied to the host
    SWAP_IN = "swap-in"  # K/V of a request came back from the host to it
    FETCH = "fetch"  # K/V came from the remote store to it


@dataclass(frozen=True, slots=True)
class Event:
    """One use of a block."""

    step: int
    kind: Kind
    request: str  # "" where it is nobody's
    block: int
    offset: int = 0  # in the block, tokens
    length: int = 0  # tokens
    position: int = 0  # of the request, of the first of these tokens
    source: int | None = None  # the block that was copied


class Trace:
    """Events since they were last taken."""

    def __init__(self) -> None:
        self.step = 0
        self._events: list[Event] = []

    def add(
        self,
        kind: Kind,
        request: str,
        block: int,
        offset: int = 0,
        length: int = 0,
        position: int = 0,
        source: int | None = None,
    ) -> None:
        """Note one event of the step that runs."""
        self._events.append(Event(self.step, kind, request, block, offset, length, position, source))

    def take(self) -> list[Event]:
        """The events so far, which are forgotten here."""
        events, self._events = self._events, []
        return events
