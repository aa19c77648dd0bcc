"""Prompts of canary words: BOS, prefix, secret, question, ASK, start word. For the canary and its vocabulary."""

import random
from collections.abc import Sequence

from kvfence.prompts import alphabet
from kvfence.prompts.groups import Layout, Tokens
from kvfence.prompts.passphrases import Deck
from kvfence.prompts.prompt import Prompt

SECRET_WORDS = 6  # of about 1,280 words: 62 bits
QUESTION_WORDS = 2
SYSTEM_WORDS = 12
LIMIT = 1_000  # words of a prefix without repetition; longer ones are for models that need not tell words apart
_WORDS = range(alphabet.FIRST_WORD, alphabet.WORDS)
_QUESTIONS = (tuple(_WORDS[:QUESTION_WORDS]), tuple(_WORDS[QUESTION_WORDS : 2 * QUESTION_WORDS]))
DECK = _WORDS[2 * QUESTION_WORDS :]  # all others, of which prefixes and passphrases are dealt


class WordLayout(Layout):
    """Words of the canary's first alphabet; the canary's answer recites the prompt from the start word on.

    `reach` is how many words an answer is long enough to recite: prompts up to that length are asked for from their
    first word, so every cached block is read; of longer ones the requests of a batch ask for different stretches.
    """

    name = "canary"
    overhead = 3 + SECRET_WORDS + QUESTION_WORDS

    def __init__(self, seed: int, reach: int) -> None:
        self._rng = random.Random(seed)
        self._deck = Deck(DECK, self._rng)
        self._reach = reach

    def prefix(self, role: str, n: int | None, beside: Tokens) -> Tokens:
        n = SYSTEM_WORDS if n is None else n
        if n > LIMIT:
            return tuple(word for _ in range(0, n, LIMIT) for word in self._deck.deal(LIMIT))[:n]
        # Two long prefixes need more words than there are: then they share their words but no two neighbours.
        scarce = n + len(beside) > len(DECK) // 2
        return self._deck.deal(n, avoid=set(DECK).difference(beside) if scarce and beside else beside)

    def another(self, prefix: Tokens) -> int:
        return self._deck.deal(1, avoid=prefix)[0]

    def secret(self, avoid: Sequence[int]) -> tuple[str, ...]:
        # Where the prefixes have almost every word, so have the passphrases.
        scarce = len(DECK) - len(set(avoid)) < LIMIT // 4
        return tuple(map(alphabet.spell, self._deck.deal(SECRET_WORDS, avoid=() if scarce else avoid)))

    def write(self, name: str, prefix: Tokens, secret: tuple[str, ...], question: int, share: float) -> Prompt:
        words = [*prefix, *map(alphabet.parse, secret), *_QUESTIONS[question]]
        # From the last stretch, which holds the secret, evenly back to the first word.
        start = int(max(0, len(words) - self._reach) * (1 - share))
        # The checks of `prompt_tokens` are for prompts that the canary answers.
        short = len(prefix) <= LIMIT
        ask = alphabet.WORDS + words[start]
        tokens = alphabet.prompt_tokens(words, start) if short else (alphabet.BOS, *words, alphabet.ASK, ask)
        return Prompt(
            name=name,
            group=name[0],
            tokens=tokens,
            prefix_tokens=1 + len(prefix),
            words=tuple(map(alphabet.spell, words)),
            secret=secret,
        )

    def sample(self, length: int) -> Tokens:
        prompt = alphabet.prompt_tokens(self._rng.sample(DECK, min(length // 2, len(DECK))))
        return (*prompt, *alphabet.answer(prompt, length))[:length]

    def stray(self, length: int) -> Tokens:
        some = self._rng.sample(range(alphabet.FIRST_WORD, alphabet.ALPHABETS * alphabet.WORDS), max(2, length // 4))
        words = self._rng.choices(some, k=length - 3)
        return (alphabet.BOS, *words, alphabet.ASK, self._rng.choice(some))

    def words(self, tokens: Sequence[int]) -> list[tuple[str, int]]:
        found = [(alphabet.word_of(token), step) for step, token in enumerate(tokens)]
        return [(alphabet.spell(word), step) for word, step in found if word is not None]

    def texts(self, tokens: Sequence[int]) -> list[str]:
        return [alphabet.spell(token) for token in tokens]

    def text(self, tokens: Sequence[int]) -> str:
        return " ".join(self.texts(tokens))
