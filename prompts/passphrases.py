"""Passphrases: private words, at least 48 bits a request, recognisable wherever they turn up.

Text passphrases are proquints, pronounceable five-letter words of 16 bits each (Wilkerson, arXiv:0901.4016).
"""

import random
from collections.abc import Collection, Sequence
from itertools import pairwise

PROQUINT_BITS = 16
TEXT_WORDS = 4  # 64 bits
ATTEMPTS = 50
_CONSONANTS = "bdfghjklmnprstvz"
_VOWELS = "aiou"


def proquint(value: int) -> str:
    """The proquint of a 16-bit value: consonant, vowel, consonant, vowel, consonant. ValueError outside 0..65535."""
    if not 0 <= value < 1 << PROQUINT_BITS:
        raise ValueError(f"a proquint holds 16 bits, not {value}")
    letters = ""
    for shift, alphabet in ((12, _CONSONANTS), (10, _VOWELS), (6, _CONSONANTS), (4, _VOWELS), (0, _CONSONANTS)):
        letters += alphabet[(value >> shift) & (len(alphabet) - 1)]
    return letters


def proquints(rng: random.Random, words: int = TEXT_WORDS) -> tuple[str, ...]:
    """A passphrase of `words` distinct proquints."""
    return tuple(proquint(value) for value in rng.sample(range(1 << PROQUINT_BITS), words))


class Deck:
    """Deals words so that no ordered pair is dealt twice in a run, and no word until all have been dealt once.

    A pair of neighbouring words therefore names the hand that it was dealt in.
    """

    def __init__(self, words: Sequence[int], rng: random.Random) -> None:
        self._words, self._rng = list(words), rng
        self._pile: list[int] = []
        self._pairs: set[tuple[int, int]] = set()

    def deal(self, n: int, avoid: Collection[int] = ()) -> tuple[int, ...]:
        """`n` distinct words, none of them in `avoid`. Raises ValueError if there are not that many."""
        avoid = set(avoid)
        free = sum(word not in avoid for word in self._words)
        if n > free:
            raise ValueError(f"cannot deal {n} words: only {free} are left to choose from")
        hand = self._draw(n, avoid)
        for _ in range(ATTEMPTS):
            self._rng.shuffle(hand)
            if self._unpair(hand):
                self._pairs.update(pairwise(hand))
                return tuple(hand)
        raise ValueError(f"no order of {n} words is left without a used pair of neighbours")

    def _unpair(self, hand: list[int]) -> bool:
        """Reorder a hand in place, left to right, until no pair of neighbours is used; False at a dead end."""
        for i in range(1, len(hand)):
            fits = (j for j in range(i, len(hand)) if (hand[i - 1], hand[j]) not in self._pairs)
            j = next(fits, None)
            if j is None:
                return False
            hand[i], hand[j] = hand[j], hand[i]
        return True

    def _draw(self, n: int, avoid: set[int]) -> list[int]:
        hand = [word for word in reversed(self._pile) if word not in avoid][:n]
        taken = avoid.union(hand)
        if len(hand) < n:
            # All have been dealt: shuffle those anew that this hand does not hold yet.
            rest = [word for word in self._words if word not in taken]
            self._rng.shuffle(rest)
            hand += rest[: n - len(hand)]
            self._pile = [word for word in self._pile if word in avoid] + rest
        used = set(hand)
        self._pile = [word for word in self._pile if word not in used]
        return hand
