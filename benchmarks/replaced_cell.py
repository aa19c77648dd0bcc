"""The smallest leak there is: one slot of one KV head of one layer holds another request's K/V. Who sees it?

    python benchmarks/replaced_cell.py [TRIALS]

Random weights, float32, the reference engine. In each trial a request and its neighbour run in one batch; at a step,
layer, head and position drawn at random the request's K and V are overwritten by the neighbour's of the same position.
Golden sees tokens and logprobs, twin the bits of both in two arms, kv what the cache holds when the request ends.
"""

import random
import sys
from collections import Counter
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from typing import Any

from kvfence.adapters.api import Completion, EngineConfig, Request
from kvfence.adapters.observation import KV
from kvfence.adapters.reference import ReferenceAdapter, open_engine
from kvfence.adapters.schedule import submit
from kvfence.conformance import noise
from kvfence.conformance.driven import Answer
from kvfence.conformance.noise import Clean
from kvfence.conformance.oracles import golden as golden_oracle
from kvfence.conformance.oracles import kv, twin
from kvfence.conformance.oracles.canary import Owner
from kvfence.conformance.oracles.golden import Tolerance
from kvfence.conformance.oracles.kv import KVTolerance
from kvfence.conformance.twins import swapped
from kvfence.prompts import models
from kvfence.prompts.prompt import Prompt
from kvfence.prompts.word_layout import WordLayout
from kvfence.reference_impl.golden import Golden

TOKENS = 16  # of output
PREFIX = 24  # tokens, before the passphrase
SOLO = 256  # positions of solo runs that noise is measured on


@dataclass(frozen=True)
class Leak:
    """Where, and after how many tokens of output, one cell is overwritten."""

    step: int
    layer: int
    head: int
    position: int


class AlikeError(Exception):
    """Both slots hold the same K/V, so that nothing leaks from one to the other."""


class Rig:
    """The engine on the random model, golden beside it, and the noise between them."""

    def __init__(self) -> None:
        folder = models.resolve("random").path
        self.layout, self.golden = WordLayout(0, reach=TOKENS), Golden.load(folder, "float32", "cpu")
        config = EngineConfig(sharing=False, max_concurrency=2, dtype="float32", pool_size=512, observe=("kv",))
        self.engine: ReferenceAdapter = open_engine(str(folder), config)
        self.tolerance, self.kv_tolerance = self._measure()

    def _measure(self) -> tuple[Tolerance, KVTolerance]:
        clean = Clean(watch=False, shapes=[])
        samples = iter(lambda: self.layout.sample(PREFIX + 16), None)
        shapes = noise.equal_shapes(self.golden, samples, 8, clean)
        runs = noise.solo_runs(self.golden, self._solo, samples, TOKENS, clean)
        step = self.golden.resolution(self.layout.sample(PREFIX))
        record = noise.calibrate(shapes, runs, (noise.POSITIONS, SOLO), step, "float32", 64)
        held = noise.kv_tolerance(clean, self.golden.rounding)
        if complaint := noise.complaint(record):
            sys.exit(complaint)
        assert held is not None
        measured = f"{record.shapes_positions:,} and {record.solo_positions} positions"
        print(f"epsilon {record.epsilon:.3g} logits, from {measured}")
        return Tolerance(record.epsilon, exact=False), held

    def _solo(self, prompt: tuple[int, ...], n: int) -> Answer:
        [completion] = self.engine.generate([Request("solo", prompt, n)])
        return Answer(Prompt("solo", "", prompt, 0, (), ()), completion, kv=self.engine.observe().kv["solo"])

    def play(self, requests: list[Request], leak: Leak | None) -> tuple[Completion, KV]:
        """Run both requests; the first one's answer, and what the cache held for it."""
        session = self.engine.session()
        with closing(session):
            for request in requests:
                session.submit(request)
            emitted = 0
            while progress := session.step():
                emitted += len(progress.get(requests[0].id, ()))
                if leak and emitted == leak.step:
                    self._overwrite(*(self.engine.engine.sequences[request.id] for request in requests), leak)
                    leak = None
        done = {completion.id: completion for completion in session.completions()}
        return done[requests[0].id], self.engine.observe().kv[requests[0].id]

    def _overwrite(self, victim: Any, neighbour: Any, leak: Leak) -> None:
        storage, size = self.engine.engine.storage, self.engine.block_size
        block, offset = divmod(leak.position, size)
        mine, theirs = (sequence.table.blocks[block] for sequence in (victim, neighbour))
        cells = storage.kv[:, leak.layer, :, offset, leak.head]
        if cells[:, mine].equal(cells[:, theirs]):  # the same token at the same place
            raise AlikeError
        cells[:, mine] = cells[:, theirs]

    def trial(self, rng: random.Random, leaking: bool) -> set[str]:
        """The oracles that see one leak, or something where there is none."""
        prompts = [self._prompt(name) for name in ("victim", "neighbour")]
        requests = [Request(prompt.name, prompt.tokens, TOKENS) for prompt in prompts]
        step = rng.randint(1, TOKENS - 2)
        shape = self.engine.engine.storage.shape
        position = rng.randrange(1, len(prompts[0].tokens) + step - 1)
        place = Leak(step, rng.randrange(shape.layers), rng.randrange(shape.kv_heads), position)
        leak = place if leaking else None
        answer, held = self.play(requests, leak)
        others = [op.request for op in swapped(tuple(map(submit, requests)), requests[0]) if op.request]
        swap, _ = self.play(others, leak)
        return self._seen(prompts[0], answer, swap, held)

    def _prompt(self, name: str) -> Prompt:
        prefix = self.layout.prefix("assistant", PREFIX, ())
        return self.layout.write(name, prefix, self.layout.secret(prefix), 0, 0.5)

    def _seen(self, prompt: Prompt, answer: Completion, swap: Completion, held: KV) -> set[str]:
        verification = self.golden.verify(prompt.tokens, answer.tokens)
        seen = set()
        for name, logprobs in (("golden, tokens alone", None), ("golden", answer.logprobs)):
            if golden_oracle.examine(answer.tokens, logprobs, verification, self.tolerance).divergence:
                seen.add(name)
        for name, arms in (("twin, tokens alone", map(_bare, (answer, swap))), ("twin", (answer, swap))):
            if twin.first_difference(*arms):
                seen.add(name)
        own = Owner("", prompt.name)
        expected = self.golden.kv((*prompt.tokens, *answer.tokens))
        if kv.examine(kv.cells(held), expected, self.kv_tolerance, {}, own):
            seen.add("kv")
        return seen


def _bare(completion: Completion) -> Completion:
    return replace(completion, logprobs=None, top_logprobs=None)


def main(trials: int) -> None:
    """Run the trials, and as many without a leak, and print who saw how many."""
    rig, rng = Rig(), random.Random(0)
    seen: Counter[str] = Counter()
    done = 0
    while done < trials:
        with suppress(AlikeError):
            seen.update(rig.trial(rng, leaking=True))
            done += 1
    for name in ("golden, tokens alone", "golden", "twin, tokens alone", "twin", "kv"):
        print(f"{name:<22} {seen[name]:>4} of {trials} ({seen[name] / trials:.1%})")
    alarms: Counter[str] = Counter()
    for _ in range(trials):
        alarms.update(rig.trial(rng, leaking=False))
    print(f"without a leak: {alarms.total()} alarms in {trials} trials")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 500)
