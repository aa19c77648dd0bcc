"""Adapter `reference`: the reference engine, with all that it can do."""

from collections.abc import Mapping, Sequence
from math import ceil
from typing import Any

import numpy as np
import torch

from kvfence.adapters.api import (
    Capability,
    Completion,
    Engine,
    EngineConfig,
    EngineFaultError,
    EngineStartError,
    Request,
    Session,
    supported,
)
from kvfence.adapters.hf_model import POOL_TOKENS, TOP, load
from kvfence.adapters.observation import KV, Action, Attention, CacheEvent, Observed, join
from kvfence.reference_impl import sequence as seq
from kvfence.reference_impl.clock import Stream
from kvfence.reference_impl.engine import EngineError, ReferenceEngine
from kvfence.reference_impl.paged import UnsupportedModelError
from kvfence.reference_impl.scheduler import Preemption
from kvfence.reference_impl.settings import Settings
from kvfence.reference_impl.trace import Event, Kind

BLOCK = 16  # tokens
IDLE_STEPS = 16  # that bring nobody on before a session gives up
ACTIONS = {
    Kind.WRITE: Action.WRITE,
    Kind.COPY: Action.WRITE,
    Kind.PUBLISH: Action.PUBLISH,
    Kind.SHARE: Action.REUSE,
    Kind.RELEASE: Action.FREE,
}
NUMBERS = ("token_budget", "depth", "draft")
ARGUMENTS = (*NUMBERS, "preemption")


class ReferenceSession(Session):
    """The reference engine, driven step by step."""

    def __init__(self, engine: ReferenceEngine) -> None:
        self._engine = engine
        self._done: list[Completion] = []
        self.closed = False

    def submit(self, request: Request) -> None:
        """Hand a request over. Raises EngineFaultError if its id is in use or the pool can never hold it."""
        try:
            self._engine.submit(request.id, request.prompt, request.max_tokens)
        except EngineError as error:
            raise EngineFaultError(str(error)) from error

    def step(self) -> Mapping[str, tuple[int, ...]]:
        for _ in range(IDLE_STEPS):
            if not self._engine.sequences:
                return {}
            emitted = self._engine.step()
            self._collect()
            if emitted or self._engine.metrics.steps[-1].computed or self._engine.clock.in_flight(Stream.STEPS):
                running = [sequence.id for sequence in self._engine.scheduler.running]
                return {**dict.fromkeys(running, ()), **emitted}
        left = ", ".join(sorted(self._engine.sequences))
        raise EngineFaultError(f"no progress in {IDLE_STEPS} steps; left are the requests {left}")

    def cancel(self, id: str) -> None:
        """Withdraw a request. One that has ended is not touched: its completion stays."""
        if id in self._engine.sequences:
            self._engine.cancel(id)

    def completions(self) -> Sequence[Completion]:
        done, self._done = self._done, []
        return done

    def close(self) -> None:
        self.closed = True
        for id in list(self._engine.sequences):
            self._engine.cancel(id)
        self._engine.settle()
        self._engine.finished()

    def _collect(self) -> None:
        for sequence in self._engine.finished():
            if sequence.finish is seq.Finish.FAILED:
                raise EngineFaultError(f"request {sequence.id} failed: {sequence.error}")
            if sequence.finish is seq.Finish.LENGTH:
                self._done.append(
                    Completion(
                        sequence.id,
                        tuple(sequence.output),
                        tuple(sequence.logprobs),
                        tuple(sequence.top_logprobs),
                        sequence.cached,
                    )
                )


class ReferenceAdapter(Engine):
    """The reference engine; a step holds at most `max_concurrency` requests."""

    name = "reference"

    def __init__(self, engine: ReferenceEngine, observe: Sequence[str]) -> None:
        from importlib.metadata import version

        self.version = version("kvfence")
        self.engine, self.block_size = engine, engine.settings.block_size
        self._session: ReferenceSession | None = None
        self._observe = observe
        self._kv: dict[str, KV] = {}
        self._attention: dict[str, Attention] = {}
        engine.ending = self._keep

    @property
    def capabilities(self) -> Mapping[str, Capability]:
        return supported(
            "token_prompts",
            "sharing",
            "cached_tokens",
            "logprobs",
            "top_logprobs",
            "reset_cache",
            "reopen",
            "attention",
            "events",
            "kv",
            "session",
        )

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        session = self.session()
        try:
            for request in requests:
                session.submit(request)
            while session.step():
                pass
            done = {completion.id: completion for completion in session.completions()}
            return [done[request.id] for request in requests]
        finally:
            session.close()

    def reset_cache(self) -> None:
        self.engine.reset_cache()

    def observe(self) -> Observed:
        events = tuple(map(_told, self.engine.trace.take())) if self.engine.trace else ()
        kv, self._kv = self._kv, {}
        attention, self._attention = self._attention, {}
        return Observed(attention, tuple(event for event in events if event), kv)

    def session(self) -> ReferenceSession:
        if self._session is not None and not self._session.closed:
            raise EngineFaultError("a session is open already; there can be one at a time")
        self._session = ReferenceSession(self.engine)
        return self._session

    def _keep(self, sequence: seq.Sequence) -> None:
        """Keep what is asked for of a sequence that ends, while it still has its blocks."""
        if "attention" in self._observe and sequence.attention:
            steps = [(seen.rows, seen.maximum, seen.entropy, seen.top) for seen in sequence.attention]
            self._attention[sequence.id] = join(steps)
        if "kv" in self._observe:
            self._kv[sequence.id] = self._read(sequence)

    def _read(self, sequence: seq.Sequence) -> KV:
        storage = self.engine.storage
        blocks = torch.tensor([sequence.table.blocks], dtype=torch.long, device=storage.kv.device)
        layers = [storage.gather(layer, blocks) for layer in range(storage.shape.layers)]
        keys, values = (
            torch.stack([kv[0, : sequence.written].transpose(0, 1) for kv in part]).float().cpu().numpy()
            for part in zip(*layers, strict=True)
        )
        return KV(np.ascontiguousarray(keys), np.ascontiguousarray(values))


def _told(event: Event) -> CacheEvent | None:
    """An event as the contract has it; None for one that it has no word for."""
    action = ACTIONS.get(event.kind)
    if action is None:
        return None
    return CacheEvent(event.step, event.request, action, event.block, event.offset, event.length, event.position)


def open_engine(model: str, config: EngineConfig) -> ReferenceAdapter:
    """Open the transformers model folder `model`.

    Engine arguments: token_budget (tokens in a step), depth (0 or 1 steps ahead), draft (tokens guessed ahead) and
    preemption (recompute or swap).
    """
    loaded = load("reference", model, config, ARGUMENTS)
    size = config.block_size or BLOCK
    try:
        settings = Settings(
            blocks=ceil((config.pool_size or POOL_TOKENS) / size) + 2,
            block_size=size,
            max_concurrency=config.max_concurrency,
            sharing=config.sharing,
            logprobs=TOP,
            trace="events" in config.observe,
            tags="attention" in config.observe,
            attention="attention" in config.observe,
            **_arguments(config.engine_args),
        )
        return ReferenceAdapter(ReferenceEngine(loaded, settings), config.observe)
    except (EngineError, UnsupportedModelError) as error:
        raise EngineStartError(str(error)) from error


def _arguments(given: Mapping[str, str]) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    for name, value in given.items():
        if name in NUMBERS:
            if not value.isdecimal():
                raise EngineStartError(f"{name} is a number, not {value}")
            settings[name] = int(value)
        elif value not in list(Preemption):
            raise EngineStartError(f"{name} is one of {', '.join(Preemption)}, not {value}")
        else:
            settings[name] = Preemption(value)
    return settings
