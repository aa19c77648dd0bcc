"""Faults of quantised K/V: a scale that somebody else's values have made."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from kvfence.reference_impl.defects.defect import Sentinel, defect
from kvfence.reference_impl.scaled import LARGEST, ScaledPages, ScaledStorage, scale_of
from kvfence.reference_impl.scheduler import Preemption
from kvfence.reference_impl.settings import Parts
from kvfence.reference_impl.storage import Pages, Storage

QUANTISED = Parts(storage=ScaledStorage)


@defect(
    "quant-dep.frozen",
    "QUANT-DEP",
    "vllm-project/vllm#11906",
    "The first values that a layer is given make the scale of all that come: larger ones are cut.",
    foreign=False,
    right=QUANTISED,
)
def _frozen(ran: Sentinel) -> Parts:
    class Frozen(ScaledStorage):
        def write(self, layer: int, slots: Tensor, key: Tensor, value: Tensor) -> None:
            for part, new in enumerate((key.float(), value.float())):
                if not self.scales[part, layer].any():
                    self.scales[part, layer] = scale_of(new.abs().amax().reshape(1))
                steps = new / self.scales[part, layer, 0]
                if (steps.abs() > LARGEST + 0.5).any():
                    ran()
                whole = steps.round().clamp(-LARGEST, LARGEST).to(torch.int8)
                self.kv[part, layer].flatten(0, 1).index_copy_(0, slots, whole)

    return Parts(storage=Frozen)


@defect(
    "quant-dep.inherited",
    "QUANT-DEP",
    "NVIDIA/TensorRT-LLM#2699",
    "A block keeps its scale when it changes hands: it only ever grows.",
    subtle="the K/V are the request's own, only rounded more coarsely",
    foreign=False,
    right=QUANTISED,
)
def _inherited(ran: Sentinel) -> Parts:
    class Inherits(ScaledStorage):
        def write(self, layer: int, slots: Tensor, key: Tensor, value: Tensor) -> None:
            blocks = torch.unique(slots // self.block_size)
            before = self.scales[:, layer, blocks].clone()
            super().write(layer, slots, key, value)
            for part in (0, 1):
                own = self.scales[part, layer, blocks]
                kept = torch.maximum(own, before[part])
                if not kept.equal(own):
                    ran()
                self._requantise(part, layer, blocks, own / kept)
                self.scales[part, layer, blocks] = kept

    return Parts(storage=Inherits)


@defect(
    "quant-dep.copy",
    "QUANT-DEP",
    "jundot/omlx#3690",
    "The copy of a shared block keeps the scale of what lay in its place before.",
    foreign=False,
    right=QUANTISED,
)
def _copy(ran: Sentinel) -> Parts:
    class Leaves(ScaledStorage):
        def copy(self, source: int, target: int) -> None:
            if not self.scales[:, :, source].equal(self.scales[:, :, target]):
                ran()
            Storage.copy(self, source, target)

    return Parts(storage=Leaves)


@defect(
    "quant-dep.restore",
    "QUANT-DEP",
    "jundot/omlx#3690",
    "What was swapped out comes back without its scales.",
    needs={"preemption": Preemption.SWAP},
    foreign=False,
    right=QUANTISED,
)
def _restore(ran: Sentinel) -> Parts:
    class Leaves(ScaledStorage):
        def restore(self, blocks: Sequence[int], pages: Pages) -> None:
            assert isinstance(pages, ScaledPages)
            here = self.scales[:, :, list(blocks)].cpu()
            if not here.equal(pages.scales):
                ran()
            super().restore(blocks, replace(pages, scales=here))

    return Parts(storage=Leaves)
