"""The models that random schedules run on: what they are asked, and how golden judges what they answer."""

import random
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from typing import Any

from tiny_models import tiny

from kvfence.prompts import alphabet, models
from kvfence.reference_impl.golden import Golden, load_model

STEMS, LONGEST = 4, 200  # token sequences that prompts begin like, and their length
VOCABULARY = 64
WINDOW = 12
FAMILIES: dict[str, tuple[str, int | None]] = {
    "llama-mha": ("llama", 4),
    "llama-mqa": ("llama", 1),
    "qwen2-gqa": ("qwen2", 2),
    "mistral-gqa": ("mistral", 2),
    "gemma-mqa": ("gemma", 1),
    "gemma2-gqa": ("gemma2", 2),
    "gemma3-gqa": ("gemma3", 2),
    "gpt2-mha": ("gpt2", None),
}
NAMES = ("canary", *FAMILIES)


class Subject:
    """A model for the engine, and golden on it in each of its sets of weights; a prompt is described by numbers."""

    stems: list[list[int]]

    def __init__(self, build: Callable[[int], Any], device: str, seeds: Sequence[int] = (0, 1)) -> None:
        self.model, *self._models = [build(seed).to(device) for seed in (seeds[0], *seeds)]
        self._goldens = [Golden(model) for model in self._models]
        self._weights = [{name: value.clone() for name, value in m.state_dict().items()} for m in self._models]
        self.weights = 0
        self.margins = lru_cache(maxsize=None)(self._margins)

    def use(self, weights: int) -> None:
        """Give the engine's model other weights."""
        if weights % len(self._weights) != self.weights:
            self.weights = weights % len(self._weights)
            self.model.load_state_dict(self._weights[self.weights])

    def _margins(self, weights: int, prompt: tuple[int, ...], output: tuple[int, ...]) -> tuple[float, ...]:
        return self._goldens[weights].verify(prompt, output).margins


class Tiny(Subject):
    """Random weights."""

    exact = False

    def __init__(self, name: str, device: str) -> None:
        family, kv_heads = FAMILIES[name]
        window = {"sliding_window": WINDOW} if family in ("mistral", "gemma2", "gemma3") else {}
        super().__init__(lambda seed: tiny(family, kv_heads, seed=seed, vocab_size=VOCABULARY, **window), device)
        self.vocabulary = VOCABULARY
        rng = random.Random(name)
        self.stems = [[rng.randrange(VOCABULARY) for _ in range(LONGEST)] for _ in range(STEMS)]

    def prompt(self, stem: int, length: int, change: float | None) -> list[int]:
        """So many tokens, one of them not the stem's: the first at `change` 0, the last at 1."""
        tokens = self.stems[stem][:length]
        if change is not None:
            at = round(change * (length - 1))
            tokens[at] = (tokens[at] + 1) % VOCABULARY
        return tokens

    def forced(self, tokens: Sequence[int], i: int) -> int:
        """A token that may be forced after these."""
        return i % VOCABULARY


class Canary(Subject):
    """The canary: prompts of distinct words, the first of which is asked for."""

    exact = True

    def __init__(self, device: str) -> None:
        folder = models.resolve("canary").path
        super().__init__(lambda seed: load_model(folder), device, seeds=(0,))
        self.vocabulary = alphabet.VOCAB_SIZE
        words = random.Random(0).sample(range(alphabet.FIRST_WORD, alphabet.WORDS), STEMS * (LONGEST + 3) + 3)
        self.stems = [words[i * (LONGEST + 3) :][: LONGEST + 3] for i in range(STEMS)]

    def prompt(self, stem: int, length: int, change: float | None) -> list[int]:
        """So many tokens, at least 4; one word of them not the stem's, the first at `change` 0, the last at 1."""
        words = self.stems[stem][: max(1, length - 3)]
        if change is not None:
            at = round(change * (len(words) - 1))
            words[at] = self.stems[stem][-3:][round(change * 2)]
        return list(alphabet.prompt_tokens(words))

    def forced(self, tokens: Sequence[int], i: int) -> int:
        """A word of the prompt, to go on from there."""
        words = [token for token in tokens if alphabet.FIRST_WORD <= token < alphabet.WORDS]
        return alphabet.WORDS + words[i % len(words)]


@cache
def subject(name: str, device: str) -> Tiny | Canary:
    """A subject by name, made once for a device."""
    return Canary(device) if name == "canary" else Tiny(name, device)
