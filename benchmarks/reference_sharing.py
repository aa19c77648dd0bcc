"""What prefix sharing saves in the reference engine: 16 requests of 512 shared and s own tokens, on the canary.

    python benchmarks/reference_sharing.py [--quick]

All private against shared, in turn in one process. Of s own tokens one is generated, so that all that is counted is
K/V: blocks held at once, and tokens computed. Both are held against the closed form 15·512 / (16·(512 + s)). Prefill
is not chunked, requests come at once, and the first of them computes the prefix: its time is in all others' waiting.
"""

import random
import statistics
import sys
import time
from dataclasses import dataclass
from typing import Any

from reference_requests import answers, canary_prompts, run

from kvfence.prompts import models
from kvfence.reference_impl.engine import ReferenceEngine
from kvfence.reference_impl.golden import load_model
from kvfence.reference_impl.pool import BlockPool
from kvfence.reference_impl.settings import Parts, Settings

REQUESTS, SHARED, BLOCK = 16, 512, 16
OWN = (32, 128, 512)
PAIRS = 3


class Gauge(BlockPool):
    """A pool that remembers how many blocks were in use at most."""

    peak = 0

    def allocate(self) -> int:
        block = super().allocate()
        self.peak = max(self.peak, self.used)
        return block


@dataclass(frozen=True)
class Measured:
    """One run."""

    blocks: int  # in use at most
    computed: int  # tokens
    first: float  # seconds from submission to a request's first token, median


def measure(model: Any, sharing: bool, own: int, seed: int) -> Measured:
    """Run all requests with or without sharing; outputs must be right."""
    prompts = canary_prompts(REQUESTS, SHARED, own - 1, random.Random(seed))
    # While the first one computes the prefix, others wait a step; one token less and one step more, it ends with them.
    shorter = canary_prompts(REQUESTS, SHARED, own - 2, random.Random(seed))[0]
    requests = [(shorter, 3), *((prompt, 2) for prompt in prompts[1:])]
    tokens = REQUESTS * (SHARED + own)
    settings = Settings(2 * tokens // BLOCK, BLOCK, REQUESTS, tokens, sharing)
    engine = ReferenceEngine(model, settings, Parts(pool=Gauge))
    first: dict[str, float] = {}
    begun = time.perf_counter()

    def note(emitted: dict[str, tuple[int, ...]]) -> None:
        for id in emitted:
            first.setdefault(id, time.perf_counter() - begun)

    assert run(engine, requests, note) == answers(requests)
    return Measured(engine.pool.peak, engine.metrics.computed, statistics.median(first.values()))


def main(argv: list[str]) -> None:
    """Measure and print."""
    quick = "--quick" in argv
    model = load_model(models.resolve("canary").path)
    measure(model, True, OWN[0], 0)
    for own in OWN[: 1 if quick else None]:
        pairs = []
        for pair in range(1 if quick else PAIRS):
            pairs.append([measure(model, sharing, own, pair) for sharing in (False, True)])
        private, shared = pairs[0]
        closed = (REQUESTS - 1) * SHARED / (REQUESTS * (SHARED + own))
        blocks, computed = 1 - shared.blocks / private.blocks, 1 - shared.computed / private.computed
        print(f"{REQUESTS} × ({SHARED} shared + {own} own) tokens, blocks of {BLOCK}; closed form {closed:.2%}")
        print(f"  blocks   {private.blocks} -> {shared.blocks}: {blocks:.2%}, {blocks / closed:.1%} of it")
        print(f"  computed {private.computed} -> {shared.computed}: {computed:.2%}, {computed / closed:.1%} of it")
        before, after = (statistics.median(each[i].first for each in pairs) for i in (0, 1))
        ratio = statistics.median(with_.first / without.first for without, with_ in pairs)
        print(f"  first token after {before:.2f} s -> {after:.2f} s: {1 - ratio:.0%} less, median of {len(pairs)}")


if __name__ == "__main__":
    main(sys.argv)
