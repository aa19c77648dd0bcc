"""The observer: what the query behind each output token attends to, reduced layer by layer while the model runs."""

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from kvfence.reference_impl.attention import Attended, summarise
from kvfence.reference_impl.footprint import Footprint
from kvfence.reference_impl.paged import Group
from kvfence.reference_impl.sequence import Row
from kvfence.reference_impl.tags import Indices, OwnerTags


@dataclass(frozen=True)
class Watched:
    """The queries of one row that are looked at."""

    row: Row
    place: int  # in its group
    at: Tensor  # [samples] positions
    foreign: Tensor  # [samples, T] whether a key is another's, or behind the query
    reads: Indices  # [T] slots of its keys


class Observer:
    """A visit of one forward pass. Owner tags must tell by then what the pass writes."""

    def __init__(self, prints: list[Footprint], tags: OwnerTags) -> None:
        self._watched: defaultdict[int, list[Watched]] = defaultdict(list)  # by identity of the group
        self._tags = tags
        # By identity of the row, layer by layer.
        self._layers: defaultdict[int, list[tuple[NDArray[Any], ...]]] = defaultdict(list)
        self._whose: defaultdict[int, list[dict[str, NDArray[np.float32]]]] = defaultdict(list)
        for one in prints:
            if one.row.samples:
                self._watched[id(one.group)].append(_watched(one, tags))

    def __call__(self, layer: int, group: Group, probabilities: Tensor) -> None:
        for one in self._watched[id(group)]:
            seen = probabilities[one.place, :, -len(one.at) :]
            foreign = seen.masked_fill(~one.foreign, 0)
            mass = foreign.sum(-1).cpu().numpy()
            # A key that was not gathered has no probability.
            own = pad(seen, (0, one.row.stop - seen.shape[-1]))
            self._layers[id(one.row)].append((*summarise(own, one.at), mass))
            owners = self._tags.owners(one.reads) if mass.any() else {}  # nearly always there is none
            whose = {name: foreign[..., torch.from_numpy(keys).to(foreign.device)] for name, keys in owners.items()}
            self._whose[id(one.row)].append({name: part.sum(-1).cpu().numpy() for name, part in whose.items()})

    def attended(self, row: Row) -> list[Attended]:
        """Attention of each of a row's samples."""
        # [heads, layers, samples, ...] each: rows, maximum, entropy, top, foreign.
        parts = [np.stack(part, axis=1) for part in zip(*self._layers[id(row)], strict=True)]
        layers = self._whose[id(row)]
        whose = {}
        for name in {name for layer in layers for name in layer}:
            none = np.zeros_like(next(layer[name] for layer in layers if name in layer))
            whose[name] = np.stack([layer.get(name, none) for layer in layers], axis=1)
        return [_attended(parts, whose, i) for i in range(row.samples)]


def _attended(parts: list[NDArray[Any]], whose: dict[str, NDArray[np.float32]], sample: int) -> Attended:
    rows, maximum, entropy, top, foreign = (part[:, :, sample].swapaxes(0, 1) for part in parts)
    owners = {name: part[:, :, sample].swapaxes(0, 1) for name, part in whose.items()}
    return Attended(rows, maximum, entropy, top, foreign, owners)


def _watched(one: Footprint, tags: OwnerTags) -> Watched:
    row, device = one.row, one.group.blocks.device
    at = torch.arange(row.stop - row.samples, row.stop, device=device)
    own = torch.from_numpy(one.own(tags)).to(device)
    behind = torch.arange(len(own), device=device) > at[:, None]
    return Watched(row, one.place, at, ~own | behind, one.reads)
