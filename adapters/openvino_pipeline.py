"""OpenVINO GenAI's continuous batching pipeline: opened, asked, opened anew."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np

from kvfence.adapters.api import EngineConfig, EngineFaultError, EngineStartError, UnsupportedConfigError
from kvfence.adapters.llama_folder import read_config
from kvfence.adapters.openvino_model import MISSING, model_folder

BLOCK = 32  # tokens, of the CPU plugin's paged attention
BATCH_TOKENS = 256  # OpenVINO GenAI's own choice; longer prompts are prefilled in chunks
WHOLE_TOKENS = 16_384  # in a pass that prefills prompts whole
# OpenVINO GenAI adds up the probabilities of a vocabulary one by one in float32: over a larger one its logprobs are off
# by more than rounding, over 49,152 tokens by 2e-4 nats.
SUMMED = 8_192  # tokens
DTYPES = {"float32": "f32", "bfloat16": "bf16", "float16": "f16"}
CAPABILITIES = {"float32": "FP32", "bfloat16": "BF16", "float16": "FP16"}  # in the CPU plugin's words
SWITCHES = {"on": True, "off": False}
# Engine arguments and what they are when not given.
ARGUMENTS = {
    "kv_cache_precision": "",  # as the CPU plugin names it, such as u8; that of the dtype where it is not given
    "quantization_group": "0",  # of activations, quantised as they come; 0 = none
    "split_fuse": "on",  # prompts in chunks along with decoding, in place of whole ones in passes of their own
    "echo": "on",  # have the prompt's logprobs told: how many are missing is how many tokens were cached
    "logprobs": "auto",  # on, off, or on where the vocabulary is small enough for them to be exact
    "threads": "1",
}


@dataclass(frozen=True)
class Part:
    """What a request has brought since it was last read."""

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]  # [tokens] nats; zeros where they are off
    echoed: int | None  # prompt tokens whose logprobs were told; in the first part, with echo


class Pipeline:
    """The pipeline of one model in one configuration."""

    def __init__(self, model: str, config: EngineConfig) -> None:
        self._arguments, self._config = arguments(config), config
        self._genai, self._openvino = _modules()
        known = self._openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
        if CAPABILITIES[config.dtype] not in known:
            raise UnsupportedConfigError(f"openvino has no {config.dtype} on this processor")
        self._folder = model_folder(model)
        asked = self._arguments["logprobs"]
        self.vocabulary = int(read_config(Path(model), "openvino")["vocab_size"])
        self.logprobs = SWITCHES.get(asked, self.vocabulary <= SUMMED)
        self.echo = SWITCHES[self._arguments["echo"]]
        self._whole = not SWITCHES[self._arguments["split_fuse"]]
        self._batch = config.chunk_size or (WHOLE_TOKENS if self._whole else BATCH_TOKENS)
        self._ids = count()
        self._pipeline: Any = None
        self.open()

    def open(self) -> None:
        """A pipeline that holds nothing, in place of the last. Raises EngineStartError if it does not open."""
        self._pipeline = None  # the old pool is given back before the new one is taken
        try:
            tokenizer = self._genai.Tokenizer(self._folder)  # of nothing: prompts are token ids
            self._pipeline = self._genai.ContinuousBatchingPipeline(
                self._folder, tokenizer, self._scheduler(), "CPU", **self._properties()
            )
        except RuntimeError as error:
            raise EngineStartError(f"OpenVINO GenAI did not open {self._folder.name}: {told(error)}") from error

    def close(self) -> None:
        self._pipeline = None

    def fits(self, prompt: int, new: int) -> str:
        """Why a request of so many tokens can never run, or nothing."""
        stored = prompt + new - 1
        capacity = self._blocks * BLOCK
        if capacity and stored > capacity:
            return f"needs {stored} tokens of KV; the pool has {capacity}"
        if self._whole and stored > self._batch:
            return f"has {stored} tokens; a pass that prefills whole prompts takes {self._batch}"
        return ""

    def add(self, prompt: tuple[int, ...], new: int) -> Any:
        """Hand a prompt over; a handle, with which the request is withdrawn when nobody holds it any more."""
        # Without one that is not negative it would take the tokenizer's, which has none, and refuse that.
        end = 0
        settings = self._genai.GenerationConfig(
            max_new_tokens=new,
            ignore_eos=True,
            eos_token_id=end,
            stop_token_ids={end},
            logprobs=int(self.logprobs),
            echo=self.echo,
        )
        tokens = self._openvino.Tensor(np.array([prompt], np.int64))
        return self._pipeline.add_request(next(self._ids), tokens, settings)

    def step(self) -> int:
        """Run one forward pass; how many requests took part. Raises EngineFaultError."""
        try:
            self._pipeline.step()
        except RuntimeError as error:
            raise EngineFaultError(f"OpenVINO GenAI broke off: {told(error)}") from error
        return int(self._pipeline.get_metrics().scheduled_requests)

    def read(self, handle: Any, prompt: int | None) -> Part:
        """What a request has brought since it was last read; `prompt` is its length where none was read before."""
        tokens: list[int] = []
        logprobs: list[float] = []
        echoed: int | None = None
        while handle.can_read():
            for output in handle.read().values():
                new, told = list(output.generated_ids), list(output.generated_log_probs)
                if self.echo and prompt is not None and new:
                    new = new[prompt:]
                    echoed, prompt = len(told) - len(new), None
                    told = told[echoed:]
                tokens += new
                logprobs += told
        return Part(tuple(tokens), tuple(logprobs), echoed)

    def gave_up(self, handle: Any) -> bool:
        """Whether a request was dropped because the pool was full."""
        return bool(handle.get_status() == self._genai.GenerationStatus.IGNORED)

    def let_go(self, handle: Any) -> bool:
        """Whether a request's blocks have been given back: it has been measured only then."""
        if not hasattr(handle, "get_perf_metrics"):  # before 2026.4 nothing tells
            return True
        try:
            handle.get_perf_metrics()
        except RuntimeError:
            return False
        return True

    @property
    def _blocks(self) -> int:
        return ceil((self._config.pool_size or 0) / BLOCK)  # 0 = as many as it takes

    def _scheduler(self) -> Any:
        scheduler = self._genai.SchedulerConfig()
        scheduler.num_kv_blocks = self._blocks
        scheduler.max_num_batched_tokens = max(self._batch, self._config.max_concurrency)
        scheduler.max_num_seqs = self._config.max_concurrency
        scheduler.enable_prefix_caching = self._config.sharing
        scheduler.dynamic_split_fuse = not self._whole
        return scheduler

    def _properties(self) -> dict[str, Any]:
        given, threads = self._arguments, int(self._arguments["threads"])
        return {
            "INFERENCE_NUM_THREADS": threads,
            "INFERENCE_PRECISION_HINT": DTYPES[self._config.dtype],
            "KV_CACHE_PRECISION": given["kv_cache_precision"] or DTYPES[self._config.dtype],
            "DYNAMIC_QUANTIZATION_GROUP_SIZE": given["quantization_group"],
            "sampler_num_threads": threads,
        }


def arguments(config: EngineConfig) -> Mapping[str, str]:
    """The engine arguments, all of them. Raises EngineStartError or UnsupportedConfigError for what makes no sense."""
    if config.dtype not in DTYPES:
        raise UnsupportedConfigError(f"openvino has no dtype {config.dtype}; it has {', '.join(DTYPES)}")
    if config.device != "cpu":
        raise UnsupportedConfigError(f"openvino runs on cpu, not on {config.device}")
    for name, value in config.engine_args.items():
        if name not in ARGUMENTS:
            raise EngineStartError(f"openvino has no engine argument {name}; it has {', '.join(ARGUMENTS)}")
        if ARGUMENTS[name] in SWITCHES and value not in SWITCHES:
            raise EngineStartError(f"{name} is on or off, not {value}")
        if name == "logprobs" and value not in ("auto", *SWITCHES):
            raise EngineStartError(f"{name} is auto, on or off, not {value}")
        if ARGUMENTS[name].isdecimal() and not (value.isdecimal() and len(value) < 7):
            raise EngineStartError(f"{name} is a number, not {value}")
    return {**ARGUMENTS, **config.engine_args}


def told(error: Exception) -> str:
    """The line of an OpenVINO error that says what is wrong: behind the places it came through."""
    lines = [line.strip() for line in str(error).splitlines()]
    said = [line for line in lines if line and not line.startswith("Exception from ")]
    return said[-1] if said else type(error).__name__


def _modules() -> tuple[Any, Any]:
    try:
        import openvino
        import openvino_genai
    except ImportError as error:
        raise EngineStartError(MISSING) from error
    return openvino_genai, openvino
