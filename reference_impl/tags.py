"""Owner tags: whose K/V each slot of the cache holds."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvfence.reference_impl.key import Namespace

NOBODY = -1
FIELDS = ("request", "position", "token", "tenant", "epoch", "lineage")
Indices = NDArray[np.int64]


@dataclass(frozen=True)
class Owner:
    """What one slot holds: K/V of this token, at this position, of this request."""

    request: str
    position: int
    token: int
    tenant: str | None
    epoch: int


class Lineages:
    """A number for every prefix that was ever seen, the same for equal tokens in the same namespace only.

    K/V at a position depend on the namespace and on all tokens up to it; so do these numbers. Nothing is hashed away:
    a number stands for one token after the prefix of one other number.
    """

    def __init__(self) -> None:
        self._numbers: dict[tuple[Namespace | int, int], int] = {}

    def after(self, prefix: Namespace | int, tokens: Sequence[int]) -> list[int]:
        """The numbers of the prefixes that `tokens` make, one by one, of a namespace or of a prefix given by number."""
        numbers = []
        for token in tokens:
            prefix = self._numbers.setdefault((prefix, token), len(self._numbers))
            numbers.append(prefix)
        return numbers


class OwnerTags:
    """For each slot of a pool: request, position, token, tenant, weight epoch, and the lineage of its K/V."""

    def __init__(self, slots: int, block_size: int) -> None:
        self.block_size, self.lineages = block_size, Lineages()
        self.values = np.full((len(FIELDS), slots), NOBODY, np.int64)
        self._names: list[str | None] = []
        self._indices: dict[str | None, int] = {}

    def write(
        self,
        slots: Indices,
        request: str,
        position: int,
        tokens: Sequence[int],
        namespace: Namespace,
        lineage: Sequence[int] | Indices,
    ) -> None:
        """A request's K/V of `tokens`, the first of them at `position`, were written to `slots`."""
        columns = self.values[:, slots]
        columns[0] = self._index(request)
        columns[1] = np.arange(position, position + len(slots))
        columns[2] = tokens
        columns[3] = NOBODY if namespace.salt is None else self._index(namespace.salt)
        columns[4] = namespace.epoch
        columns[5] = lineage
        self.values[:, slots] = columns

    def slots(self, blocks: Sequence[int]) -> Indices:
        """The slots of whole blocks, one block after the other."""
        starts = np.asarray(blocks, np.int64)[:, None] * self.block_size
        return (starts + np.arange(self.block_size)).reshape(-1)

    def lineage(self, slots: Indices) -> Indices:
        """The lineage of what slots hold; NOBODY where nothing was written."""
        lineage: Indices = self.values[5, slots]
        return lineage

    def owner(self, slot: int) -> Owner | None:
        """Who a slot belongs to, or None if it was never written or was cleared."""
        request, position, token, tenant, epoch, _ = self.values[:, slot].tolist()
        if request == NOBODY:
            return None
        name = self._names[request]
        assert name is not None
        return Owner(name, position, token, None if tenant == NOBODY else self._names[tenant], epoch)

    def owners(self, slots: Indices) -> dict[str, NDArray[np.bool_]]:
        """Each request that any of `slots` [T] belong to, "" for nobody, and whether each of them does [T]."""
        requests = self.values[0, slots]
        return {"" if i == NOBODY else str(self._names[i]): requests == i for i in np.unique(requests).tolist()}

    def copy(self, source: int, target: int) -> None:
        """A block was copied: the target holds what the source does."""
        self.values[:, self.slots([target])] = self.values[:, self.slots([source])]

    def read(self, blocks: Sequence[int]) -> NDArray[np.int64]:
        """Tags [fields, tokens] of whole blocks, to be kept beside a copy of their K/V."""
        return self.values[:, self.slots(blocks)]

    def restore(self, blocks: Sequence[int], values: NDArray[np.int64]) -> None:
        """Give blocks the tags of the K/V that were copied into them."""
        self.values[:, self.slots(blocks)] = values

    def clear(self, slots: Indices) -> None:
        """What slots hold is nobody's: padding's, or left over from a pass that failed."""
        self.values[:, slots] = NOBODY

    def _index(self, name: str) -> int:
        if name not in self._indices:
            self._indices[name] = len(self._names)
            self._names.append(name)
        return self._indices[name]
