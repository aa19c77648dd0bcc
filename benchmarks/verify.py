"""One-pass verification against the no-cache generator: time and verdicts, on the canary.

    python benchmarks/verify.py

Prints the median ratio of times at 1,000 prompt tokens and 32 new ones, measured in turn in one run, and how many
verdicts agree on right and on damaged outputs.
"""

import random
import statistics
import time

from kvfence.prompts import alphabet, models
from kvfence.reference_impl.golden import Golden

PROMPT_WORDS = 997  # with BOS, ASK and the start word: 1,000 tokens
NEW = 32
ROUNDS = 7
DAMAGES = 5


def main() -> None:
    """Measure and print."""
    golden = Golden.load(models.resolve("canary").path)
    rng = random.Random(0)
    ratios, agreed, judged = [], 0, 0
    for _ in range(ROUNDS):
        words = rng.sample(range(alphabet.FIRST_WORD, alphabet.WORDS), PROMPT_WORDS)
        prompt = alphabet.prompt_tokens(words, rng.randrange(PROMPT_WORDS))
        begun = time.perf_counter()
        right = golden.generate(prompt, NEW)
        between = time.perf_counter()
        golden.verify(prompt, right)
        ratios.append((between - begun) / (time.perf_counter() - between))
        for output in (right, *(damaged(right, rng) for _ in range(DAMAGES))):
            agreed += (max(golden.verify(prompt, output).margins) == 0) == (output == right)
            judged += 1
    print(f"prompt {len(prompt)} tokens, {NEW} new, {ROUNDS} rounds in turn")
    print(f"generator / verifier: median {statistics.median(ratios):.1f}, {min(ratios):.1f} to {max(ratios):.1f}")
    print(f"same verdict: {agreed} of {judged}")


def damaged(output: tuple[int, ...], rng: random.Random) -> tuple[int, ...]:
    """The output with one token replaced by another word of its alphabet."""
    step = rng.randrange(len(output))
    first = output[step] // alphabet.WORDS * alphabet.WORDS
    others = [t for t in range(first + alphabet.FIRST_WORD, first + alphabet.WORDS) if t != output[step]]
    return (*output[:step], rng.choice(others), *output[step + 1 :])


if __name__ == "__main__":
    main()
