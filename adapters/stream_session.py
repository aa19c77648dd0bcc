"""A session with a server that steps by itself and streams what it emits."""

from collections import deque
from collections.abc import AsyncGenerator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import aclosing
from dataclasses import dataclass, field
from queue import Queue
from typing import Protocol

from kvfence.adapters.api import AdapterError, Completion, EngineFaultError, RefusedError, Request
from kvfence.adapters.collected import CollectedSession
from kvfence.adapters.conversations import Conversations
from kvfence.adapters.http_client import HTTPClient

Best = tuple[tuple[int, float], ...]  # of one position (token, nats), best first


@dataclass(frozen=True)
class Emitted:
    """One token."""

    token: int
    logprob: float | None = None
    best: Best | None = None


@dataclass(frozen=True)
class Ended:
    """A request has ended by itself."""

    cached: int | None = None


class Server(Protocol):
    """What a session needs of a server."""

    http: HTTPClient

    def admit(self, request: Request, prompt: tuple[int, ...]) -> None:
        """Raises RefusedError for a request that it will never take."""

    def stream(self, request: Request, prompt: tuple[int, ...]) -> AsyncGenerator[Emitted | Ended, None]:
        """What a request emits, and that it has ended. Closing the iterator withdraws the request."""

    def let_go(self, running: int) -> None:
        """Wait until the server runs no more than so many requests. Raises EngineFaultError if it goes on."""


@dataclass
class _Live:
    request: Request
    work: "Future[None]"
    waiting: deque[Emitted] = field(default_factory=deque)  # come, and not yet handed on
    emitted: list[Emitted] = field(default_factory=list)
    ended: Ended | None = None


class StreamSession(CollectedSession):
    """A session that hands tokens on one by one, in the order in which they come.

    The server does not wait: when an operation's moment has come here, it may be some tokens further.
    """

    def __init__(self, server: Server, conversations: Conversations) -> None:
        super().__init__()
        self._server, self._conversations = server, conversations
        self._live: dict[str, _Live] = {}
        self._heard: Queue[tuple[_Live, Emitted | Ended | Exception]] = Queue()

    @property
    def running(self) -> bool:
        """Whether a request has been submitted and has not ended."""
        return bool(self._live)

    def submit(self, request: Request) -> None:
        """Hand a request over. What the server itself refuses is among the failures: it takes its time to say so."""
        if request.id in self._live:
            raise RefusedError(f"request {request.id} is running already")
        prompt = self._conversations.begin(request)
        try:
            self._server.admit(request, prompt)
        except RefusedError:
            self._conversations.end(request, None)
            raise
        live = _Live(request, Future())
        self._live[request.id] = live
        live.work = self._server.http.start(self._listen(live, prompt))

    def step(self) -> Mapping[str, tuple[int, ...]]:
        """Wait until a token is there; no more than one of each request. Empty when nothing is left to do."""
        self._take_in()
        while self._live and not any(live.waiting or live.ended for live in self._live.values()):
            # Every stream ends, or is given up by its client: something always comes.
            self._note(*self._heard.get())
            self._take_in()
        stepped: dict[str, tuple[int, ...]] = {}
        for id, live in list(self._live.items()):
            stepped[id] = ()
            if live.waiting:
                live.emitted.append(live.waiting.popleft())
                stepped[id] = (live.emitted[-1].token,)
            if live.ended and not live.waiting:
                self._finish(live)
        return stepped

    def cancel(self, id: str) -> None:
        """Withdraw a request by closing its stream. One that has ended is not touched: its completion stays."""
        live = self._live.pop(id, None)
        if live is None:
            return
        self._conversations.end(live.request, None)
        live.work.cancel()
        self._server.let_go(len(self._live))

    def edit(self, conversation: str, history: Sequence[int]) -> None:
        self._conversations.edit(conversation, history)

    def close(self) -> None:
        self.closed = True
        left, self._live = self._live, {}
        for live in left.values():
            self._conversations.end(live.request, None)
            live.work.cancel()
        if left:
            self._server.let_go(0)

    async def _listen(self, live: _Live, prompt: tuple[int, ...]) -> None:
        heard: Emitted | Ended | None = None
        try:
            async with aclosing(self._server.stream(live.request, prompt)) as stream:
                async for heard in stream:
                    self._heard.put((live, heard))
            if not isinstance(heard, Ended):
                raise EngineFaultError("the stream broke off")
        except AdapterError as error:
            self._heard.put((live, error))
        except Exception as error:  # an answer that is not what it should be
            reason = " ".join(str(error).split())[:120]
            self._heard.put((live, EngineFaultError(f"nonsense came: {type(error).__name__}: {reason}")))

    def _take_in(self) -> None:
        while not self._heard.empty():
            self._note(*self._heard.get())

    def _note(self, live: _Live, heard: Emitted | Ended | Exception) -> None:
        id = live.request.id
        if self._live.get(id) is not live:
            return  # withdrawn meanwhile
        if isinstance(heard, Emitted):
            live.waiting.append(heard)
        elif isinstance(heard, Ended):
            live.ended = heard
        else:
            del self._live[id]
            self._conversations.end(live.request, None)
            self.failed[id] = str(heard)

    def _finish(self, live: _Live) -> None:
        request, emitted = live.request, live.emitted
        assert live.ended is not None
        del self._live[request.id]
        tokens = tuple(e.token for e in emitted)
        self._conversations.end(request, tokens)
        logprobs = [e.logprob for e in emitted if e.logprob is not None]
        best = [e.best for e in emitted if e.best is not None]
        self.done.append(
            Completion(
                request.id,
                tokens,
                tuple(logprobs) if len(logprobs) == len(tokens) else None,
                tuple(best) if len(best) == len(tokens) else None,
                live.ended.cached,
            )
        )
