"""Attention log: what requests attended to, layer by layer and step by step, in summaries only."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from kvfence.adapters.observation import Attention, join
from kvfence.reference_impl.attention import summarise

Summary = tuple[NDArray[Any], ...]


class AttentionLog:
    """Collects one summary for each output step, layer and request."""

    def __init__(self) -> None:
        self._seen: dict[str, dict[int, list[Summary]]] = {}

    def add(self, request: str, layer: int, own: torch.Tensor) -> None:
        """Note one layer's probabilities [heads, T] of a request's query over its own T keys, the last one its own."""
        at = torch.tensor([own.shape[-1] - 1], device=own.device)
        summary = tuple(part[:, 0] for part in summarise(own[:, None], at))
        self._seen.setdefault(request, {}).setdefault(layer, []).append(summary)

    def collect(self) -> dict[str, Attention]:
        """Attention by request since the last call."""
        seen, self._seen = self._seen, {}
        return {request: join(_steps(layers)) for request, layers in seen.items()}


def _steps(layers: dict[int, list[Summary]]) -> list[Summary]:
    # A pass that broke off reached some layers only: its step is left out.
    steps = zip(*(layers[layer] for layer in sorted(layers)), strict=False)
    return [tuple(np.stack(parts) for parts in zip(*step, strict=True)) for step in steps]
