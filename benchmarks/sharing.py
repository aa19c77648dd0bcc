"""What prefix sharing saves: 16 requests on a prefix of 512 tokens, all private against shared, in `hf-continuous`.

Memory is counted in blocks held at once; the time to first token is from submission, all requests at once, the prefix
being in the cache already where it is shared. Pairs in turn in one process; ratios are what counts.
"""

import statistics
import sys
import time

from kvfence.adapters.api import EngineConfig, Request
from kvfence.adapters.hf_continuous import open_engine
from kvfence.adapters.observation import Action
from kvfence.prompts import alphabet, models

REQUESTS, PREFIX, PRIVATE, NEW = 16, 512, 32, 32
BLOCK = 16
PAIRS = 3
POOL = 2 * REQUESTS * (PREFIX + PRIVATE + NEW)  # tokens


def prompts(seed: int) -> list[tuple[int, ...]]:
    words = range(alphabet.FIRST_WORD, alphabet.WORDS)
    prefix = tuple(words[(seed + i) % len(words)] for i in range(PREFIX))
    return [(*prefix, *(words[(700 + 37 * i + j) % len(words)] for j in range(PRIVATE))) for i in range(REQUESTS)]


def measure(model: str, sharing: bool, seed: int) -> tuple[int, float]:
    """Blocks held at once, and the median time to first token in seconds."""
    config = EngineConfig(
        sharing=sharing, max_concurrency=REQUESTS, block_size=BLOCK, pool_size=POOL, observe=("events",)
    )
    engine = open_engine(model, config)
    sent = prompts(seed)
    engine.generate([Request("first", sent[0][: PREFIX + 1], 2)])
    engine.observe()
    session = engine.session()
    begun = time.perf_counter()
    for i, prompt in enumerate(sent):
        session.submit(Request(str(i), prompt, NEW))
    first: dict[str, float] = {}
    while emitted := session.step():
        for id, tokens in emitted.items():
            if tokens:
                first.setdefault(id, time.perf_counter() - begun)
    held: dict[int, set[str]] = {}
    peak = 0
    for event in engine.observe().events:
        holders = held.setdefault(event.slot, set())
        if event.action in (Action.WRITE, Action.REUSE):
            holders.add(event.request)
        elif event.action is Action.FREE:
            holders.discard(event.request)
        peak = max(peak, sum(bool(each) for each in held.values()))
    session.close()
    return peak, statistics.median(first.values())


def main() -> None:
    """Measure and print; the model is named by the first argument."""
    model = str(models.resolve(sys.argv[1] if len(sys.argv) > 1 else "random").path)
    measure(model, False, 0)
    blocks, times = [], []
    for pair in range(1, PAIRS + 1):
        private, shared = (measure(model, sharing, 100 * pair) for sharing in (False, True))
        blocks.append(shared[0] / private[0])
        times.append(shared[1] / private[1])
        print(f"pair {pair}: blocks {private[0]} private, {shared[0]} shared", end="; ")
        print(f"first token after {private[1]:.2f} s private, {shared[1]:.2f} s shared")
    memory, wait = (1 - statistics.median(each) for each in (blocks, times))
    print(f"saved: {memory:.0%} of the blocks, {wait:.0%} of the time to first token")


if __name__ == "__main__":
    main()
