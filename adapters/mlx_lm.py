"""Adapter `mlx-lm`: Apple's mlx-lm on the CPU, its BatchGenerator and its server's prompt cache."""

from collections.abc import Mapping, Sequence
from typing import Any

from kvfence.adapters.api import (
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
from kvfence.adapters.mlx_lm_batch import Batch
from kvfence.adapters.mlx_lm_draft import Drafted
from kvfence.adapters.mlx_lm_model import load
from kvfence.adapters.mlx_lm_prompts import KeptPrompts
from kvfence.adapters.mlx_lm_session import MLXSession
from kvfence.adapters.observation import KV, Observed

# Engine arguments, numbers up to 9999, and what they are when not given.
ARGUMENTS = {
    "prompt_cache_size": 64,  # prompts that are kept; the server's default of 10 is fewer than a case may have requests
    "draft": 0,  # tokens that a draft model drafts in a step; 0 = none. With it requests run one after another
}


class MLXEngine(Engine):
    """mlx-lm; a batch holds at most `max_concurrency` requests, and `pool_size` bounds what is kept beside it."""

    name = "mlx-lm"
    block_size = 1

    def __init__(self, model: Any, config: EngineConfig, entries: int, drafts: int) -> None:
        from mlx_lm import __version__
        from mlx_lm.models.cache import KVCache, make_prompt_cache

        self.version = __version__
        self._config = config
        self._batch = Drafted(model, config, drafts) if drafts else Batch(model, config)
        self._drafts = bool(drafts)
        self._kept = KeptPrompts(entries, config.pool_size)
        self._conversations = Conversations()
        self._session: MLXSession | None = None
        self._plain = all(type(layer) is KVCache for layer in make_prompt_cache(model))
        self._kv: dict[str, KV] | None = {} if self._plain and "kv" in config.observe else None

    @property
    def capabilities(self) -> Mapping[str, Capability]:
        by_position = Capability(Support.SUPPORTED)
        if not self._plain:
            by_position = Capability(Support.UNSUPPORTED, "caches of this model do not hold K/V position by position")
        copied = by_position
        if self._drafts:
            copied = Capability(Support.UNSUPPORTED, "with a draft model mlx-lm's server serves one request at a time")
        return {
            **supported("token_prompts", "cached_tokens", "logprobs", "top_logprobs", "reset_cache"),
            **supported("reopen", "session", "ordered", "conversations"),
            "sharing": Capability(Support.SUPPORTED, "" if self._plain else "of some caches, only as a whole"),
            "salt": Capability(Support.SUPPORTED, "as a part of the prompt cache's key; the server sends none"),
            **dict.fromkeys(("fork", "preempt"), copied),
            "kv": by_position,
            **unsupported("mlx-lm reads adapters of a format of its own, and has one for all requests", "adapters"),
            **unsupported("to the batch generator another model's weights are another generator's", "weights"),
            **unsupported("this adapter sends token ids alone", "media"),
            **unsupported("caches of mlx-lm are arrays of their own, without slots", "events"),
            **unsupported("mlx's attention is one kernel, which tells no probabilities", "attention"),
        }

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        return self.session().finish(requests)

    def reset_cache(self) -> None:
        """Forget every prompt that is kept. What runs goes on with its own cache."""
        self._kept.clear()

    def observe(self) -> Observed:
        if self._kv is None:
            return Observed()
        seen = dict(self._kv)
        self._kv.clear()
        return Observed(kv=seen)

    def session(self) -> MLXSession:
        if self._session is not None and not self._session.closed:
            raise EngineFaultError("a session is open already; there can be one at a time")
        self._session = MLXSession(self._batch, self._kept, self._conversations, self._config.sharing, self._kv)
        return self._session

    def close(self) -> None:
        if self._session is not None and not self._session.closed:
            self._session.close()
        self._kept.clear()


def open_engine(model: str, config: EngineConfig) -> MLXEngine:
    """Open the model folder `model`. Engine arguments: prompt_cache_size, in prompts, and draft, in tokens a step."""
    given = dict(ARGUMENTS)
    for name, value in config.engine_args.items():
        if name not in ARGUMENTS:
            raise EngineStartError(f"mlx-lm has no engine argument {name}; it has {', '.join(ARGUMENTS)}")
        least = min(1, ARGUMENTS[name])
        if not (value.isdecimal() and len(value) < 5 and int(value) >= least):
            raise EngineStartError(f"{name} is a number from {least} to 9999, not {value}")
        given[name] = int(value)
    return MLXEngine(load(model, config), config, given["prompt_cache_size"], given["draft"])
