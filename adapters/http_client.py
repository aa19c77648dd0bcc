"""HTTP to an engine's server: requests side by side on a loop in a thread of its own, with retries and time-outs.

What a server says is untrusted: it is told in one line, cut short, and without the key that it was asked with.
"""

import asyncio
import json
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine
from concurrent.futures import Future
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass
from types import UnionType
from typing import Any, TypeVar

from kvfence.adapters.api import EngineFaultError, EngineStartError, RefusedError

T = TypeVar("T")
CONNECT_SECONDS = 10.0
LONGEST_WAIT = 30.0  # seconds before a request is sent again, whatever the server asks for
TOLD = 200  # characters of what a server says
LONGEST_LINE = 1 << 24  # bytes
BUSY = (429, 503)
REFUSED = (400, 404, 405, 413, 415, 422)


@dataclass(frozen=True)
class Limits:
    """How a server is asked. Seconds are of silence, not of a whole answer."""

    seconds: float = 120.0
    attempts: int = 4  # at one request, where the server is busy or cannot be reached
    rate: float | None = None  # requests a second
    requests: int | None = None  # in all


class HTTPClient:
    """Asks one server. Coroutines run on its own loop, so that many requests are under way at a time."""

    def __init__(self, url: str, limits: Limits, key: str | None = None, extra: str = "openai") -> None:
        try:
            import httpx
        except ImportError as error:
            raise EngineStartError(f"httpx is missing; install it with: pip install 'kvfence[{extra}]'") from error
        self._httpx, self._limits, self._key = httpx, limits, key
        self._sent, self._next = 0, 0.0
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        local = httpx.URL(url).host in ("localhost", "127.0.0.1", "::1")
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        timeout = httpx.Timeout(limits.seconds, connect=CONNECT_SECONDS, pool=None)
        # A connection that was closed to cancel its request must not be used again, nor wait for others.
        pool = httpx.Limits(max_connections=None, max_keepalive_connections=8)
        self._client = httpx.AsyncClient(
            base_url=url, headers=headers, timeout=timeout, limits=pool, trust_env=not local, follow_redirects=False
        )

    def start(self, work: Coroutine[Any, Any, T]) -> "Future[T]":
        """Begin a coroutine on the loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop to its end."""
        return self.start(work).result()

    async def json(self, method: str, path: str, body: object = None) -> Any:
        """The JSON that the server answers. Raises RefusedError or EngineFaultError."""
        async with self._response(method, path, body) as response:
            text = (await response.aread()).decode(errors="replace")
        return self._parsed(text)

    async def post(self, path: str) -> None:
        """Post nothing, and do not mind what is answered. Raises RefusedError or EngineFaultError."""
        async with self._response("POST", path, None) as response:
            await response.aread()

    async def events(self, path: str, body: object) -> AsyncGenerator[dict[str, Any], None]:
        """The events of a stream, up to [DONE] or its end. Raises RefusedError or EngineFaultError."""
        async with self._response("POST", path, body) as response, aclosing(self._lines(response)) as lines:
            async for line in lines:
                name, _, text = line.partition(":")
                if name not in ("data", "error") or not text.strip():
                    continue  # comments keep a connection open
                if text.strip() == "[DONE]":
                    return
                event = self._parsed(text, dict)
                if name == "error" or "error" in event:
                    raise EngineFaultError(f"the server broke off: {self._line(_message(event))}")
                yield event

    def close(self) -> None:
        """End what is under way, and the loop."""
        self.wait(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _end(self) -> None:
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._client.aclose()

    @asynccontextmanager
    async def _response(self, method: str, path: str, body: object) -> AsyncIterator[Any]:
        """An answer that says that all is well, its body still to be read."""
        try:
            response = await self._ask(method, path, body)
            try:
                yield response
            finally:
                await response.aclose()
        except self._httpx.TimeoutException as error:
            raise EngineFaultError(f"the server said nothing for {self._limits.seconds:g} s") from error
        except (self._httpx.HTTPError, self._httpx.StreamError, OSError) as error:
            reason = self._line(str(error) or type(error).__name__)
            raise EngineFaultError(f"the connection broke off: {reason}") from error

    async def _ask(self, method: str, path: str, body: object) -> Any:
        for attempt in range(1, self._limits.attempts + 1):
            await self._turn()
            request = self._client.build_request(method, path, json=body)
            try:
                response = await self._client.send(request, stream=True)
            except self._httpx.ConnectError:
                # Nothing has reached the server, so that nothing is done twice.
                if attempt == self._limits.attempts:
                    raise
                await asyncio.sleep(_pause(attempt, None))
                continue
            if response.status_code == 200:
                return response
            said = (await response.aread()).decode(errors="replace")
            await response.aclose()
            if response.status_code not in BUSY or attempt == self._limits.attempts:
                raise self._error(response.status_code, said)
            await asyncio.sleep(_pause(attempt, response.headers.get("retry-after")))
        raise AssertionError("unreachable: the last attempt returns or raises")

    async def _turn(self) -> None:
        """Wait for a request's turn, as the rate says."""
        if self._limits.requests is not None and self._sent >= self._limits.requests:
            raise EngineFaultError(f"all of max_requests={self._limits.requests} requests have been sent")
        self._sent += 1
        if self._limits.rate:
            turn = max(self._next, time.monotonic())
            self._next = turn + 1 / self._limits.rate
            await asyncio.sleep(turn - time.monotonic())

    async def _lines(self, response: Any) -> AsyncGenerator[str, None]:
        rest = b""
        async with aclosing(response.aiter_bytes()) as pieces:
            async for piece in pieces:
                *lines, rest = (rest + piece).split(b"\n")
                if len(rest) > LONGEST_LINE:
                    raise EngineFaultError(f"the server sent a line of more than {LONGEST_LINE} bytes")
                for line in lines:
                    yield line.decode(errors="replace").strip()
        yield rest.decode(errors="replace").strip()

    def _parsed(self, text: str, kind: type | UnionType = dict | list) -> Any:
        try:
            value = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise EngineFaultError(f"the server answered what is no JSON: {self._line(text)}") from error
        if not isinstance(value, kind):
            raise EngineFaultError(f"the server answered {type(value).__name__}, not an object: {self._line(text)}")
        return value

    def _error(self, status: int, said: str) -> EngineFaultError:
        with suppress(ValueError, RecursionError):
            said = _message(json.loads(said))
        reason = f"{status}: {self._line(said) or 'no reason given'}"
        if status in (401, 403):
            return EngineFaultError(f"the server does not let us in ({reason})")
        kind = RefusedError if status in REFUSED else EngineFaultError
        return kind(f"the server answered {reason}")

    def _line(self, text: str) -> str:
        if self._key:
            text = text.replace(self._key, "***")
        line = " ".join(text.split())
        return line if len(line) <= TOLD else f"{line[:TOLD]}..."


def _message(answer: object) -> str:
    """What an error says, in whichever of the usual forms."""
    said = answer.get("error", answer) if isinstance(answer, dict) else answer
    if isinstance(said, dict):
        said = said.get("message", said.get("detail", said))
    return str(said)


def _pause(attempt: int, asked: str | None) -> float:
    try:
        seconds = float(asked) if asked else 0.5 * 2 ** (attempt - 1)
    except ValueError:  # a date
        seconds = 0.5 * 2 ** (attempt - 1)
    return min(max(seconds, 0.0), LONGEST_WAIT)
