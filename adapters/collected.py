"""A session that puts aside what has ended, until it is asked for."""

from collections.abc import Mapping, Sequence

from kvfence.adapters.api import Completion, Session


class CollectedSession(Session):
    """Whoever drives the engine adds to `done` and `failed`, and sets `closed` once it has let go of everything."""

    def __init__(self) -> None:
        self.done: list[Completion] = []
        self.failed: dict[str, str] = {}
        self.closed = False

    def completions(self) -> Sequence[Completion]:
        done, self.done = self.done, []
        return done

    def failures(self) -> Mapping[str, str]:
        failed, self.failed = self.failed, {}
        return failed
