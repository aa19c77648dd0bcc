"""What the bookkeeping of the reference engine costs: pool, prefix tree, trace, owner tags, auditor.

    python benchmarks/reference_pool.py [--quick]

Times are medians of rounds in turn. Of pool and tree it matters how they grow: not with the pool, linearly with the
tokens matched, not with how many other prefixes there are. Of the rest, the ratio to a step without it.
"""

import random
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any, cast

from reference_requests import canary_prompts

from kvfence.prompts import models
from kvfence.reference_impl.cache import KVCache
from kvfence.reference_impl.clock import Clock
from kvfence.reference_impl.engine import ReferenceEngine
from kvfence.reference_impl.golden import load_model
from kvfence.reference_impl.key import Namespace
from kvfence.reference_impl.pool import BlockPool
from kvfence.reference_impl.radix import PrefixTree
from kvfence.reference_impl.sequence import BlockTable, Sequence
from kvfence.reference_impl.settings import Settings
from kvfence.reference_impl.storage import Storage

BLOCK = 16
HERE = Namespace()
POOLS, OTHERS, MATCHED = (1_000, 1_000_000), (10, 1_000, 100_000), (256, 1_024, 4_096)
VARIANTS = {"plain": {}, "trace": {"trace": True}, "tags": {"tags": True}, "audit": {"tags": True, "audit": True}}


def timed(call: Callable[[], Any]) -> float:
    """Seconds that a call takes."""
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun


def half_used(size: int) -> BlockPool:
    """A pool of so many blocks, half of them used and the others free in no order, as after long use."""
    pool, rng = BlockPool(size), random.Random(0)
    used = [pool.allocate() for _ in range(size - 1)]
    rng.shuffle(used)
    for block in used[size // 2 :]:
        pool.release(block)
    return pool


def operations(pool: BlockPool, count: int) -> dict[str, float]:
    """Seconds a block of each operation of a pool, and of a request's whole way through the cache."""
    blocks: list[int] = []
    table: list[int] = []

    def each(operation: Callable[[int], None]) -> Callable[[], None]:
        def call() -> None:
            for block in blocks:
                operation(block)

        return call

    seconds = {
        "allocate": timed(lambda: blocks.extend([pool.allocate() for _ in range(count)])),
        "share": timed(each(pool.share)),
        "release": timed(each(pool.release)),
        "free": timed(each(pool.release)),
    }
    # Nothing is read or written here, so the storage is not missed.
    cache = KVCache(pool, PrefixTree(BLOCK), cast(Storage, None), Clock())
    sequence = Sequence("0", [], 0, 0, HERE, BlockTable(BLOCK, table))
    seconds["reserve"] = timed(lambda: cache.reserve(sequence, count * BLOCK))
    seconds["let go"] = timed(lambda: cache.release(sequence, keep=False))
    return {name: each / count for name, each in seconds.items()}


def planted(others: int, length: int) -> tuple[PrefixTree, list[int]]:
    """A tree with a prefix of `length` tokens, and others that leave it at any of its blocks."""
    tree, rng = PrefixTree(BLOCK), random.Random(0)
    tokens = [rng.randrange(50_000) for _ in range(length)]
    tree.insert(HERE, tokens, range(1, length // BLOCK + 1))
    for i in range(others):
        common = rng.randrange(length // BLOCK) * BLOCK
        other = [*tokens[:common], *(rng.randrange(50_000) for _ in range(BLOCK))]
        tree.insert(HERE, other, [*range(1, common // BLOCK + 1), length + i])
    return tree, tokens


def match(tree: PrefixTree, tokens: list[int]) -> float:
    """Seconds to find a prefix, all of which is there."""
    found: list[tuple[list[int], int]] = []
    seconds = timed(lambda: found.append(tree.match(HERE, tokens)))
    assert found[0][1] == len(tokens)
    return seconds


def step_times(model: Any, steps: int, rounds: int) -> dict[str, float]:
    """Seconds of a decoding step of 16 requests, by what is kept beside; variants in turn."""
    times: dict[str, list[float]] = {name: [] for name in VARIANTS}
    prompts = canary_prompts(16, 96, 66, random.Random(0))
    for _ in range(rounds):
        for name, kept in VARIANTS.items():
            engine = ReferenceEngine(model, Settings(block_size=BLOCK, token_budget=4096, **cast(Any, kept)))
            for i, prompt in enumerate(prompts):
                engine.submit(str(i), prompt, steps + 10)
            for _ in range(3):
                engine.step()
            times[name] += [timed(engine.step) for _ in range(steps)]
            engine.settle()
    return {name: statistics.median(each) for name, each in times.items()}


def main(argv: list[str]) -> None:
    """Measure and print."""
    quick = "--quick" in argv
    rounds = 3 if quick else 31
    pools = {size: half_used(size) for size in ((1_000, 10_000) if quick else POOLS)}
    seen = [{size: operations(pool, 400) for size, pool in pools.items()} for _ in range(rounds)]
    for name in seen[0][1_000]:
        medians = [statistics.median(each[size][name] for each in seen) * 1e6 for size in pools]
        figures = ", ".join(f"{us:.2f} µs in {size:,}" for us, size in zip(medians, pools, strict=True))
        print(f"{name:<9} a block: {figures} blocks; ratio {medians[-1] / medians[0]:.2f}")

    tree, tokens = planted(1_000, MATCHED[-1])
    for n in MATCHED:
        us = statistics.median(match(tree, tokens[:n]) for _ in range(rounds)) * 1e6
        print(f"match {n:>5,} tokens among 1,000 prefixes: {us:,.0f} µs, {us / n * 1e3:.0f} ns a token")
    trees = {others: planted(others, 512)[0] for others in OTHERS[: 2 if quick else None]}
    tokens = planted(0, 512)[1]
    for others, tree in trees.items():
        us = statistics.median(match(tree, tokens) for _ in range(rounds)) * 1e6
        print(f"match   512 tokens among {others:,} prefixes: {us:,.0f} µs")

    model = load_model(models.resolve("canary").path)
    times = step_times(model, 5 if quick else 60, 1 if quick else 5)
    for name, seconds in times.items():
        print(f"step of 16 requests, {name}: {seconds * 1e3:.1f} ms; ratio {seconds / times['plain']:.2f}")


if __name__ == "__main__":
    main(sys.argv)
