"""What the tests of `hf-continuous` share: an engine on a small pool, prompts with a common prefix, block accounts."""

from kvfence.adapters import hf_continuous
from kvfence.adapters.api import EngineConfig, Request
from kvfence.adapters.observation import Action
from kvfence.prompts import alphabet

SHARED = tuple(range(100, 120))
PROMPTS = [alphabet.prompt_tokens((*SHARED, *range(200 + 20 * i, 203 + 20 * i + i)), start=i) for i in range(3)] + [
    alphabet.prompt_tokens(range(400, 404))
]
N = 12
LONG = alphabet.prompt_tokens(range(500, 600))
OBSERVE = ("attention", "events", "kv")
SETTINGS = {"max_concurrency": 4, "block_size": 8, "pool_size": 2048}


def open_engine(folder, **config):
    return hf_continuous.open_engine(str(folder.path), EngineConfig(**{**SETTINGS, **config}))


def requests(n=N):
    return [Request(str(i), prompt, n) for i, prompt in enumerate(PROMPTS)]


def used_blocks(engine):
    """Blocks that are neither free nor cached for later."""
    cache = engine._batcher.cache
    (allocator,) = cache.cache_allocators.values()
    assert not allocator.block_table
    assert not allocator.ledger.shared_ref_counts
    free = cache.pool.num_free_sectors * allocator.blocks_per_sector + cache.pool.count_free_blocks(allocator.index)
    return cache.num_blocks - free - len(allocator.ledger.cached_blocks)


def replay(events, id):
    """How many tokens a request holds when it lets go of its blocks for good, each once and at its place."""
    held, length = {}, 0
    for event in (event for event in events if event.request == id):
        positions = range(event.position, event.position + event.length)
        if event.action in (Action.WRITE, Action.REUSE):
            assert not held.keys() & set(positions)
            held.update({p: (event.slot, event.start + i) for i, p in enumerate(positions)})
            length = max(length, len(held))
            assert held.keys() == set(range(len(held))) or event.action is Action.REUSE
        elif event.action is Action.FREE:
            assert [held.pop(p) for p in positions] == [(event.slot, i) for i in range(event.length)]
        else:
            assert [held[p] for p in positions] == [(event.slot, i) for i in range(event.length)]
    assert not held
    return length
