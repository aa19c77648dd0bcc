"""What the tests of `vllm` share: engines that are opened once, prompts with a common prefix, block accounts."""

import pytest
import torch
from continuous import replay

from kvfence.adapters.api import EngineConfig, Request
from kvfence.adapters.observation import Action
from kvfence.adapters.vllm import open_engine
from kvfence.conformance.oracles.blocks import Ledger
from kvfence.prompts import alphabet

BLOCK = 32
SHARED = tuple(range(100, 170))  # with BOS two blocks, and a few more
PROMPTS = [alphabet.prompt_tokens((*SHARED, *range(200 + 20 * i, 203 + 20 * i + i)), start=i) for i in range(3)] + [
    alphabet.prompt_tokens(range(400, 404))
]
N = 12
OBSERVE = ("attention", "events", "kv")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SETTINGS = {"max_concurrency": 4, "pool_size": 2048, "block_size": BLOCK, "sharing": True, "device": DEVICE}


def requests(n=N, salt=None):
    return [Request(str(i), prompt, n, salt) for i, prompt in enumerate(PROMPTS)]


ENGINES = {}  # for good: a process in which one engine has gone does not open another


@pytest.fixture
def opened():
    """Opens each configuration once, and gives it with an empty cache."""

    def get(folder, **config):
        key = f"{folder.path} {sorted(config.items())}"
        if key not in ENGINES:
            ENGINES[key] = open_engine(str(folder.path.resolve()), EngineConfig(**{**SETTINGS, **config}))
        engine = ENGINES[key]
        engine.reset_cache()
        engine.observe()
        return engine

    return get


@pytest.fixture
def engine(opened, canary_folder):
    return opened(canary_folder, observe=OBSERVE)


@pytest.fixture
def small(opened, canary_folder):
    """A pool of six blocks, prompts in chunks."""
    return opened(canary_folder, observe=OBSERVE, pool_size=6 * BLOCK, chunk_size=48)


def used_blocks(engine):
    """Blocks that somebody has: as the tables say, and as they are counted."""
    (manager,) = engine.core.managers
    tables = [block.block_id for blocks in manager.req_to_blocks.values() for block in blocks]
    pool = engine.core.pool
    counts = {block.block_id: block.ref_cnt for block in pool.blocks if block.ref_cnt and not block.is_null}
    assert counts == {block: tables.count(block) for block in tables}
    assert pool.get_num_free_blocks() == pool.num_gpu_blocks - 1 - len(counts)
    return len(counts)


def stored(seen, id):
    """Tokens that a request has in blocks at its end. Blocks are published when they are handed out, so before."""
    return replay([e for e in seen.events if e.action not in (Action.ALLOCATE, Action.PUBLISH)], id)


def conforms(engine, sent, completions, ledger=None):
    """Observe, and hold the log against the rules of ownership."""
    seen = engine.observe()
    salts = {request.id: request.salt for request in sent}
    prompts = {request.id: request.prompt for request in sent}
    tokens = {c.id: [(t, salts[c.id]) for t in (*prompts[c.id], *c.tokens)] for c in completions}
    assert (ledger or Ledger()).replay(seen.events, tokens) == []
    return seen


def finish(session):
    while session.step():
        pass
    session.close()
    return {completion.id: completion for completion in session.completions()}


def assert_answers(done, n=N):
    for id, completion in done.items():
        assert completion.tokens == alphabet.answer(PROMPTS[int(id)], n), id
