"""Adapter `hf-continuous`: transformers' own paged continuous batching, with its prefix cache."""

import gc
import inspect
from collections.abc import Mapping, Sequence
from math import ceil
from typing import Any

import transformers
from transformers import GenerationConfig

from kvfence.adapters.api import (
    Capability,
    Completion,
    Engine,
    EngineConfig,
    EngineFaultError,
    EngineStartError,
    RefusedError,
    Request,
    Support,
    supported,
    unsupported,
)
from kvfence.adapters.collected import CollectedSession
from kvfence.adapters.hf_batcher import Batcher, Live
from kvfence.adapters.hf_model import PAD, POOL_TOKENS, can_share, can_watch, first_line, load
from kvfence.adapters.observation import Observed

ARGUMENTS = ("attn_implementation", "max_batch_tokens")
ATTENTION = ("sdpa", "eager")
PAGE = 16  # tokens
BATCH_TOKENS = 1024  # longer prompts are prefilled in chunks; the mask takes this times the pool
IDLE_PASSES = 8  # that bring nobody on before a session gives up


class ContinuousSession(CollectedSession):
    """Continuous batching, driven step by step. A request still in prefill takes part in a step with no tokens."""

    def __init__(self, batcher: Batcher) -> None:
        super().__init__()
        self._batcher, self._live = batcher, batcher.live
        self._idle = 0
        # A request that was preempted is computed anew before it comes on.
        self._patience = IDLE_PASSES + ceil(batcher.capacity / batcher.processor.max_batch_tokens)
        self._broken = False

    def submit(self, request: Request) -> None:
        """Hand a request over. Raises RefusedError if its id is in use or the pool can never hold it."""
        stored = len(request.prompt) + request.max_tokens - 1
        if self._batcher.one_allocator and stored > self._batcher.capacity:
            raise RefusedError(
                f"request {request.id} needs {stored} tokens of KV; the pool has {self._batcher.capacity}"
            )
        if request.id in self._live:
            raise RefusedError(f"request {request.id} is running already")
        added = self._batcher.manager.add_request(
            list(request.prompt),
            request_id=request.id,
            max_new_tokens=request.max_tokens,
            streaming=True,
            eos_token_id=-1,
        )
        if added is None:
            raise RefusedError(f"request {request.id} was not accepted")
        self._live[request.id] = Live(request)

    def step(self) -> Mapping[str, tuple[int, ...]]:
        while self._live:
            ran = self._forward()
            emitted = self._receive()
            if ran:
                return {id: emitted.get(id, ()) for id in ran}
        return {}

    def cancel(self, id: str) -> None:
        """Withdraw a request. One that has ended is not touched: its completion stays."""
        if id in self._live:
            if not self._batcher.withdraw(id):
                raise self._fault(f"request {id} was cancelled and its blocks are still held")
            del self._live[id]

    def close(self) -> None:
        # Whatever fails here, the engine must be able to begin another session.
        self.closed = True
        for id in [] if self._broken else list(self._live):
            if not self._batcher.withdraw(id):
                self._broken = True
        self._live.clear()
        if self._broken:
            self._batcher.reset()
        while self._batcher.manager.get_result() is not None:
            pass

    def _forward(self) -> Mapping[str, int]:
        try:
            ran = self._batcher.forward()
        except Exception as error:
            raise self._fault(f"continuous batching broke off: {first_line(error)}") from error
        came_on = [id for id, reached in ran.items() if id in self._live and reached > self._live[id].reached]
        for id in came_on:
            self._live[id].reached = ran[id]
        self._idle = 0 if came_on else self._idle + 1
        if self._idle > self._patience:
            waiting = ", ".join(sorted(self._live))
            raise self._fault(f"no progress in {self._idle} passes; left are the requests {waiting}")
        return ran

    def _receive(self) -> dict[str, tuple[int, ...]]:
        """Tokens that came out since the last pass, by request; completions are put aside."""
        emitted: dict[str, tuple[int, ...]] = {}
        while (output := self._batcher.manager.get_result()) is not None:
            if output.error is not None:
                raise self._fault(f"request {output.request_id} failed: {output.error}")
            live = self._live.get(output.request_id)
            if live is None:
                raise self._fault(f"a result came for {output.request_id}, which is not running")
            emitted[live.request.id] = tuple(output.generated_tokens[live.emitted :])
            live.emitted = len(output.generated_tokens)
            if output.is_finished():
                del self._live[live.request.id]
                tokens, logprobs = tuple(output.generated_tokens), tuple(output.logprobs)
                self.done.append(Completion(output.request_id, tokens, logprobs, tuple(live.best), live.cached))
        return emitted

    def _fault(self, reason: str) -> EngineFaultError:
        self._broken = True
        return EngineFaultError(reason)


UNTOLD = "slots of several kinds of layers, and before transformers 5.18 of any, cannot be told apart"
ABSENT = ("salt", "adapters", "weights", "media", "conversations", "fork", "preempt")


class HFContinuousEngine(Engine):
    """transformers' paged continuous batching; a batch holds at most `max_concurrency` requests."""

    name = "hf-continuous"
    version = transformers.__version__

    def __init__(self, model: Any, manager: Any, config: EngineConfig) -> None:
        self._watchable = can_watch(model)
        watch = [name for name in config.observe if self._watchable.state is Support.SUPPORTED or name != "attention"]
        self._batcher = Batcher(manager, watch)
        self._shares = can_share(model.config)
        if not hasattr(self._batcher.cache, "evict_cached_blocks"):
            self._shares = Capability(Support.UNSUPPORTED, "before transformers 5.18 its cache cannot be emptied")
        self._session: ContinuousSession | None = None
        self.block_size = self._batcher.page

    @property
    def capabilities(self) -> Mapping[str, Capability]:
        one = Capability(Support.SUPPORTED)
        if not self._batcher.one_allocator:
            one = Capability(Support.UNSUPPORTED, UNTOLD)
        return {
            **supported(
                "token_prompts",
                "cached_tokens",
                "logprobs",
                "top_logprobs",
                "reset_cache",
                "reopen",
                "session",
                "ordered",
            ),
            **unsupported("continuous batching has no such operation", *ABSENT),
            "sharing": self._shares,
            "attention": self._watchable,
            "events": one,
            "kv": one,
        }

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        return self.session().finish(requests)

    def reset_cache(self) -> None:
        if self._shares.state is Support.SUPPORTED:
            self._batcher.cache.evict_cached_blocks()

    def observe(self) -> Observed:
        attention = self._batcher.attention.collect() if self._batcher.attention else {}
        events, kv = self._batcher.blocks.collect() if self._batcher.blocks else ((), {})
        return Observed(attention, events, kv)

    def session(self) -> ContinuousSession:
        if self._session is not None and not self._session.closed:
            raise EngineFaultError("a session is open already; there can be one at a time")
        self._session = ContinuousSession(self._batcher)
        return self._session

    def close(self) -> None:
        self._batcher.manager.destroy()
        self._session = None
        del self._batcher
        gc.collect()  # the pool is large, and its methods and their wrappers refer to each other


def open_engine(model: str, config: EngineConfig) -> HFContinuousEngine:
    """Open the transformers model folder `model`. Engine arguments: attn_implementation and max_batch_tokens."""
    attention = config.engine_args.get("attn_implementation", "sdpa")
    if attention not in ATTENTION:
        raise EngineStartError(f"hf-continuous has no attn_implementation {attention}; it has {', '.join(ATTENTION)}")
    tokens = config.engine_args.get("max_batch_tokens", str(config.chunk_size or BATCH_TOKENS))
    if not tokens.isdecimal() or not int(tokens):
        raise EngineStartError(f"max_batch_tokens is a number of tokens, not {tokens}")
    loaded = load("hf-continuous", model, config, ARGUMENTS, attn_implementation=attention)
    try:
        return HFContinuousEngine(loaded, _manager(loaded, config, int(tokens)), config)
    except Exception as error:  # a model or a transformers without what is needed
        reason = f"transformers {transformers.__version__} cannot batch {model} continuously"
        raise EngineStartError(f"{reason}: {first_line(error)}") from error


def _manager(model: Any, config: EngineConfig, max_batch_tokens: int) -> Any:
    from transformers import ContinuousBatchingConfig

    page = config.block_size or PAGE
    named = {"page_size": page, "auto_switch_to_flash": False}
    if "page_size" not in inspect.signature(ContinuousBatchingConfig).parameters:  # before 5.18
        named = {"block_size": page}
    settings = ContinuousBatchingConfig(
        num_blocks=ceil((config.pool_size or POOL_TOKENS) / page),
        max_batch_tokens=max_batch_tokens,
        max_requests_per_batch=config.max_concurrency,
        allow_block_sharing=config.sharing,
        return_logprobs=True,
        use_async_batching=False,
        use_cuda_graph=False,
        seed=config.seed,
        **named,
    )
    # EOS off: a token like any other.
    generation = GenerationConfig(do_sample=False, eos_token_id=-1, pad_token_id=PAD)
    return model.init_continuous_batching(generation_config=generation, continuous_batching_config=settings)
