"""Conversations of an engine that keeps none: the client sends their history again, and its prefix cache knows it."""

from collections.abc import Sequence

from kvfence.adapters.api import RefusedError, Request


class Conversations:
    """Histories by conversation, in tokens."""

    def __init__(self) -> None:
        self._histories: dict[str, tuple[int, ...]] = {}
        self._running: set[str] = set()

    def begin(self, request: Request) -> tuple[int, ...]:
        """The whole prompt of a request. Raises RefusedError if a turn of its conversation runs."""
        talk = request.conversation
        if talk is None:
            return request.prompt
        if talk in self._running:
            raise RefusedError(f"a turn of conversation {talk} runs already")
        self._running.add(talk)
        return (*self._histories.get(talk, ()), *request.prompt)

    def end(self, request: Request, said: Sequence[int] | None) -> None:
        """Note a turn's prompt and answer; one that was cut short, None, leaves nothing."""
        if (talk := request.conversation) is None:
            return
        self._running.discard(talk)
        if said is not None:
            self._histories[talk] = (*self._histories.get(talk, ()), *request.prompt, *said)

    def edit(self, talk: str, history: Sequence[int]) -> None:
        """Replace a history. Raises RefusedError if there is none or a turn of it runs."""
        if talk in self._running or talk not in self._histories:
            raise RefusedError(f"conversation {talk} has no history that could be edited now")
        self._histories[talk] = tuple(history)
