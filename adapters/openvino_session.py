"""A session of OpenVINO GenAI: requests come and go between its forward passes."""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvfence.adapters.api import Completion, EngineFaultError, RefusedError, Request
from kvfence.adapters.collected import CollectedSession
from kvfence.adapters.conversations import Conversations
from kvfence.adapters.openvino_pipeline import Pipeline, told

IDLE_PASSES = 8  # in which nobody takes part before a session gives up


@dataclass
class Live:
    """A request that has not ended, and its answer up to now."""

    request: Request
    prompt: tuple[int, ...]  # with the history of its conversation
    handle: Any = None  # None = it waits for room
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    cached: int | None = None

    @property
    def ended(self) -> bool:
        return len(self.tokens) >= self.request.max_tokens

    def receive(self, pipeline: Pipeline) -> tuple[int, ...]:
        """Take what the last pass has brought; its tokens."""
        part = pipeline.read(self.handle, None if self.tokens else len(self.prompt))
        if part.echoed is not None:
            self.cached = cached_tokens(len(self.prompt), part.echoed)
        self.tokens += part.tokens
        self.logprobs += part.logprobs
        return part.tokens

    def completion(self, logprobs: bool) -> Completion:
        """The whole answer, with or without logprobs."""
        told = tuple(self.logprobs) if logprobs else None
        return Completion(self.request.id, tuple(self.tokens), told, cached_tokens=self.cached)


def cached_tokens(prompt: int, echoed: int) -> int:
    """How many of a prompt's tokens were cached, by how many logprobs of it were told.

    Each computed token tells that of the next one, the prompt's last none; the first token's own is made up, where it
    is computed. What was preempted in prefill is told twice, and so may count as computed though it was cached.
    """
    return max(prompt - 1 - echoed, 0)


class OpenVINOSession(CollectedSession):
    """OpenVINO GenAI, driven step by step. A request that waits or is in prefill takes part with no tokens."""

    def __init__(self, pipeline: Pipeline, conversations: Conversations, room: int) -> None:
        super().__init__()
        self._pipeline, self._conversations, self._room = pipeline, conversations, room
        self._live: dict[str, Live] = {}
        self._stepped: deque[dict[str, tuple[int, ...]]] = deque()  # passes not yet told of
        self._broken = False

    @property
    def running(self) -> bool:
        """Whether a request has been submitted and has not ended."""
        return bool(self._live)

    def submit(self, request: Request) -> None:
        """Hand a request over. Raises RefusedError if its id is in use, or the engine can never run it."""
        if request.id in self._live:
            raise RefusedError(f"request {request.id} is running already")
        prompt = self._conversations.begin(request)
        if reason := self._pipeline.fits(len(prompt), request.max_tokens):
            self._conversations.end(request, None)
            raise RefusedError(f"request {request.id} {reason}")
        self._live[request.id] = Live(request, prompt)

    def step(self) -> Mapping[str, tuple[int, ...]]:
        for _ in range(IDLE_PASSES):
            if not self._stepped and self._live:
                self._forward()
            if self._stepped:
                return self._stepped.popleft()
            if not self._live:
                return {}
        raise EngineFaultError(f"nobody ran in {IDLE_PASSES} passes; left are the requests {', '.join(self._live)}")

    def cancel(self, id: str) -> None:
        """Withdraw a request. One that has ended is not touched: its completion stays.

        OpenVINO GenAI gives its blocks back at the end of a pass, so the other requests come one pass further.
        """
        live = self._live.pop(id, None)
        if live is None:
            return
        self._conversations.end(live.request, None)
        if live.handle is not None:
            self._withdraw([live])

    def edit(self, conversation: str, history: Sequence[int]) -> None:
        self._conversations.edit(conversation, history)

    def close(self) -> None:
        self.closed = True
        left, self._live = list(self._live.values()), {}
        for live in left:
            self._conversations.end(live.request, None)
        try:
            if not self._broken and (handed := [live for live in left if live.handle is not None]):
                self._withdraw(handed)
        except EngineFaultError:  # whatever fails here, the engine must be able to begin another session
            self._broken = True
        if self._broken:
            self._pipeline.open()

    def _withdraw(self, left: Sequence[Live]) -> None:
        for live in left:
            live.handle.cancel()
        self._forward()
        if held := [live.request.id for live in left if not self._pipeline.let_go(live.handle)]:
            self._broken = True
            raise EngineFaultError(f"request {', '.join(held)} was cancelled and its blocks are still held")

    def _forward(self) -> None:
        """Run one pass, and keep what it brought."""
        self._admit()
        try:
            ran = self._pipeline.step()
        except EngineFaultError:
            self._broken = True
            raise
        stepped: dict[str, tuple[int, ...]] = {}
        for id, live in list(self._live.items()):
            stepped[id] = live.receive(self._pipeline) if live.handle is not None else ()
            if live.ended or (live.handle is not None and self._pipeline.gave_up(live.handle)):
                self._finish(live)
        if ran and stepped:
            self._stepped.append(stepped)

    def _admit(self) -> None:
        """Hand requests over while there is room: the engine itself would batch them all."""
        running = sum(live.handle is not None for live in self._live.values())
        for live in list(self._live.values()):
            if live.handle is None and running < self._room:
                try:
                    live.handle = self._pipeline.add(live.prompt, live.request.max_tokens)
                except RuntimeError as error:
                    self._finish(live, f"it was not accepted: {told(error)}")
                else:
                    running += 1

    def _finish(self, live: Live, why: str = "the pool was full, and the engine gave it up") -> None:
        request = live.request
        del self._live[request.id]
        self._conversations.end(request, live.tokens if live.ended else None)
        if live.ended:
            self.done.append(live.completion(self._pipeline.logprobs))
        else:
            self.failed[request.id] = why
