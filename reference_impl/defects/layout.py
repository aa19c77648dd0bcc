"""Where the rows of a laid-out batch lie."""

from collections.abc import Iterator

from kvfence.reference_impl.paged import Group
from kvfence.reference_impl.runner import Packed
from kvfence.reference_impl.sequence import Row


def placed(packed: Packed) -> Iterator[tuple[Row, Group, int, int]]:
    """Each row with its group, its place there, and the index, of N, of its first token."""
    for group, members in zip(packed.batch.groups, packed.members, strict=True):
        for place, row in enumerate(members):
            yield row, group, place, group.first + place * group.shape[1]


def padding(packed: Packed) -> Iterator[tuple[int, int]]:
    """Place and index, of N, of each row of padding."""
    for group, members in zip(packed.batch.groups, packed.members, strict=True):
        rows, queries = group.shape
        for place in range(len(members), rows):
            yield place, group.first + place * queries
