"""An engine that answers canary prompts by their closed form and logs a cache of prefixes, shared token by token.

The engine argument `how` says what is wrong with it; without one it breaks no rule.

    fail-raise, -few, -exit, -hang   on requests of group B, after it has used its cache; only once
    lost                             as fail-raise, and the log of that call cannot be had
    nothing, odd                     what is seen of a call with group B is None, or no attention; only once
    keep                             it cannot forget its cache
    late                             prefixes can be found from the next call on
    stale-primer, stale-noise        such requests begin behind what is left in their slot
"""

import os
import threading
from collections.abc import Sequence

from kvfence.adapters.api import Capability, Completion, Engine, EngineConfig, Request, Support, supported
from kvfence.adapters.observation import Action, CacheEvent, Observed
from kvfence.prompts import alphabet

STALE = 9  # tokens


class LoggedEngine(Engine):
    name = "logged"
    version = "1"
    block_size = 1

    def __init__(self, how: Sequence[str], sharing: bool) -> None:
        self._how, self._sharing = set(how), sharing
        self._slots = 0
        self._published: list[tuple[int, tuple[int, ...]]] = []  # slot and tokens, the latest first
        self._events: list[CacheEvent] = []

    @property
    def capabilities(self) -> dict[str, Capability]:
        names = ["token_prompts", "sharing", "cached_tokens", "reopen", "events"]
        names += [] if "keep" in self._how else ["reset_cache"]
        return {**supported(*names), "attention": Capability(Support.UNSUPPORTED, "it has none")}

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        found = list(self._published)
        done = [self._answer(request, found if "late" in self._how else self._published) for request in requests]
        if any("/B" in request.id for request in requests):
            for how in ("raise", "few", "exit", "hang"):
                if f"fail-{how}" in self._how:
                    self._how.remove(f"fail-{how}")
                    return getattr(self, f"_{how}")(done)
            if "lost" in self._how:
                self._raise(done)
        return done

    def reset_cache(self) -> None:
        self._published.clear()

    def observe(self) -> Observed:
        events, self._events = tuple(self._events), []
        if any("/B" in event.request for event in events):
            for how in self._how & {"lost", "nothing", "odd"}:
                self._how.remove(how)
                if how == "lost":
                    raise OSError("the log is lost")
                return None if how == "nothing" else Observed(attention={"x": "none"}, events=events)
        return Observed(events=events)

    def _answer(self, request: Request, found: Sequence[tuple[int, tuple[int, ...]]]) -> Completion:
        self._slots += 1
        slot, cached = self._slots, 0
        if self._sharing and found:
            source, cached = max(((s, _common(request.prompt, p)) for s, p in found), key=lambda pair: pair[1])
            self._log(request, Action.REUSE, source, 0, cached, 0, str(source))
        stale = any(f"stale-{kind}" in self._how and kind in request.id for kind in ("primer", "noise"))
        start = STALE if stale else cached
        self._log(request, Action.WRITE, slot, start, len(request.prompt) + request.max_tokens - 1 - cached, cached)
        output = alphabet.answer(request.prompt, request.max_tokens) if "primer" not in request.id else (8, 8)
        if self._sharing:
            # All it has, what was reused as a copy.
            stored = (*request.prompt, *output[:-1])
            self._log(request, Action.PUBLISH, slot, 0, len(stored), 0, str(slot))
            self._published.insert(0, (slot, stored))
        return Completion(request.id, output, cached_tokens=cached)

    def _log(self, request: Request, action: Action, slot: int, start: int, n: int, position: int, key="") -> None:
        self._events.append(CacheEvent(0, request.id, action, slot, start, n, position, key))

    def _raise(self, done):
        raise RuntimeError("block table is full")

    def _few(self, done):
        return done[:-1]

    def _exit(self, done):
        os._exit(7)

    def _hang(self, done):
        threading.Event().wait()


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    limit = min(len(a), len(b)) - 1
    return next((i for i in range(limit) if a[i] != b[i]), limit)


def open_engine(model: str, config: EngineConfig) -> LoggedEngine:
    return LoggedEngine(config.engine_args.get("how", "").split("+"), config.sharing)
