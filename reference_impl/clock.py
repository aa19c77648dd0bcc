"""The virtual clock: work that an engine has launched, and when it lands.

On a device a step's writes, copies and transfers end some time after they were launched, each stream in its own order
and none waiting for another unless told to by a fence. Here a tick of the clock is a step of the engine, so that what
would be a race is the same in every run.
"""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum


class Stream(StrEnum):
    """A queue whose work lands in the order in which it was launched."""

    STEPS = "steps"  # forward passes and their writes
    COPIES = "copies"  # of blocks, within the pool and to and from the host
    TRANSFERS = "transfers"  # from a remote store


@dataclass(eq=False)
class Operation:
    """Work in flight. It reads and writes memory when it lands, not before."""

    stream: Stream
    due: int
    run: Callable[[], None]
    after: tuple["Operation", ...] = ()  # fences: what must have landed before
    then: list[Callable[[], None]] = field(default_factory=list)  # called once it has landed
    landed: bool = False


class Clock:
    """Three streams and a logical time."""

    def __init__(self) -> None:
        self.now = 0
        self._streams: dict[Stream, deque[Operation]] = {stream: deque() for stream in Stream}

    def launch(
        self, stream: Stream, run: Callable[[], None], delay: int = 0, after: Iterable[Operation] = ()
    ) -> Operation:
        """Launch work that lands `delay` ticks from now, or when something waits for it; at once without delay."""
        operation = Operation(stream, self.now + delay, run, tuple(op for op in after if not op.landed))
        self._streams[stream].append(operation)
        if not delay:
            self.wait(operation)
        return operation

    def wait(self, operation: Operation) -> None:
        """Have an operation land now, after all that is before it in its stream and all that its fences name."""
        queue = self._streams[operation.stream]
        while not operation.landed:
            first = queue[0]
            for fence in first.after:
                self.wait(fence)
            if first.landed:  # waiting for a fence brought it about
                continue
            queue.popleft()
            first.landed = True  # for whoever is called by what it does, too
            first.run()
            for call in first.then:
                call()

    def tick(self) -> None:
        """Time goes on by one step; what is due lands."""
        self.now += 1
        for queue in self._streams.values():
            while queue and queue[0].due <= self.now:
                self.wait(queue[0])

    def in_flight(self, stream: Stream) -> list[Operation]:
        """Work of a stream that has not landed, oldest first."""
        return list(self._streams[stream])

    def drain(self) -> None:
        """Have everything land."""
        for queue in self._streams.values():
            while queue:
                self.wait(queue[0])
