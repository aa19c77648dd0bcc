"""Adapter `openvino`: OpenVINO GenAI's paged continuous batching, with its prefix cache."""

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
from kvfence.adapters.openvino_pipeline import BLOCK, SUMMED, Pipeline
from kvfence.adapters.openvino_session import OpenVINOSession

TIMING = "a cancelled request's blocks are given back at the end of a pass, in which the others go on"
UNTOLD = "OpenVINO GenAI does not tell it; with echo=on it shows in the prompt's logprobs"
INEXACT = "OpenVINO GenAI adds up {:,} probabilities in float32: off by more than rounding; logprobs=on has them told"


class OpenVINOEngine(Engine):
    """OpenVINO GenAI on a CPU; a batch holds at most `max_concurrency` requests."""

    name = "openvino"
    block_size = BLOCK

    def __init__(self, pipeline: Pipeline, max_concurrency: int) -> None:
        self._pipeline, self._room = pipeline, max_concurrency
        self._conversations = Conversations()
        self._session: OpenVINOSession | None = None
        try:
            self.version = version("openvino-genai")
        except PackageNotFoundError:
            self.version = "unknown"

    @property
    def capabilities(self) -> Mapping[str, Capability]:
        pipeline = self._pipeline
        counted = supported("cached_tokens") if pipeline.echo else unsupported(UNTOLD, "cached_tokens")
        exact = pipeline.vocabulary <= SUMMED
        untold = unsupported("logprobs=off" if exact else INEXACT.format(pipeline.vocabulary), "logprobs")
        return {
            **supported("token_prompts", "sharing", "reset_cache", "reopen", "ordered", "conversations"),
            **counted,
            **(supported("logprobs") if pipeline.logprobs else untold),
            "session": Capability(Support.SUPPORTED, TIMING),
            **unsupported("OpenVINO GenAI tells the logprob of the emitted token only", "top_logprobs"),
            **unsupported("OpenVINO GenAI keys its cache by tokens alone", "salt"),
            **unsupported("OpenVINO GenAI sets adapters for a whole batch", "adapters"),
            **unsupported("OpenVINO GenAI takes other weights only when it is opened", "weights"),
            **unsupported("the model has no media", "media"),
            **unsupported("the pipeline has no such operation", "fork", "preempt"),
            **unsupported("the pipeline shows tokens and counts only", "attention", "events", "kv"),
        }

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        return self.session().finish(requests)

    def reset_cache(self) -> None:
        """Open the pipeline anew. Raises RefusedError while requests run: nothing else empties its prefix cache."""
        if self._session is not None and self._session.running:
            raise RefusedError("OpenVINO GenAI cannot empty its cache while requests run")
        self._pipeline.open()

    def session(self) -> OpenVINOSession:
        if self._session is not None and not self._session.closed:
            raise EngineFaultError("a session is open already; there can be one at a time")
        self._session = OpenVINOSession(self._pipeline, self._conversations, self._room)
        return self._session

    def close(self) -> None:
        if self._session is not None and not self._session.closed:
            self._session.close()
        self._pipeline.close()


def open_engine(model: str, config: EngineConfig) -> OpenVINOEngine:
    """Open a transformers folder of the Llama kind, converted to OpenVINO's IR once.

    Engine arguments: kv_cache_precision (such as u8), quantization_group (values, 0 = off), split_fuse and echo (on or
    off), logprobs (auto, on or off), threads.
    """
    return OpenVINOEngine(Pipeline(model, config), config.max_concurrency)
