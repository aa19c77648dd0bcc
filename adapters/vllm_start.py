"""Start of vLLM: the environment it needs in one process, its arguments, and what can be seen of the engine opened."""

import json
import os
from collections.abc import Mapping
from math import ceil
from typing import Any

from kvfence.adapters.api import EngineConfig, EngineStartError, UnsupportedConfigError
from kvfence.adapters.hf_model import POOL_TOKENS

DTYPES = ("float32", "bfloat16", "float16")
BLOCK = 16  # tokens
CPU_BLOCK = 32  # of which blocks are multiples on a CPU
ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the engine in this process, to be stepped and looked into
    "VLLM_USE_V2_MODEL_RUNNER": "0",  # the one whose batch is looked into
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB; without it most of the memory is taken
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # threads are as many as OMP_NUM_THREADS says
    "TORCHDYNAMO_DISABLE": "1",  # compiling would take the first pass longer than most runs
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "HF_HUB_OFFLINE": "1",
}
ABSENT = "vllm cannot be imported: it has an environment of its own, which `make engine-vllm` builds ({})"


def start(model: str, config: EngineConfig) -> Any:
    """vLLM's engine on a model folder. Raises EngineStartError or UnsupportedConfigError."""
    if config.dtype not in DTYPES:
        raise UnsupportedConfigError(f"vllm has no dtype {config.dtype}; it has {', '.join(DTYPES)}")
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    try:
        from vllm import EngineArgs, LLMEngine
        from vllm.platforms import current_platform
    except ImportError as error:
        raise EngineStartError(ABSENT.format(error)) from error
    device = str(current_platform.device_type)
    if config.device.partition(":")[0] != device:
        raise UnsupportedConfigError(f"this vllm runs on {device}, not on {config.device}")
    named = set(EngineArgs.__dataclass_fields__)
    if unknown := sorted(set(config.engine_args) - named):
        raise EngineStartError(f"vllm has no engine argument {unknown[0]}; it has those of its EngineArgs")
    try:
        return LLMEngine.from_engine_args(EngineArgs(**arguments(model, config, device)))
    except Exception as error:  # a model, a size or a combination that vLLM does not have
        raise EngineStartError(f"vllm cannot be opened on {model}: {told(error)}") from error


def arguments(model: str, config: EngineConfig, device: str) -> dict[str, Any]:
    """What vLLM is opened with; the engine arguments of the configuration go before all else."""
    size = config.block_size or (CPU_BLOCK if device == "cpu" else BLOCK)
    if device == "cpu":
        size = ceil(size / CPU_BLOCK) * CPU_BLOCK
    chosen: dict[str, Any] = {
        "model": model,
        "skip_tokenizer_init": True,
        "generation_config": "vllm",
        "dtype": config.dtype,
        "seed": config.seed,
        "enable_prefix_caching": config.sharing,
        "block_size": size,
        # One block is never handed out.
        "num_gpu_blocks_override": ceil((config.pool_size or POOL_TOKENS) / size) + 1,
        "max_model_len": -1,  # the model's own, or what the pool holds
        "max_num_seqs": config.max_concurrency,
        "enforce_eager": True,
        "async_scheduling": False,  # a step is one forward pass
        "disable_log_stats": True,
    }
    if config.chunk_size:
        chosen["max_num_batched_tokens"] = max(config.chunk_size, config.max_concurrency)
    return {**chosen, **{name: _value(text) for name, text in config.engine_args.items()}}


def unseen(engine: Any) -> str:
    """Why the uses of an engine's cache cannot be told, or nothing."""
    config, core = engine.vllm_config, engine.engine_core.engine_core
    groups = core.scheduler.kv_cache_config.kv_cache_groups
    kinds = {type(group.kv_cache_spec).__name__ for group in groups}
    parallel = config.parallel_config
    reasons = {
        "layers of several kinds have blocks of their own": len(groups) != 1,
        f"blocks of {', '.join(sorted(kinds))} do not keep every key": kinds != {"FullAttentionSpec"},
        "its layers are spread over several workers": parallel.world_size != 1,
        "guessing ahead writes what is taken back": config.speculative_config is not None,
        "a pass begins before the last one has ended": bool(config.scheduler_config.async_scheduling),
        "blocks come from a connector too": config.kv_transfer_config is not None,
        "its model runner is another one": bool(getattr(config, "use_v2_model_runner", False)),
    }
    return next((reason for reason, so in reasons.items() if so), "")


def layers_of(engine: Any) -> Mapping[int, Any]:
    """The attention layers of an engine by number."""
    from vllm.model_executor.models.utils import extract_layer_index

    known = engine.vllm_config.compilation_config.static_forward_context
    (group,) = engine.engine_core.engine_core.scheduler.kv_cache_config.kv_cache_groups
    return {extract_layer_index(name): known[name] for name in group.layer_names}


def unwatched(layers: Mapping[int, Any]) -> str:
    """Why attention cannot be recomputed from queries and keys alone, or nothing."""
    kernels = [layer.impl for layer in layers.values()]
    extras = {
        "scores are capped": "logits_soft_cap",
        "scores have a bias by distance": "alibi_slopes",
        "there are sinks": "sinks",
    }
    for reason, name in extras.items():
        if any(getattr(kernel, name, None) not in (None, 0) for kernel in kernels):
            return reason
    return ""


def told(error: Exception) -> str:
    """The line of an error that says what is wrong: behind a heading, where it has one."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    named = next((line for line in lines if line.startswith("Value error, ")), lines[0])
    return named.removeprefix("Value error, ").partition(" [type=")[0]


def _value(text: str) -> Any:
    """An engine argument as vLLM takes it: JSON, and any other text as it is."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text
