"""An OpenAI-compatible endpoint: how it is asked, and what it was found to take when it was first asked."""

import asyncio
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from kvfence.adapters.api import EngineConfig, EngineFaultError, EngineStartError, Request
from kvfence.adapters.http_client import HTTPClient
from kvfence.adapters.openai_answers import Piece, Words, read
from kvfence.adapters.stream_session import Emitted, Ended

TOP = 5  # best tokens asked for at each position
# What is part of OpenAI's interface, and still not taken by every server.
USAGE: dict[str, Any] = {"stream_options": {"include_usage": True}}
ASKED: dict[str, Any] = {"logprobs": TOP, **USAGE}
# What is no part of OpenAI's interface: servers that know it give ids for ids and do not end early.
EXTRA: dict[str, Any] = {
    "ignore_eos": True,
    "return_token_ids": True,
    "return_tokens_as_token_ids": True,
    "skip_special_tokens": False,
    "spaces_between_special_tokens": True,
}
PROBE = 150  # tokens of the prompt that an endpoint is tried with: more than a block or two of most engines


@dataclass(frozen=True)
class Asked:
    """What the endpoint is asked with."""

    served: str  # name of the model there
    prompts: str = "auto"  # "ids", "text", or whichever is found to be taken
    salt: bool = False  # whether it takes cache_salt
    prefix_cache: bool = False  # whether it has one, told or not


class Endpoint:
    """One model behind a URL."""

    def __init__(self, http: HTTPClient, words: Words, asked: Asked, config: EngineConfig) -> None:
        self.http, self._words, self._asked, self._config = http, words, asked, config
        self._gate = asyncio.Semaphore(config.max_concurrency)
        self._era = uuid4().hex
        self.extra: dict[str, Any] = {}
        self.ids = True
        self.names_start = True  # whether a text has to name its first token; else the server puts it there
        self.shares = False  # whether one prompt, sent twice, was told to have been cached
        self.block_size: int | None = None  # tokens that its cache gives out together, where it tells what it gave
        self.pieces = 0  # in which an answer of two tokens came
        self.version = "unknown"
        self.found = Piece()

    def forget(self) -> None:
        """From now on salts are others: nothing that was cached is found again."""
        self._era = uuid4().hex

    def probe(self, tokens: tuple[int, ...]) -> None:
        """Find out how prompts are taken and what is told. Raises EngineStartError if nothing will do."""
        try:
            self.http.wait(self._probe(tokens))
        except EngineFaultError as error:
            raise EngineStartError(f"the endpoint cannot be used: {error}") from error

    async def _probe(self, tokens: tuple[int, ...]) -> None:
        request = Request("probe", tokens, 2)
        refused, unfit = EngineFaultError("nothing was tried"), list[EngineFaultError]()
        for way in self._ways():
            self.ids, self.names_start, self.extra = way
            try:
                self.found = await self._try(request)
            except EngineFaultError as error:
                refused = error
                continue
            try:
                self._fits(request, tokens)
                break
            except EngineFaultError as error:
                unfit.append(error)
        else:
            # Of ways that are taken and do not do, the best one says most.
            raise unfit[0] if unfit else refused
        self.found = await self._try(request)
        self.shares = bool(self.found.cached)
        self.block_size = await self._block(tokens, self.found.cached or 0)

    def _fits(self, request: Request, tokens: tuple[int, ...]) -> None:
        """Raises EngineFaultError if what was found will not do."""
        self._check_prompt(tokens, self.found)
        if self.tells_tokens:  # of a text, how many tokens it is split into says something of this text alone
            self._check_answer(request, self.found)

    async def _block(self, tokens: tuple[int, ...], cached: int) -> int | None:
        """The shortest prefix that the cache gives out, of a prompt of which it gave out `cached` tokens."""
        for size in range(1, cached + 1):
            # All blocks were given out that fit: one more did not, as the last token is always computed.
            if cached % size == 0 and cached + size >= len(tokens):
                told = await self._try(Request("probe", tokens[: size + 1], 2))
                if told.cached:
                    return size
        return None

    def _ways(self) -> Iterator[tuple[bool, bool, dict[str, Any]]]:
        """Ways to send a prompt, the best first: a strict server refuses what it does not know."""
        for ids in {"ids": (True,), "text": (False,)}.get(self._asked.prompts, (True, False)):
            for extra in (ASKED | EXTRA, ASKED, USAGE, {}):
                for names_start in (True,) if ids else (True, False):
                    yield ids, names_start, extra

    async def _try(self, request: Request) -> Piece:
        """Send one request as it would be sent, and put together what comes of it."""
        found, pieces = Piece(), 0
        async with aclosing(self.http.events(self._path, self._body(request, request.prompt))) as events:
            async for event in events:
                self.version = str(event.get("system_fingerprint") or self.version)
                piece = read(event)
                found, pieces = joined(found, piece), pieces + bool(piece.text)
        self.pieces = max(self.pieces, pieces)
        return found

    def admit(self, request: Request, prompt: tuple[int, ...]) -> None:
        """Whatever the endpoint refuses it refuses itself."""

    async def stream(self, request: Request, prompt: tuple[int, ...]) -> AsyncGenerator[Emitted | Ended, None]:
        seen = Piece()
        handed: list[int] = []  # of a text
        # What is more than may run at a time waits here: the endpoint's own queue is not asked for.
        async with self._gate, aclosing(self.http.events(self._path, self._body(request, prompt))) as events:
            async for event in events:
                piece = read(event)
                seen = joined(seen, piece)
                for emitted in piece.emitted() if self.tells_tokens else self._come(seen.text, handed):
                    yield emitted
        self._check_prompt(prompt, seen)
        self._check_answer(request, seen)
        if not self.tells_tokens:
            for emitted in self._come(seen.text, handed, whole=True):
                yield emitted
        yield Ended(seen.cached)

    def _come(self, text: str, handed: list[int], whole: bool = False) -> list[Emitted]:
        """Tokens of a text that are certain by now and have not been handed on."""
        tokens = self._words.encode(text) if whole else self._words.settled(text)
        if list(tokens[: len(handed)]) != handed:
            raise EngineFaultError("what came of the text later changed the tokens that it began with")
        fresh = tokens[len(handed) :]
        handed += fresh
        return [Emitted(token) for token in fresh]

    def let_go(self, running: int) -> None:
        """The connection is closed; what the endpoint makes of that it does not tell."""

    @property
    def tells_tokens(self) -> bool:
        """Whether each event says which tokens it brings."""
        return self.found.tokens is not None and len(self.found.tokens) == 2

    def _check_prompt(self, prompt: tuple[int, ...], seen: Piece) -> None:
        if seen.prompt_length is None:
            raise EngineFaultError("the endpoint tells no usage, so that lengths cannot be checked")
        if seen.prompt_length != len(prompt):
            raise EngineFaultError(f"a prompt of {len(prompt)} tokens was taken as {seen.prompt_length}")

    def _check_answer(self, request: Request, seen: Piece) -> None:
        asked = request.max_tokens
        told = len(seen.tokens or ()) if self.tells_tokens else len(self._words.encode(seen.text))
        if told == asked and seen.length in (None, asked):
            return
        counted = f", the server counts {seen.length}" if seen.length != told else ""
        if not self.tells_tokens and seen.length == asked:
            raise EngineFaultError(f"its text is split into {told} tokens{counted}")
        raise EngineFaultError(f"{told} tokens came{counted}, {asked} were asked for (finish reason {seen.finish})")

    @property
    def _path(self) -> str:
        return "completions"

    def _body(self, request: Request, prompt: tuple[int, ...]) -> Mapping[str, Any]:
        body: dict[str, Any] = {
            "model": self._asked.served,
            "prompt": list(prompt) if self.ids else self._text(prompt),
            "max_tokens": request.max_tokens,
            "temperature": 0,
            "seed": self._config.seed,
            "stream": True,
            **self.extra,
        }
        if "ignore_eos" in self.extra:
            body["cache_prompt"] = self._config.sharing  # llama.cpp's
        if self._asked.salt:
            # Without sharing everybody is a tenant.
            tenant = request.salt if self._config.sharing else uuid4().hex
            body["cache_salt"] = f"{self._era}-{tenant}"
        return body

    def _text(self, prompt: tuple[int, ...]) -> str:
        return self._words.decode(prompt if self.names_start else prompt[1:])


def joined(one: Piece, other: Piece) -> Piece:
    """Two pieces of an answer as one."""
    return Piece(
        one.text + other.text,
        _both(one.tokens, other.tokens),
        _both(one.logprobs, other.logprobs),
        _both(one.best, other.best),
        _later(one.prompt_length, other.prompt_length),
        _later(one.length, other.length),
        _later(one.cached, other.cached),
        other.finish or one.finish,
    )


def _later(one: int | None, other: int | None) -> int | None:
    return one if other is None else other


def _both(one: tuple[Any, ...] | None, other: tuple[Any, ...] | None) -> tuple[Any, ...] | None:
    return one if other is None else (*(one or ()), *other)
