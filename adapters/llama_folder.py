"""A transformers folder of the Llama kind, for adapters that convert it: what it says, where what is made is kept."""

import json
import os
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kvfence.adapters.api import EngineStartError


def read_config(folder: Path, adapter: str) -> dict[str, Any]:
    """The configuration of a Llama, with `rope_theta` at its top.

    Raises EngineStartError for a folder that is not a Llama's, or one with a window or a scaled RoPE.
    """
    file = folder / "config.json"
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise EngineStartError(f"cannot read {file}: {error}") from error
    kind = config.get("model_type") if isinstance(config, dict) else None
    if kind not in ("llama", "mistral"):
        raise EngineStartError(f"{adapter} converts folders of Llama models, and {folder} is of type {kind}")
    if config.get("sliding_window"):
        raise EngineStartError(f"{folder} has a sliding window, which {adapter} does not convert")
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if rope.get("rope_type", rope.get("type", "default")) != "default":
        raise EngineStartError(f"{folder} scales its RoPE, which {adapter} does not convert")
    if (activation := config.get("hidden_act", "silu")) != "silu":
        raise EngineStartError(f"{folder} has the activation {activation}, which {adapter} does not convert")
    return {**config, "rope_theta": rope.get("rope_theta", config.get("rope_theta", 10_000.0))}


def made_of(folder: Path, adapter: str) -> str:
    """A name for what is made of a folder: another one once its weights are other ones.

    Raises EngineStartError for a folder without model.safetensors.
    """
    weights = folder / "model.safetensors"
    try:
        stamp = weights.stat().st_mtime_ns
    except OSError as error:
        raise EngineStartError(f"{folder} has no model.safetensors; {adapter} converts a folder with one") from error
    return f"{folder.resolve().name}-{hash_of(weights.resolve(), stamp):016x}"


def written(target: Path, write: Callable[[Path], None]) -> Path:
    """`target`, a file or a folder, made by `write` unless it is there.

    It is written whole or not at all: two processes may write it at once, and either may be killed. Raises
    EngineStartError if it cannot be written.
    """
    if target.exists():
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{target.name}-", dir=target.parent) as scratch:
            made = Path(scratch) / target.name
            write(made)
            made.replace(target)
    except OSError as error:
        # A folder does not replace the one that another process has put there meanwhile.
        if not target.exists():
            raise EngineStartError(f"cannot write {target}: {error.strerror or error}") from error
    return target


def cache_folder() -> Path:
    """Where kvfence keeps what it has built: $KVFENCE_CACHE, else the user's cache directory."""
    if own := os.environ.get("KVFENCE_CACHE"):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kvfence"


def hash_of(*facts: object) -> int:
    """A number for some facts, the same in every process."""
    text = json.dumps([str(fact) for fact in facts]).encode()
    return zlib.crc32(text) << 32 | zlib.adler32(text)
