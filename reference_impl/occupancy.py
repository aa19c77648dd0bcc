"""Occupancy: the memory ledger of an engine as it stands."""

from kvfence.reference_impl.engine import ReferenceEngine
from kvfence.reference_impl.ledger import Ledger
from kvfence.reference_impl.pool import SCRATCH


def occupancy(engine: ReferenceEngine) -> Ledger:
    """An engine's pool now. A slot counts as holding something if a request has written it or shares it."""
    size = engine.settings.block_size
    held: dict[int, int] = {}  # tokens in each used block
    entries = tokens = 0
    for sequence in engine.sequences.values():
        for i, block in enumerate(sequence.table.blocks):
            if block == SCRATCH:  # left behind a window
                continue
            here = min(max(sequence.written - i * size, 0), size)
            held[block] = max(held.get(block, 0), here)
            entries += 1
            tokens += here
    empty = len(held) * size - sum(held.values())
    storage, blocks = engine.storage, engine.pool.size
    return Ledger(storage.shape, storage.kv.element_size(), size, blocks, len(held), entries, tokens, empty)
