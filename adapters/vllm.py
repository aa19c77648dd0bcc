"""Adapter `vllm`: vLLM in this process, on the CPU as well as on a GPU."""

from collections.abc import Mapping, Sequence
from typing import Any

from kvfence.adapters.api import (
    Capability,
    Completion,
    Engine,
    EngineConfig,
    EngineFaultError,
    Request,
    Support,
    supported,
    unsupported,
)
from kvfence.adapters.observation import Observed
from kvfence.adapters.vllm_blocks import BlockLog
from kvfence.adapters.vllm_cache import Cells, LayoutError
from kvfence.adapters.vllm_core import Core
from kvfence.adapters.vllm_forward import Forward
from kvfence.adapters.vllm_session import VLLMSession
from kvfence.adapters.vllm_start import layers_of, start, unseen, unwatched
from kvfence.adapters.vllm_weights import Weights


class VLLMEngine(Engine):
    """vLLM; a batch holds at most `max_concurrency` requests. One configuration a process."""

    name = "vllm"

    def __init__(self, engine: Any, config: EngineConfig) -> None:
        from vllm import __version__

        self.version = __version__
        self.core = Core(engine)
        self.block_size = self.core.block_size
        self._weights = Weights(self.core)
        self._session: VLLMSession | None = None
        self._log: BlockLog | None = None
        self._forward: Forward | None = None
        self._seen = self._look(config.observe)

    def _look(self, observe: Sequence[str]) -> Mapping[str, Capability]:
        """Begin to observe what is asked for; what can be."""
        if reason := unseen(self.core.engine):
            return unsupported(reason, "events", "kv", "attention")
        layers, cells, seen = layers_of(self.core.engine), None, supported("events")
        try:
            cells = Cells(layers)
            seen |= supported("kv", "attention")
        except LayoutError as error:
            seen |= unsupported(str(error), "kv", "attention")
        if reason := unwatched(layers):
            seen |= unsupported(reason, "attention")
        asked = {name for name in observe if seen[name].state is Support.SUPPORTED}
        if {"events", "kv"} & asked:
            self._log = BlockLog(self.core, "events" in asked, cells if "kv" in asked else None)
        if asked:
            self._forward = Forward(self.core, layers, self._log, cells, "attention" in asked)
        return seen

    @property
    def capabilities(self) -> Mapping[str, Capability]:
        return {
            **supported(
                "token_prompts",
                "sharing",
                "cached_tokens",
                "logprobs",
                "top_logprobs",
                "reset_cache",
                "session",
                "ordered",
                "salt",
                "weights",
            ),
            **unsupported("a process that has had one engine does not get another one to run", "reopen"),
            **unsupported("vLLM takes requests out of the batch only for want of room", "preempt"),
            **unsupported("vLLM decides before it begins how many go on from a prompt", "fork"),
            **unsupported("to vLLM each turn is a prompt like any other", "conversations"),
            **unsupported("this adapter sends token ids alone", "media"),
            "adapters": self._weights.adapting,
            **self._seen,
        }

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        return self.session().finish(requests)

    def reset_cache(self) -> None:
        if not self.core.forget():
            raise EngineFaultError("vLLM does not empty its cache: blocks are still held")

    def load_adapter(self, name: str, folder: str) -> None:
        self._weights.load(name, folder)

    def load_weights(self, model: str) -> None:
        self._weights.exchange(model)

    def observe(self) -> Observed:
        attention = self._forward.attention.collect() if self._forward and self._forward.attention else {}
        events, kv = self._log.collect() if self._log else ((), {})
        return Observed(attention, events, kv)

    def session(self) -> VLLMSession:
        if self._session is not None and not self._session.closed:
            raise EngineFaultError("a session is open already; there can be one at a time")
        self._session = VLLMSession(self.core, self._weights.adapters)
        return self._session

    def close(self) -> None:
        self.core.engine.engine_core.shutdown()


def open_engine(model: str, config: EngineConfig) -> VLLMEngine:
    """Open the model folder `model`. Engine arguments: those of vLLM's EngineArgs, as JSON.

    On a CPU blocks are multiples of 32 tokens: sizes between are rounded up.
    """
    return VLLMEngine(start(model, config), config)
