"""A transformers model, loaded: what the adapters that run one have in common."""

from collections.abc import Collection
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM, GenerationConfig

from kvfence.adapters.api import Capability, EngineConfig, EngineStartError, Support, UnsupportedConfigError
from kvfence.reference_impl.attention import watchable

DTYPES = {name: getattr(torch, name) for name in ("float32", "bfloat16", "float16", "float64")}
POOL_TOKENS = 16_384
PAD = 0
TOP = 5  # best tokens told at each position


def load(adapter: str, folder: str, config: EngineConfig, arguments: Collection[str], **options: str) -> Any:
    """Load a model folder for inference; `options` go to transformers.

    Raises UnsupportedConfigError for a dtype and EngineStartError for an engine argument that `adapter` does not
    have, or for a folder that transformers cannot load as a causal LM.
    """
    if config.dtype not in DTYPES:
        raise UnsupportedConfigError(f"{adapter} has no dtype {config.dtype}; it has {', '.join(DTYPES)}")
    if unknown := sorted(set(config.engine_args) - set(arguments)):
        raise EngineStartError(f"{adapter} has no engine argument {unknown[0]}; it has {', '.join(arguments)}")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.manual_seed(config.seed)
    try:
        model = AutoModelForCausalLM.from_pretrained(
            folder, dtype=DTYPES[config.dtype], local_files_only=True, **options
        )
    except Exception as error:  # whatever its loaders raise: safetensors has a class of its own
        raise EngineStartError(f"transformers cannot load {folder} as a causal LM: {first_line(error)}") from error
    model.generation_config = GenerationConfig(pad_token_id=PAD)
    return model.to(config.device).eval()


def first_line(error: Exception) -> str:
    """The first line of what an exception says, or its name if it says nothing."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def can_share(config: Any) -> Capability:
    """Whether requests to a model of this transformers configuration can share a prefix."""
    if getattr(config, "sliding_window", None):
        return Capability(Support.UNSUPPORTED, "a sliding-window cache keeps no whole prefix to hand out")
    return Capability(Support.SUPPORTED)


def can_watch(model: Any) -> Capability:
    """Whether a model's attention can be observed."""
    reason = watchable(model)
    if getattr(model.config, "sliding_window", None):
        reason = "layers with a sliding window do not keep every key"
    return Capability(Support.UNSUPPORTED, reason) if reason else Capability(Support.SUPPORTED)


def best(logprobs: torch.Tensor) -> list[tuple[tuple[int, float], ...]]:
    """The best few (token, nats) of each of n positions, best first, from logprobs [n, vocabulary]."""
    top = logprobs.topk(min(TOP, logprobs.shape[-1]), dim=-1)
    pairs = zip(top.indices.tolist(), top.values.tolist(), strict=True)
    return [tuple(zip(tokens, values, strict=True)) for tokens, values in pairs]
