"""Slot pool: a deliberately simple engine that exists to be found out; nothing here is a model of a good one.

One tensor is cut into slots. A request gets a slot, appends the K/V of its tokens there, and lets go of it at its end.
With sharing, copies of finished prefixes are kept, read only, and a later prompt starts from a copy of its longest.

Three faults can be switched on, each of them in one place marked FAULT:

    length      a slot is let go of, but its length is not reset
    collision   a prefix is looked up by how many tokens it has, not by which
    writers     two requests that arrive together get the same slot

From the folder of this file:

    kvfence run --engine slot_pool:open_engine --engine-arg fault=length
"""

import hashlib
import inspect
from collections.abc import Hashable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, DynamicCache

from kvfence.adapters import api
from kvfence.adapters.observation import Action, Attention, CacheEvent, Observed, join
from kvfence.reference_impl.attention import Call, probabilities, summarise, watchable, watched

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
FAULTS = ("none", "length", "collision", "writers")
CAPACITY = 4608  # tokens of a slot: a prompt of four thousand and its answer
BLOCK = 16  # prefixes are shared at multiples of so many tokens
SHARED = 16_384  # tokens kept for sharing
TOP = 5
LINE = 100  # characters


class SlotPool:
    """One tensor [slots, 2, layers, kv_heads, capacity, head_dim] of K and V, and how far each slot is filled."""

    def __init__(self, slots: int, model: Any, fault: str) -> None:
        config = model.config
        kv_heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        self.capacity = min(CAPACITY, config.max_position_embeddings)
        size = (slots, 2, config.num_hidden_layers, kv_heads, self.capacity, head_dim)
        self.kv = torch.empty(size, dtype=model.dtype, device=model.device)
        self.length = [0] * slots
        self._free = set(range(slots))
        self._fault = fault

    def acquire(self, n: int) -> list[int]:
        """Slots for `n` requests that arrive together; the lowest free ones, so that slots are soon used again."""
        slots = sorted(self._free)[:n]
        if self._fault == "writers":  # FAULT: of every two, the second looks before the first has taken
            slots = [slots[i - i % 2] for i in range(n)]
        self._free -= set(slots)
        return slots

    def release(self, slot: int) -> None:
        self._free.add(slot)
        if self._fault != "length":  # FAULT: otherwise the next request appends to what this one left
            self.length[slot] = 0

    def read(self, slot: int, length: int) -> DynamicCache:
        """A copy of the first `length` tokens of a slot, as a model takes them."""
        cache = DynamicCache()
        for layer in range(self.kv.shape[2]) if length else ():
            keys, values = self.kv[slot, :, layer, :, :length]
            cache.update(keys[None], values[None], layer)
        return cache

    def write(self, slot: int, begin: int, cache: DynamicCache) -> None:
        """Bring to a slot what a model added to a cache from token `begin` on."""
        self.length[slot] = end = cache.get_seq_length()
        for layer, added in enumerate(cache.layers):
            self.kv[slot, 0, layer, :, begin:end] = added.keys[0, :, begin:]
            self.kv[slot, 1, layer, :, begin:end] = added.values[0, :, begin:]


@dataclass(frozen=True)
class Prefix:
    """K/V [2, layers, kv_heads, tokens, head_dim] of the first tokens of a prompt; read only."""

    id: int  # in the log, beyond those of the slots
    key: Hashable
    kv: torch.Tensor

    @property
    def tokens(self) -> int:
        return self.kv.shape[-2]

    @property
    def told(self) -> str:
        """The key for the log: itself if short, else a digest of it; equal where keys are."""
        text = str(self.key)
        return text if len(text) <= LINE else f"sha256 {hashlib.sha256(text.encode()).hexdigest()}"


class PrefixTable:
    """Prefixes that can be shared, by key. Full, at `size` tokens, it forgets them all."""

    def __init__(self, size: int, first_id: int, fault: str) -> None:
        self._size, self._ids, self._fault = size, count(first_id), fault
        self.clear()

    def clear(self) -> None:
        self._prefixes: dict[Hashable, Prefix] = {}
        self._held = 0  # tokens

    def longest(self, prompt: tuple[int, ...]) -> Prefix | None:
        """The longest known prefix, though not of the whole prompt: its last token has to be computed."""
        lengths = range((len(prompt) - 1) // BLOCK * BLOCK, 0, -BLOCK)
        return next((p for n in lengths if (p := self._prefixes.get(self._key(prompt[:n])))), None)

    def publish(self, prompt: tuple[int, ...], kv: torch.Tensor) -> list[Prefix]:
        """Keep a copy of a prompt's K/V under the keys of its prefixes; returns those that were not known."""
        if self._held + len(prompt) > self._size:
            self.clear()
        copy = kv.clone()
        keys = {n: self._key(prompt[:n]) for n in range(BLOCK, len(prompt) + 1, BLOCK)}
        new = [Prefix(next(self._ids), k, copy[..., :n, :]) for n, k in keys.items() if k not in self._prefixes]
        self._prefixes |= {prefix.key: prefix for prefix in new}
        self._held += len(prompt) if new else 0
        return new

    def _key(self, tokens: tuple[int, ...]) -> Hashable:
        if self._fault == "collision":  # FAULT: other tokens, if as many, have the same key
            return len(tokens)
        return tokens


@dataclass
class Running:
    """A request on its slot."""

    request: api.Request
    slot: int
    start: int  # offset in the slot of the request's first token
    length: int  # how far the request has filled the slot, by its own count
    cached: int = 0  # tokens
    tops: list[tuple[tuple[int, float], ...]] = field(default_factory=list)  # of each step; the first is emitted
    attention: list[tuple[Any, ...]] = field(default_factory=list)

    def completion(self) -> api.Completion:
        tokens, logprobs = zip(*(top[0] for top in self.tops), strict=True)
        return api.Completion(self.request.id, tokens, logprobs, tuple(self.tops), self.cached)


class SlotEngine(api.Engine):
    """Batches of at most `max_concurrency` requests: each is prefilled, then they take turns, one token each."""

    name = "slot-pool"
    version = "1"
    block_size = BLOCK

    def __init__(self, model: Any, config: api.EngineConfig, fault: str) -> None:
        self._model, self._config = model, config
        self._pool = SlotPool(config.max_concurrency, model, fault)
        self._prefixes = PrefixTable(config.pool_size or SHARED, config.max_concurrency, fault)
        # transformers renamed the argument in 5.24.
        names = inspect.signature(model.forward).parameters
        self._cache_name = "cache" if "cache" in names else "past_key_values"
        self._unwatchable = watchable(model)  # why, or None
        self._watching = "attention" in config.observe and not self._unwatchable
        self._logging = "events" in config.observe
        self._steps = 0
        self._events: list[CacheEvent] = []
        self._attention: dict[str, Attention] = {}

    @property
    def capabilities(self) -> Mapping[str, api.Capability]:
        attention = api.Support.UNSUPPORTED if self._unwatchable else api.Support.SUPPORTED
        return {
            **api.supported("token_prompts", "logprobs", "top_logprobs", "sharing", "cached_tokens"),
            **api.supported("reset_cache", "reopen", "events"),
            "attention": api.Capability(attention, self._unwatchable or ""),
            "kv": api.Capability(api.Support.UNSUPPORTED, "slots are not read out"),
        }

    def generate(self, requests: Sequence[api.Request]) -> list[api.Completion]:
        for request in requests:
            if (n := _stored(request)) > self._pool.capacity:
                raise api.EngineFaultError(f"request {request.id} needs {n} tokens; a slot has {self._pool.capacity}")
        size = self._config.max_concurrency
        batches = [requests[i : i + size] for i in range(0, len(requests), size)]
        return [running.completion() for batch in batches for running in self._batch(batch)]

    def reset_cache(self) -> None:
        self._prefixes.clear()
        self._pool.length = [0] * len(self._pool.length)

    def observe(self) -> Observed:
        observed = Observed(attention=self._attention, events=tuple(self._events))
        self._attention, self._events = {}, []
        return observed

    @torch.inference_mode()
    def _batch(self, requests: Sequence[api.Request]) -> list[Running]:
        slots = self._pool.acquire(len(requests))
        batch = [self._begin(request, slot) for request, slot in zip(requests, slots, strict=True)]
        for running in batch:
            self._prefill(running)
        while active := [running for running in batch if len(running.tops) < running.request.max_tokens]:
            for running in active:
                token, _ = running.tops[-1][0]
                self._forward(running, (token,))
        for running in batch:
            self._end(running)
        return batch

    def _begin(self, request: api.Request, slot: int) -> Running:
        start = self._pool.length[slot]
        if start + _stored(request) > self._pool.capacity:
            start = 0  # behind a stale length only: a broken engine is to go on being wrong, not to stop
        return Running(request, slot, start, start)

    def _prefill(self, running: Running) -> None:
        prompt = running.request.prompt
        if self._config.sharing and (prefix := self._prefixes.longest(prompt)):
            self._reuse(running, prefix)
        self._forward(running, prompt[running.cached :])
        if self._config.sharing:
            kv = self._pool.kv[running.slot, ..., running.start : running.length, :]
            for prefix in self._prefixes.publish(prompt, kv):
                self._log(Action.PUBLISH, running, prefix.id, 0, prefix.tokens, key=prefix.told)

    def _reuse(self, running: Running, prefix: Prefix) -> None:
        """Begin with a copy of a prefix, so that nothing the request writes can reach the prefix itself."""
        begin, running.cached = running.length, prefix.tokens
        running.length += prefix.tokens
        self._pool.kv[running.slot, ..., begin : running.length, :] = prefix.kv
        self._log(Action.REUSE, running, prefix.id, 0, prefix.tokens, key=prefix.told)
        self._log(Action.WRITE, running, running.slot, begin, prefix.tokens)

    def _forward(self, running: Running, tokens: Sequence[int]) -> None:
        """Run the model on a request's next tokens, behind what its slot holds, and append their K/V there."""
        begin = running.length
        cache = self._pool.read(running.slot, begin)
        ids = torch.tensor([tokens], device=self._model.device)
        calls: list[Call] = []
        with watched(self._model, calls.append) if self._watching else nullcontext():
            logits = self._model(input_ids=ids, use_cache=True, **{self._cache_name: cache}).logits[0, -1]
        self._pool.write(running.slot, begin, cache)
        running.length += len(tokens)
        self._log(Action.WRITE, running, running.slot, begin, len(tokens), position=begin - running.start)
        self._steps += 1
        best = logits.float().log_softmax(-1).topk(TOP)
        running.tops.append(tuple(zip(best.indices.tolist(), best.values.tolist(), strict=True)))
        if self._watching:
            running.attention.append(_last_query(calls))

    def _end(self, running: Running) -> None:
        self._pool.release(running.slot)
        self._log(Action.FREE, running, running.slot, running.start, running.length - running.start)
        if self._watching:
            self._attention[running.request.id] = join(running.attention)

    def _log(self, action: Action, running: Running, slot: int, start: int, length: int, **more: Any) -> None:
        if self._logging:
            self._events.append(CacheEvent(self._steps, running.request.id, action, slot, start, length, **more))


def _stored(request: api.Request) -> int:
    """Tokens whose K/V a request needs room for; those of the last token it emits are never computed."""
    return len(request.prompt) + request.max_tokens - 1


def _last_query(calls: Sequence[Call]) -> tuple[Any, ...]:
    """Attention of a forward's last query to all keys it saw, [layers, heads, ...], from the calls of its layers."""
    layers = []
    for call in calls:
        at = torch.tensor([call.key.shape[2] - 1], device=call.key.device)
        layers.append(summarise(probabilities(call, slice(-1, None))[0], at))
    return tuple(np.stack([layer[:, 0] for layer in part]) for part in zip(*layers, strict=True))


def open_engine(model: str, config: api.EngineConfig) -> SlotEngine:
    """Open the transformers model folder `model`. Engine argument: fault, one of `FAULTS`."""
    if unknown := sorted(set(config.engine_args) - {"fault"}):
        raise api.EngineStartError(f"slot_pool has no engine argument {unknown[0]}; it has fault")
    fault = config.engine_args.get("fault", "none")
    if fault not in FAULTS:
        raise api.EngineStartError(f"slot_pool has no fault {fault}; it has {', '.join(FAULTS)}")
    if config.dtype not in DTYPES:
        raise api.UnsupportedConfigError(f"slot_pool has no dtype {config.dtype}; it has {', '.join(DTYPES)}")
    try:
        loaded = AutoModelForCausalLM.from_pretrained(model, dtype=DTYPES[config.dtype], local_files_only=True)
    except Exception as error:  # whatever its loaders raise
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise api.EngineStartError(f"transformers cannot load {model} as a causal LM: {first}") from error
    if getattr(loaded.config, "sliding_window", None):
        raise api.UnsupportedConfigError("slot_pool has no sliding window, which this model needs")
    return SlotEngine(loaded.to(config.device).eval(), config, fault)
