"""Blocks held though no sequence names them: for a conversation's next turn, or until work on them has landed."""

from dataclasses import dataclass

from kvfence.reference_impl.clock import Operation
from kvfence.reference_impl.key import Namespace


@dataclass(eq=False)
class Retained:
    """Blocks kept for the next turn of a conversation, until somebody needs them more."""

    request: str
    namespace: Namespace
    blocks: list[int]
    written: int
    operations: list[Operation]  # in flight when they were retained


@dataclass(eq=False)
class Draining:
    """Blocks let go of while work on them is in flight: nobody's, and not free before it has landed."""

    request: str
    blocks: list[int]
    operations: list[Operation]
