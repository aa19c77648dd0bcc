"""How much of what the reference engine gives to requests holds nothing, under a steady load, on the canary.

    python benchmarks/reference_waste.py [--quick]

Requests of mixed lengths, a new one whenever one ends. Waste is unused slots over slots of blocks in tables, mean over
steps; beside it what reserving each request's longest possible length would waste.
"""

import random
import statistics
import sys
from dataclasses import dataclass, replace

from reference_requests import canary_prompts

from kvfence.prompts import alphabet, models
from kvfence.reference_impl.engine import ReferenceEngine
from kvfence.reference_impl.golden import load_model
from kvfence.reference_impl.occupancy import occupancy
from kvfence.reference_impl.settings import Settings


@dataclass(frozen=True)
class Load:
    """Requests in the batch at any time, and what each is like: tokens, drawn evenly from a range."""

    concurrency: int = 16
    prompt: tuple[int, int] = (100, 300)
    new: tuple[int, int] = (50, 250)
    steps: int = 800
    warm_up: int = 200  # steps, after which arrivals have spread


@dataclass(frozen=True)
class Waste:
    """Means over steps."""

    length: float  # tokens of a request with K/V
    blocks: float  # share of slots that hold nothing
    reserved: float  # share of slots that would hold nothing if each request had the longest length's


def measure(load: Load, block_size: int = 16) -> Waste:
    """Keep an engine busy and look at its ledger after every step; outputs must be right."""
    rng = random.Random(0)
    longest = load.prompt[1] + load.new[1]
    blocks = 2 * load.concurrency * longest // block_size
    settings = Settings(blocks, block_size, load.concurrency)
    engine = ReferenceEngine(load_model(models.resolve("canary").path), settings)
    wasted, lengths, submitted = [], [], 0
    for step in range(load.warm_up + load.steps):
        while len(engine.sequences) < load.concurrency:
            (prompt,) = canary_prompts(1, 1, rng.randint(*load.prompt) - 1, rng)
            engine.submit(str(submitted), prompt, rng.randint(*load.new))
            submitted += 1
        engine.step()
        for ended in engine.finished():
            assert tuple(ended.output) == alphabet.answer(ended.tokens[: ended.prompt], len(ended.output))
        ledger = occupancy(engine)
        if step >= load.warm_up and engine.sequences:
            wasted.append(ledger.empty / (ledger.used * block_size))
            lengths.append(ledger.tokens / len(engine.sequences))
    length = statistics.mean(lengths)
    return Waste(length, statistics.mean(wasted), 1 - length / longest)


def main(argv: list[str]) -> None:
    """Measure and print."""
    load = Load()
    if "--quick" in argv:
        load = replace(load, prompt=(200, 300), new=(10, 30), steps=40, warm_up=20)
    for block_size in (16,) if "--quick" in argv else (8, 16, 32):
        waste = measure(load, block_size)
        print(
            f"{load.concurrency} requests at a time, mean length {waste.length:.0f}, blocks of {block_size}", end=": "
        )
        print(f"{waste.blocks:.2%} of slots empty; reserving the longest length {waste.reserved:.0%}")


if __name__ == "__main__":
    main(sys.argv)
