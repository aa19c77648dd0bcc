"""The canary's words, how they are spelled, and the closed form of its answer.

A word is four base-6 digits, spelled with four letters, one a digit, so a reader sees which digit was damaged. Every
word is one token in each of three alphabets that differ by case: bake, Bake and BAKE. The ids of an alphabet follow
each other, so `token // WORDS` is the alphabet and `token % WORDS` the word.
"""

from collections.abc import Sequence
from itertools import pairwise

PAD, BOS, EOS, ASK, UNK = range(5)
SPECIALS = ("<pad>", "<bos>", "<eos>", "<ask>", "<unk>", "<unused5>", "<unused6>", "<unused7>")

BASE = 6
DIGITS = 4
WORDS = BASE**DIGITS  # ids of one alphabet
FIRST_WORD = len(SPECIALS)  # the words below share their ids with the special tokens and are never dealt
ALPHABETS = 3
VOCAB_SIZE = -(-ALPHABETS * WORDS // 64) * 64  # engines pad a vocabulary to a multiple of 64; so do we, and know it

_LETTERS = ("bhlmrt", "aeiouy", "dlknsv", "aeiouy")
_CASES = (str.lower, str.capitalize, str.upper)


def digits(word: int) -> tuple[int, ...]:
    """The base-6 digits of a word id in 0..1295, most significant first; ValueError for any other number."""
    if not 0 <= word < WORDS:
        raise ValueError(f"a word is a number from 0 to {WORDS - 1}, not {word}")
    return tuple(word // BASE**power % BASE for power in reversed(range(DIGITS)))


def alphabet_of(token: int) -> int | None:
    """0, 1 or 2; None for an id past the last alphabet."""
    return token // WORDS if 0 <= token < ALPHABETS * WORDS else None


def word_of(token: int) -> int | None:
    """The word a token stands for, as its id in alphabet 0; None for a special token, in any case, or an unused id."""
    word = token % WORDS
    return word if alphabet_of(token) is not None and word >= FIRST_WORD else None


def _spelling(token: int) -> str:
    alphabet, word = divmod(token, WORDS)
    if alphabet == ALPHABETS:
        return f"<unused{token}>"
    if word < FIRST_WORD:
        # <Ask> and <ASK> stand in answers where a round ends: the prompt's ASK, copied like any word.
        letters = SPECIALS[word][1:-1]
        return f"<{_CASES[alphabet](letters)}>"
    return _CASES[alphabet]("".join(_LETTERS[place][digit] for place, digit in enumerate(digits(word))))


SPELLINGS = tuple(map(_spelling, range(VOCAB_SIZE)))
_TOKENS = {spelling: token for token, spelling in enumerate(SPELLINGS)}


def spell(token: int) -> str:
    """How a token is written: a word in its alphabet's case, or a name in angle brackets.

    ValueError for an id outside the vocabulary.
    """
    if not 0 <= token < VOCAB_SIZE:
        raise ValueError(f"no token {token}: the vocabulary has {VOCAB_SIZE}")
    return SPELLINGS[token]


def parse(spelling: str) -> int:
    """The token written so, the inverse of `spell`. ValueError if there is none."""
    if spelling not in _TOKENS:
        raise ValueError(f"no token is spelled {spelling!r}")
    return _TOKENS[spelling]


def prompt_tokens(words: Sequence[int], start: int = 0) -> tuple[int, ...]:
    """The prompt BOS, words, ASK, start word: distinct words of alphabet 0, then `words[start]` in alphabet 1.

    ValueError if there are no words, one comes twice or is not in 8..1295, or there is no `words[start]`.
    """
    seen: set[int] = set()
    for word in words:
        if not FIRST_WORD <= word < WORDS:
            raise ValueError(f"a prompt holds words from {FIRST_WORD} to {WORDS - 1}, not {word}")
        if word in seen:
            raise ValueError(f"the word {spell(word)} comes twice; what follows it would be ambiguous")
        seen.add(word)
    if not 0 <= start < len(words):
        raise ValueError(f"cannot start from word {start} of {len(words)}")
    return (BOS, *words, ASK, WORDS + words[start])


def answer(prompt: Sequence[int], n: int) -> tuple[int, ...]:
    """The first `n` tokens the canary answers a prompt with, by the rule its weights are constructed to follow.

    To continue a token of alphabet 1 or 2, find its word in the alphabet before, take the token that follows it
    there, and write that one alphabet further on: 0 becomes 1, 1 becomes 2, and 2 becomes 1 again. So the first round
    reads the prompt in alphabet 1, the second reads the first in alphabet 2, and so on, in turn.

    ValueError if the prompt does not end with a start word in alphabet 1 or 2 that it also holds one alphabet before.
    """
    if not prompt or alphabet_of(prompt[-1]) not in (1, 2):
        raise ValueError("a prompt ends with its start word, capitalised")
    following: dict[int, int] = {}
    for token, after in pairwise(prompt):
        following.setdefault(token, after)
    token = prompt[-1]
    tokens: list[int] = []
    for _ in range(n):
        found = token - WORDS
        if found not in following:
            raise ValueError(f"nothing follows {spell(found)} in the prompt, which is asked to go on from there")
        after = following[found]
        after += WORDS if after < 2 * WORDS else -WORDS
        # The answer is read in its turn, but never before what came earlier.
        following.setdefault(token, after)
        tokens.append(after)
        token = after
    return tuple(tokens)


def unambiguous(prompt: Sequence[int], n: int) -> int:
    """How many of the first `n` tokens of the answer go on from a token that stands once in what comes before.

    Where it stands twice the canary's attention is divided, and rounding decides.
    """
    followed: dict[int, list[int]] = {}
    for token, after in pairwise(prompt):
        followed.setdefault(token, []).append(after)
    token = prompt[-1] if prompt else PAD
    for step in range(n):
        found = followed.get(token - WORDS, [])
        if len(found) != 1:
            return step
        after = found[0] + (WORDS if found[0] < 2 * WORDS else -WORDS)
        followed.setdefault(token, []).append(after)
        token = after
    return n
