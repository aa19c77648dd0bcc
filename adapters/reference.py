"""Adapter `reference`: the reference engine, with all that it can do."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import ceil
from typing import Any

import numpy as np
import torch

from kvfence.adapters.api import (
    CAPABILITIES,
    AdapterError,
    Capability,
    Completion,
    Engine,
    EngineConfig,
    EngineFaultError,
    EngineStartError,
    Request,
    supported,
)
from kvfence.adapters.hf_model import POOL_TOKENS, TOP, load
from kvfence.adapters.observation import KV, Action, Attention, CacheEvent, Observed, join
from kvfence.adapters.reference_session import ReferenceSession, refused
from kvfence.reference_impl import sequence as seq
from kvfence.reference_impl.clock import Stream
from kvfence.reference_impl.engine import EngineError, ReferenceEngine
from kvfence.reference_impl.lora import LoraError, read_lora
from kvfence.reference_impl.paged import UnsupportedModelError
from kvfence.reference_impl.scheduler import Preemption
from kvfence.reference_impl.settings import PARTS, Parts, Settings
from kvfence.reference_impl.trace import Event, Kind

BLOCK = 16  # tokens
ACTIONS = {
    Kind.ALLOCATE: Action.ALLOCATE,
    Kind.WRITE: Action.WRITE,
    Kind.COPY: Action.COPY,
    Kind.SWAP_IN: Action.RESTORE,
    Kind.FETCH: Action.FETCH,
    Kind.PUBLISH: Action.PUBLISH,
    Kind.SHARE: Action.REUSE,
    Kind.FORK: Action.FORK,
    Kind.EVICT: Action.EVICT,
    Kind.RELEASE: Action.FREE,
}
NUMBERS = ("token_budget", "depth", "draft", "remote", "transfer_steps", "kernel")
ARGUMENTS = (*NUMBERS, "buckets", "preemption")


class ReferenceAdapter(Engine):
    """The reference engine; a step holds at most `max_concurrency` requests."""

    name = "reference"

    def __init__(self, engine: ReferenceEngine, config: EngineConfig) -> None:
        from importlib.metadata import version

        self.version = version("kvfence")
        self.engine, self.block_size = engine, engine.settings.block_size
        self._session: ReferenceSession | None = None
        self._config = config
        self._kv: dict[str, KV] = {}
        self._attention: dict[str, Attention] = {}
        engine.ending = self._keep

    @property
    def capabilities(self) -> Mapping[str, Capability]:
        return supported(*CAPABILITIES)

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        return self.session().finish(requests)

    def reset_cache(self) -> None:
        self.engine.reset_cache()

    def load_adapter(self, name: str, folder: str) -> None:
        try:
            deltas = read_lora(folder)
        except LoraError as error:
            raise EngineFaultError(str(error)) from error
        with refused():
            self.engine.load_adapter(name, deltas)

    def load_weights(self, model: str) -> None:
        try:
            new = load(self.name, model, self._config, ARGUMENTS).state_dict()
        except AdapterError as error:
            raise EngineFaultError(str(error)) from error
        own = self.engine.runner.model.state_dict()
        if {name: value.shape for name, value in new.items()} != {name: value.shape for name, value in own.items()}:
            raise EngineFaultError(f"the weights of {model} are not of the shapes of this model's")
        self.engine.settle()
        self.engine.runner.model.load_state_dict(new)
        self.engine.new_weights()

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
        if "attention" in self._config.observe and sequence.attention:
            steps = [(seen.rows, seen.maximum, seen.entropy, seen.top) for seen in sequence.attention]
            self._attention[sequence.id] = join(steps, [seen.whose for seen in sequence.attention])
        # Of one withdrawn while its K/V are on their way there is nothing to read yet.
        if "kv" in self._config.observe and all(one.stream is Stream.STEPS for one in sequence.in_flight()):
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

    Engine arguments: token_budget (tokens in a step), depth (0 or 1 steps ahead), draft (tokens guessed ahead),
    preemption (recompute or swap), remote (blocks of the remote store), transfer_steps (that a transfer from it takes),
    buckets (sizes that decoding rows are padded to, such as 4,8) and kernel (1 for Triton's).
    """
    return ReferenceAdapter(build(model, config), config)


def build(model: str, config: EngineConfig, parts: Parts = PARTS, **settings: Any) -> ReferenceEngine:
    """The engine that an adapter drives; `settings` go before what the configuration says. Raises EngineStartError."""
    loaded = load(ReferenceAdapter.name, model, config, ARGUMENTS)
    size = config.block_size or BLOCK
    chunk = {"token_budget": str(config.chunk_size)} if config.chunk_size else {}
    arguments = {**chunk, **config.engine_args}
    try:
        configured = Settings(
            blocks=ceil((config.pool_size or POOL_TOKENS) / size) + 2,
            block_size=size,
            max_concurrency=config.max_concurrency,
            sharing=config.sharing,
            logprobs=TOP,
            trace="events" in config.observe,
            tags="attention" in config.observe,
            attention="attention" in config.observe,
            **{name: _argument(name, value) for name, value in arguments.items()},
        )
        return ReferenceEngine(loaded, replace(configured, **settings), parts)
    except (EngineError, UnsupportedModelError) as error:
        raise EngineStartError(str(error)) from error


def _argument(name: str, value: str) -> Any:
    if name == "preemption":
        if value not in list(Preemption):
            raise EngineStartError(f"{name} is one of {', '.join(Preemption)}, not {value}")
        return Preemption(value)
    numbers = value.split(",") if name == "buckets" else [value]
    if odd := [number for number in numbers if not number.isdecimal()]:
        raise EngineStartError(f"{name} is a number, not {odd[0] or 'nothing'}")
    return tuple(map(int, numbers)) if name == "buckets" else int(value)
