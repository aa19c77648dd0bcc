"""The adapter contract: all that kvfence asks of an engine.

An adapter is a factory ``open(model, config) -> Engine``, found by the entry point group ``kvfence.adapters`` or as
``module:factory``. An engine that can only run a batch of prompts is complete; the rest is optional and declared.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import ClassVar, Protocol

from kvfence.adapters.observation import Observed


class AdapterError(Exception):
    """Something an engine or its adapter did; the message is one line for the user."""


class EngineStartError(AdapterError):
    """The engine cannot be opened at all: it, the model or the environment is wrong."""


class UnsupportedConfigError(AdapterError):
    """The engine works but not in this configuration."""


class EngineFaultError(AdapterError):
    """The engine raised, hung, died or answered nonsense during a call."""


class RefusedError(EngineFaultError):
    """The engine refuses one request, or one operation on it, and goes on as if it had not been asked."""


class Support(StrEnum):
    """Whether an engine has a capability. UNKNOWN is reported and never counted as a pass."""

    SUPPORTED = "supported"
    UNSUPPORTED = "unsupported"
    UNKNOWN = "unknown"


CAPABILITIES = {
    "token_prompts": "prompts are taken as token ids",
    "sharing": "requests can share the KV of a common prefix",
    "cached_tokens": "tells how many prompt tokens came from the cache",
    "logprobs": "tells the logprob of each emitted token",
    "top_logprobs": "tells the logprobs of the best few tokens at each position",
    "reset_cache": "can forget everything cached",
    "reopen": "another configuration can be opened in the same process",
    "attention": "lets its attention be observed",
    "events": "lets the uses of its cache be observed",
    "kv": "lets the K/V in its cache be observed",
    "session": "can be driven step by step, requests coming and going meanwhile",
    "ordered": "begins requests in the order in which they are handed over",
    "salt": "requests with different salts share nothing",
    "adapters": "requests can run with LoRA adapters",
    "weights": "the model's weights can be exchanged",
    "media": "prompts can hold media items",
    "conversations": "turns of a conversation reuse its KV, and its history can be edited",
    "fork": "a running request can be forked",
    "preempt": "a running request can be preempted at will",
}
OBSERVABLE = ("attention", "events", "kv")  # capabilities that `EngineConfig.observe` may name


@dataclass(frozen=True)
class Capability:
    """State of one capability, with the reason where it is not simply there."""

    state: Support
    reason: str = ""


def supported(*names: str) -> dict[str, Capability]:
    """Shorthand for an engine that has the named capabilities."""
    return {name: Capability(Support.SUPPORTED) for name in names}


def unsupported(reason: str, *names: str) -> dict[str, Capability]:
    """Shorthand for an engine that lacks the named capabilities, all for one reason."""
    return {name: Capability(Support.UNSUPPORTED, reason) for name in names}


@dataclass(frozen=True)
class EngineConfig:
    """How an engine is opened. Sizes are upper limits; None leaves the choice to the engine."""

    sharing: bool = False
    max_concurrency: int = 1
    dtype: str = "float32"
    device: str = "cpu"
    block_size: int | None = None  # tokens
    pool_size: int | None = None  # tokens of KV
    chunk_size: int | None = None  # tokens of prefill in one forward pass
    seed: int = 0
    observe: tuple[str, ...] = ()  # of `OBSERVABLE`; what the engine does not support is left out
    engine_args: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Media:
    """A media item of a prompt, such as an image: where its placeholder token stands, and what it shows."""

    position: int
    content: str


@dataclass(frozen=True)
class Request:
    """One request: greedy, exactly `max_tokens` new tokens, EOS a token like any other.

    What is not None or empty below is only sent where the capability of its name is SUPPORTED.
    """

    id: str
    prompt: tuple[int, ...]  # in a conversation, what is new in this turn: its history goes before it
    max_tokens: int
    salt: str | None = None  # of the tenant: only requests of the same one share
    adapter: str | None = None  # a name given to `Engine.load_adapter`; capability "adapters"
    media: tuple[Media, ...] = ()
    conversation: str | None = None  # capability "conversations"


@dataclass(frozen=True)
class Completion:
    """What an engine answered to the request of the same id."""

    id: str
    tokens: tuple[int, ...]  # [n]
    logprobs: tuple[float, ...] | None = None  # [n] nats, of each emitted token
    top_logprobs: tuple[tuple[tuple[int, float], ...], ...] | None = None  # [n][k] (token, nats), best first
    cached_tokens: int | None = None  # prompt tokens whose KV was not computed for this request
    forced: int | None = None  # of a fork, the output position of the token it was given


class Engine(ABC):
    """An opened engine. Only `generate` must be written."""

    name: ClassVar[str] = "unnamed"
    version: str = "unknown"
    block_size: int | None = None  # tokens per shareable block; 1 = token by token; None = unknown

    @property
    def capabilities(self) -> Mapping[str, Capability]:
        """States of the names in `CAPABILITIES`; a name left out is UNKNOWN."""
        return {}

    @abstractmethod
    def generate(self, requests: Sequence[Request]) -> Sequence[Completion]:
        """Run the requests concurrently, up to the configured maximum, and answer each of them once."""

    def reset_cache(self) -> None:
        """Forget every cached block. Only called where "reset_cache" is SUPPORTED."""
        raise NotImplementedError

    def load_adapter(self, name: str, folder: str) -> None:
        """Let requests run with a LoRA adapter, a folder as PEFT writes it, in place of the last one of that name.

        Only called where "adapters" is SUPPORTED. Raises EngineFaultError if it does not fit or requests run with it.
        """
        raise NotImplementedError

    def load_weights(self, model: str) -> None:
        """Go on with the weights of another model folder of the same shape; nothing old is used any more.

        Only called where "weights" is SUPPORTED. Raises EngineFaultError if they do not fit.
        """
        raise NotImplementedError

    def observe(self) -> Observed:
        """What was seen, of what the configuration asks to observe, since the last call."""
        return Observed()

    def session(self) -> "Session":
        """Begin to drive the engine step by step. Only called where "session" is SUPPORTED, one at a time."""
        raise NotImplementedError

    def close(self) -> None:  # noqa: B027 - most engines have nothing to release
        """Release what the engine holds; it is not used afterwards."""


class Session(ABC):
    """An engine driven step by step: a schedule's operations are timed by the tokens that requests have emitted."""

    @abstractmethod
    def submit(self, request: Request) -> None:
        """Hand a request over; it takes part from the next step on. Raises RefusedError for one it will not take."""

    @abstractmethod
    def step(self) -> Mapping[str, tuple[int, ...]]:
        """Run one forward pass; the tokens it emitted, by request id. Empty when nothing is left to do.

        Raises EngineFaultError if requests are left and no step brings them on.
        """

    @abstractmethod
    def cancel(self, id: str) -> None:
        """Withdraw a request, wherever it is. Its slots are free when this returns.

        Raises EngineFaultError if the engine does not let go of it in bounded time.
        """

    def fork(self, id: str, first: Sequence[int]) -> Sequence[str]:
        """Have others go on from a running request, one for each token: that in place of the one it emitted last.

        Their ids. A fork's completion begins with what the request had emitted before. Only called where "fork" is
        SUPPORTED. Raises RefusedError unless the request has emitted a token.
        """
        raise NotImplementedError

    def preempt(self, id: str) -> None:
        """Take a running request out of the batch, as if the pool were full; it comes back by itself.

        Only called where "preempt" is SUPPORTED. Raises RefusedError unless the request is in the batch.
        """
        raise NotImplementedError

    def edit(self, conversation: str, history: Sequence[int]) -> None:
        """Replace the tokens of a conversation's history.

        Only called where "conversations" is SUPPORTED. Raises RefusedError if there is none or a turn of it runs.
        """
        raise NotImplementedError

    @abstractmethod
    def completions(self) -> Sequence[Completion]:
        """Completions of the requests that ended by themselves since the last call."""

    def failures(self) -> Mapping[str, str]:
        """Requests that the engine gave up since the last call, and why, in a line each; it goes on without them."""
        return {}

    def finish(self, requests: Sequence[Request]) -> list[Completion]:
        """Run requests to their end, and close; their completions, in the same order."""
        try:
            for request in requests:
                self.submit(request)
            while self.step():
                pass
            for id, reason in self.failures().items():
                raise EngineFaultError(f"request {id} failed: {reason}")
            done = {completion.id: completion for completion in self.completions()}
            return [done[request.id] for request in requests]
        finally:
            self.close()

    def close(self) -> None:  # noqa: B027
        """Withdraw what is left."""


class Adapter(Protocol):
    """The factory an adapter exports.

    Raises EngineStartError or UnsupportedConfigError with a one-line message; anything else is reported as it comes.
    """

    def __call__(self, model: str, config: EngineConfig) -> Engine: ...
