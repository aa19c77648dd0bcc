"""A model of mlx-lm, loaded from a transformers folder."""

import json
from pathlib import Path
from typing import Any

from kvfence.adapters.api import EngineConfig, EngineStartError, UnsupportedConfigError
from kvfence.adapters.hf_model import first_line

DTYPES = ("float32", "bfloat16", "float16")


def load(folder: str, config: EngineConfig) -> Any:
    """Load a model folder for inference on the CPU, with weights in the configuration's dtype.

    Raises UnsupportedConfigError for another device or dtype, and EngineStartError where mlx-lm is not installed or
    cannot load the folder.
    """
    if config.dtype not in DTYPES:
        raise UnsupportedConfigError(f"mlx-lm has no dtype {config.dtype}; it has {', '.join(DTYPES)}")
    if config.device != "cpu":
        raise UnsupportedConfigError(f"mlx-lm is run on cpu, not on {config.device}")
    try:
        import mlx.core as mx

        # Streams belong to a device, and mlx-lm makes one when it is imported.
        mx.set_default_device(mx.cpu)
        from mlx_lm.utils import load_model
    except ImportError as error:
        raise EngineStartError("mlx-lm needs mlx and mlx-lm; install them with: pip install 'kvfence[mlx]'") from error
    mx.random.seed(config.seed)
    try:
        model, _ = load_model(Path(folder), model_config=corrections(folder))
        model.set_dtype(getattr(mx, config.dtype))
        mx.eval(model.parameters())
    except EngineStartError:
        raise
    except Exception as error:  # whatever its loaders raise
        raise EngineStartError(f"mlx-lm cannot load {folder}: {first_line(error)}") from error
    return model.eval()


def corrections(folder: str) -> dict[str, Any]:
    """Entries of `config.json` where mlx-lm looks for them, as far as transformers writes them elsewhere.

    Raises EngineStartError for a model that mlx-lm would load and compute wrongly.
    """
    known = json.loads((Path(folder) / "config.json").read_text(encoding="utf-8"))
    if known.get("model_type") == "mistral" and known.get("sliding_window"):
        raise EngineStartError(f"mlx-lm leaves out the sliding window of a mistral, as {folder} is one")
    rope = dict(known.get("rope_parameters") or {})
    if "rope_theta" not in rope:
        return {}
    # Since 5.0 transformers writes no other; without it mlx-lm takes 10,000, and says nothing.
    moved = {"rope_theta": rope.pop("rope_theta")}
    if rope.get("rope_type", "default") != "default":
        moved["rope_scaling"] = rope
    return {name: value for name, value in moved.items() if known.get(name) is None}
