"""LoRA adapters (Hu et al., ICLR 2022) as PEFT saves them, read as deltas of a model's parameters."""

import json
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
PREFIX, FACTORS = "base_model.model.", (".lora_A.weight", ".lora_B.weight")
# What would make the deltas other than scale × B A.
OTHERWISE = ("use_dora", "rank_pattern", "alpha_pattern", "modules_to_save", "layer_replication", "use_rslora")


class LoraError(Exception):
    """A folder that cannot be read as a LoRA adapter; the message is one line for the user."""


def read_lora(folder: Path | str) -> dict[str, Tensor]:
    """Deltas, float32, by parameter name: lora_alpha / r × B A. Raises LoraError."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    folder = Path(folder)
    try:
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        tensors = load_file(folder / WEIGHTS)
    except (OSError, ValueError, SafetensorError) as error:
        raise LoraError(f"cannot read {folder} as a LoRA adapter: {error}") from error
    try:
        return _deltas(config, tensors)
    except (LoraError, LookupError, TypeError, AttributeError, ArithmeticError, RuntimeError) as error:
        reason = f"there is no {error}" if isinstance(error, KeyError) else error
        raise LoraError(f"cannot read {folder} as a LoRA adapter: {reason}") from error


def _deltas(config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    other = [*filter(config.get, OTHERWISE), *(["bias"] if config["bias"] != "none" else [])]
    if other:
        raise LoraError(f"its {other[0]} is not supported")
    scale, turned = config["lora_alpha"] / config["r"], config.get("fan_in_fan_out", False)
    pairs: defaultdict[str, dict[str, Tensor]] = defaultdict(dict)
    for key, tensor in tensors.items():
        ending = next((ending for ending in FACTORS if key.endswith(ending)), None)
        if ending is None or not key.startswith(PREFIX):
            raise LoraError(f"it holds {key}, which is no factor")
        pairs[key.removeprefix(PREFIX).removesuffix(ending)][ending] = tensor.float()
    deltas = {f"{module}.weight": scale * (pair[FACTORS[1]] @ pair[FACTORS[0]]) for module, pair in pairs.items()}
    return {name: delta.T.contiguous() if turned else delta for name, delta in deltas.items()}
