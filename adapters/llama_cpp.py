"""Adapter `llama-cpp`: llama.cpp's own server, its slots and its prompt cache, through xllamacpp."""

from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version

from kvfence.adapters.api import (
    Capability,
    Completion,
    Engine,
    EngineConfig,
    EngineFaultError,
    RefusedError,
    Request,
    Support,
    supported,
    unsupported,
)
from kvfence.adapters.conversations import Conversations
from kvfence.adapters.llama_cpp_server import LlamaServer
from kvfence.adapters.stream_session import StreamSession

TIMING = "the server steps by itself: an operation comes at its moment or some tokens later"


class LlamaCppEngine(Engine):
    """llama.cpp's server; a slot for each of `max_concurrency` requests."""

    name = "llama-cpp"
    block_size = 1

    def __init__(self, server: LlamaServer) -> None:
        self._server, self._conversations = server, Conversations()
        self._session: StreamSession | None = None
        try:
            self.version = version("xllamacpp")
        except PackageNotFoundError:
            self.version = "unknown"

    @property
    def capabilities(self) -> Mapping[str, Capability]:
        return {
            **supported("token_prompts", "sharing", "cached_tokens", "logprobs", "top_logprobs", "reset_cache"),
            **supported("reopen", "conversations"),
            "session": Capability(Support.SUPPORTED, TIMING),
            **unsupported("each request comes by a connection of its own", "ordered"),
            **unsupported("llama.cpp keys its cache by tokens alone", "salt"),
            **unsupported("llama.cpp takes adapters when it starts", "adapters"),
            **unsupported("llama.cpp takes other weights only when it starts", "weights"),
            **unsupported("the model has no media", "media"),
            **unsupported("the server has no such operation", "fork", "preempt"),
            **unsupported("the server shows tokens and counts only", "attention", "events", "kv"),
        }

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        return self.session().finish(requests)

    def reset_cache(self) -> None:
        """Start the server anew; while requests run, only idle slots are emptied.

        Raises RefusedError if prompts are kept beside the slots then: there is no way to forget those.
        """
        if self._session is None or not self._session.running:
            self._server.restart()
        elif self._server.prompt_cache:
            how = "cache_ram=0 and slot_save=off turn it off"
            raise RefusedError(f"llama.cpp cannot empty its prompt cache while requests run; {how}")
        else:
            self._server.erase_idle()

    def session(self) -> StreamSession:
        if self._session is not None and not self._session.closed:
            raise EngineFaultError("a session is open already; there can be one at a time")
        self._session = StreamSession(self._server, self._conversations)
        return self._session

    def close(self) -> None:
        if self._session is not None and not self._session.closed:
            self._session.close()
        self._server.close()


def open_engine(model: str, config: EngineConfig) -> LlamaCppEngine:
    """Open a transformers folder of the Llama kind, converted to GGUF once.

    Engine arguments: kv_unified, context_shift, flash_attn and slot_save (on or off), cache_ram (MiB), cache_reuse
    (tokens), threads.
    """
    return LlamaCppEngine(LlamaServer(model, config))
