"""Adapter `openai`: completions of any OpenAI-compatible endpoint, by its URL. Its key is in the environment."""

import os
from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

from kvfence.adapters.api import (
    AdapterError,
    Capability,
    Completion,
    Engine,
    EngineConfig,
    EngineFaultError,
    EngineStartError,
    Request,
    Support,
    supported,
    unsupported,
)
from kvfence.adapters.conversations import Conversations
from kvfence.adapters.http_client import HTTPClient, Limits
from kvfence.adapters.openai_answers import Words
from kvfence.adapters.openai_endpoint import PROBE, Asked, Endpoint
from kvfence.adapters.stream_session import StreamSession

ARGUMENTS = {
    "url": "where the endpoint is, /v1 included",
    "served": "name of the model there; the first that it lists if not given",
    "prompts": "ids, text, or auto: ids where they are taken",
    "prefix_cache": "on says that the endpoint has one, where it does not tell of its hits",
    "salt": "on says that the endpoint keeps requests of different cache_salt apart",
    "reset": "a path there that empties the cache when posted to; giving it is consent",
    "key_env": "the environment variable that holds the key",
    "rate": "requests a second",
    "max_requests": "requests in all",
    "timeout": "seconds of silence that are waited",
    "attempts": "at one request, where the endpoint is busy or cannot be reached",
}
KEY = "KVFENCE_API_KEY"
TIMING = "the endpoint steps by itself: an operation comes at its moment or some tokens later"
AS_TEXT = f"{TIMING}; tokens are known when the next word of their text has come"


class OpenAIEngine(Engine):
    """A model behind a URL; at most `max_concurrency` requests are sent at a time."""

    name = "openai"

    def __init__(self, endpoint: Endpoint, asked: Asked, reset: str | None) -> None:
        self._endpoint, self._asked, self._reset = endpoint, asked, reset
        self._conversations = Conversations()
        self._session: StreamSession | None = None
        self.version, self.block_size = endpoint.version, endpoint.block_size

    @property
    def capabilities(self) -> Mapping[str, Capability]:
        found = self._endpoint.found
        return {
            **supported("reopen", "conversations"),
            "token_prompts": _if(self._endpoint.ids, "prompts are sent as text"),
            "sharing": self._sharing(),
            "cached_tokens": _if(found.cached is not None, "its usage does not tell cached tokens"),
            "logprobs": _if(self._endpoint.tells_tokens and bool(found.logprobs), "it does not tell them by token id"),
            "top_logprobs": _if(self._endpoint.tells_tokens and bool(found.best), "it does not tell them by token id"),
            "salt": _if(self._asked.salt, "salt=on says that the endpoint takes cache_salt"),
            "reset_cache": _if(self._asked.salt or bool(self._reset), "reset=PATH or salt=on says how"),
            "session": self._sessions(),
            **unsupported("each request comes by a connection of its own", "ordered"),
            **unsupported("an endpoint has no such operation", "adapters", "weights", "media", "fork", "preempt"),
            **unsupported("an endpoint shows tokens and counts only", "attention", "events", "kv"),
        }

    def _sharing(self) -> Capability:
        if self._endpoint.shares:
            return Capability(Support.SUPPORTED)
        if self._asked.prefix_cache:
            return Capability(Support.SUPPORTED, "prefix_cache=on says so")
        return Capability(Support.UNKNOWN, "no prompt was told to have been cached; prefix_cache=on says that some are")

    def _sessions(self) -> Capability:
        if self._endpoint.tells_tokens:
            return Capability(Support.SUPPORTED, TIMING)
        if self._endpoint.pieces > 1:
            return Capability(Support.SUPPORTED, AS_TEXT)
        return Capability(Support.UNSUPPORTED, "its answers come in one piece")

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        return self.session().finish(requests)

    def reset_cache(self) -> None:
        """Have the endpoint empty its cache where there is a path for it, and go on with new salts."""
        if self._reset:
            self._endpoint.http.wait(self._endpoint.http.post(self._reset))
        self._endpoint.forget()

    def session(self) -> StreamSession:
        if self._session is not None and not self._session.closed:
            raise EngineFaultError("a session is open already; there can be one at a time")
        self._session = StreamSession(self._endpoint, self._conversations)
        return self._session

    def close(self) -> None:
        self._endpoint.http.close()


def _if(there: bool, reason: str) -> Capability:
    return Capability(Support.SUPPORTED) if there else Capability(Support.UNSUPPORTED, reason)


def open_engine(model: str, config: EngineConfig) -> OpenAIEngine:
    """Open an endpoint that serves the model of the folder `model`, which says what its tokens are.

    The engine arguments are in `ARGUMENTS`; only url must be given. The key is never one of them.
    """
    given = config.engine_args
    if unknown := sorted(set(given) - set(ARGUMENTS)):
        raise EngineStartError(f"openai has no engine argument {unknown[0]}; it has {', '.join(ARGUMENTS)}")
    url, limits = _url(given), _limits(given)
    if given.get("prompts", "auto") not in ("ids", "text", "auto"):
        raise EngineStartError("prompts is ids, text or auto")
    if odd := [name for name in ("salt", "prefix_cache") if given.get(name, "off") not in ("on", "off")]:
        raise EngineStartError(f"{odd[0]} is on or off")
    words = Words(model)
    http = HTTPClient(url, limits, os.environ.get(given.get("key_env", KEY)))
    try:
        said = {name: given.get(name) == "on" for name in ("salt", "prefix_cache")}
        asked = Asked(given.get("served") or _served(http), given.get("prompts", "auto"), **said)
        endpoint = Endpoint(http, words, asked, config)
        endpoint.probe(words.some(PROBE))
        return OpenAIEngine(endpoint, asked, _reset(url, given.get("reset")))
    except BaseException:
        http.close()
        raise


def _url(given: Mapping[str, str]) -> str:
    url = given.get("url", "")
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise EngineStartError("openai needs the endpoint: --engine-arg url=http://HOST:PORT/v1")
    if parts.username or parts.password or parts.query or parts.fragment:
        # Arguments are written into records; what is secret must not be among them.
        raise EngineStartError(f"the url is scheme, host and path only; a key belongs in the environment, as {KEY}")
    return url.rstrip("/")


def _reset(url: str, path: str | None) -> str | None:
    """The whole URL that a path is of, at the endpoint's root."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}/{path.lstrip('/')}" if path else None


def _limits(given: Mapping[str, str]) -> Limits:
    limits = Limits()
    try:
        limits = Limits(
            seconds=float(given.get("timeout", limits.seconds)),
            attempts=int(given.get("attempts", limits.attempts)),
            rate=float(given["rate"]) if "rate" in given else None,
            requests=int(given["max_requests"]) if "max_requests" in given else None,
        )
    except ValueError as error:
        raise EngineStartError(f"rate, max_requests, timeout and attempts are numbers: {error}") from error
    said = (limits.seconds, limits.attempts, limits.rate, limits.requests)
    if not all(value is None or 0 < value < float("inf") for value in said):
        raise EngineStartError("rate, max_requests, timeout and attempts are above zero")
    return limits


def _served(http: HTTPClient) -> str:
    """The first model that an endpoint lists. Raises EngineStartError if it cannot be reached or lists none."""
    try:
        listed = http.wait(http.json("GET", "models"))
        return str(listed["data"][0]["id"])
    except AdapterError as error:
        raise EngineStartError(f"the endpoint cannot be asked: {error}") from error
    except (IndexError, KeyError, TypeError) as error:
        raise EngineStartError("the endpoint lists no models; name one with --engine-arg served=NAME") from error
