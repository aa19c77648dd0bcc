"""Mirrors of a model: other weights that give the same answers with other K/V.

Negating the projections of queries and keys leaves every score as it was, and turns every key around; so it does with
values and the output projection. Whoever meets K/V that other weights have made answers something else, while golden
is the same for all of them.
"""

from __future__ import annotations

import json
import shutil
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the parts are named where no torch is needed
    from torch import Tensor


class Part(StrEnum):
    """What is turned around."""

    KEYS = "keys"
    VALUES = "values"


PROJECTIONS = {Part.KEYS: ("q_proj", "k_proj"), Part.VALUES: ("v_proj", "o_proj")}
WEIGHTS = "model.safetensors"
# Where an adapter is not merged: W x and -2 W x, which are added up, over what is left of them.
ROUNDED = 3.0


class MirrorError(Exception):
    """A model that has no mirror; the message is one line for the user."""


def write_adapter(model: Path, part: Part, folder: Path) -> None:
    """Write the mirror of a model folder as a LoRA adapter, as PEFT does. Raises MirrorError.

    Its rank is that of the whole matrix: B is -2 times the weight, A the identity, so that nothing is rounded.
    """
    import torch
    from safetensors.torch import save_file

    factors: dict[str, Tensor] = {}
    ranks = set()
    for name, weight in _projections(model, part).items():
        prefix = f"base_model.model.{name.removesuffix('.weight')}"
        factors[f"{prefix}.lora_A.weight"] = torch.eye(weight.shape[1])
        factors[f"{prefix}.lora_B.weight"] = -2 * weight.float()
        ranks.add(weight.shape[1])
    rank = max(ranks)
    config = {
        "peft_type": "LORA",
        "r": rank,
        "lora_alpha": rank,
        "bias": "none",
        "fan_in_fan_out": False,
        "target_modules": list(PROJECTIONS[part]),
    }
    folder.mkdir(parents=True, exist_ok=True)
    save_file(factors, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps(config), encoding="utf-8")


def write_weights(model: Path, part: Part, folder: Path) -> None:
    """Write the mirror of a model folder as a model folder. Raises MirrorError."""
    from safetensors.torch import load_file, save_file

    mirrored = {name: -weight for name, weight in _projections(model, part).items()}
    shutil.copytree(model, folder, dirs_exist_ok=True)
    save_file(load_file(model / WEIGHTS) | mirrored, folder / WEIGHTS, {"format": "pt"})


def _projections(model: Path, part: Part) -> dict[str, Tensor]:
    """The weights to turn around, by name."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        weights = load_file(model / WEIGHTS)
    except (OSError, SafetensorError) as error:
        raise MirrorError(f"cannot read {model / WEIGHTS}: {error}") from error
    found = {name: w for name, w in weights.items() if name.split(".")[-2] in PROJECTIONS[part]}
    if not found or any(name.rpartition(".")[0] + ".bias" in weights for name in found):
        raise MirrorError(f"{model} has no projections without bias named {' and '.join(PROJECTIONS[part])}")
    return found
