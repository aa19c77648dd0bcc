"""The footprint of a row: which slots it writes and reads in one forward pass, as laid out for the model.

Taken from the batch itself and not from the plan, so that owner tags say where K/V really went.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvfence.reference_impl.paged import Group
from kvfence.reference_impl.runner import Packed, tokens_of
from kvfence.reference_impl.sequence import Row
from kvfence.reference_impl.tags import Indices, OwnerTags


@dataclass(frozen=True)
class Footprint:
    """One row of a batch. Its keys are in order of position: key j is what it takes for its position j."""

    row: Row
    group: Group
    place: int  # in the group
    writes: Indices  # [Q] slots
    reads: Indices  # [T] slots of its keys
    positions: Indices  # [Q] of its queries
    lineage: Indices  # [row.stop] of its tokens, those guessed among them

    def own(self, tags: OwnerTags) -> NDArray[np.bool_]:
        """Whether each key [T] holds K/V of the row's own token at that position, after its own prefix."""
        own = np.zeros(len(self.reads), bool)
        n = min(len(own), len(self.lineage))
        own[:n] = tags.lineage(self.reads[:n]) == self.lineage[:n]
        return own

    def tag(self, tags: OwnerTags) -> None:
        """Note that the row's K/V are written."""
        row, namespace = self.row, self.row.sequence.namespace
        tags.write(self.writes, row.sequence.id, row.start, tokens_of(row), namespace, self.lineage[row.start :])


def footprints(packed: Packed, tags: OwnerTags) -> tuple[list[Footprint], Indices]:
    """The footprints of a batch's rows, in their order, and the slots that padding is written to."""
    written = packed.batch.slots.cpu().numpy()
    padding = np.ones(len(written), bool)
    prints = []
    for row, group, place in _placed(packed):
        queries = group.shape[1]
        first = group.first + place * queries
        padding[first : first + queries] = False
        sequence = row.sequence
        tokens = [*sequence.tokens[: row.start], *tokens_of(row)]
        prints.append(
            Footprint(
                row,
                group,
                place,
                written[first : first + queries],
                tags.slots(group.blocks[place].tolist()),
                group.positions[place].cpu().numpy(),
                np.array(tags.lineages.after(sequence.namespace, tokens), np.int64),
            )
        )
    return prints, written[padding]


def _placed(packed: Packed) -> Iterator[tuple[Row, Group, int]]:
    for group, rows in zip(packed.batch.groups, packed.members, strict=True):
        for place, row in enumerate(rows):
            yield row, group, place
