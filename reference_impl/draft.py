"""The draft of speculative decoding: guesses by n-gram look-up in the sequence's own tokens.

Saxena, Prompt Lookup Decoding (2023). Verification (Leviathan et al., ICML 2023) is greedy: a guess is accepted where
it is what the model would have chosen, so that outputs are those without guessing.
"""

from kvfence.reference_impl.sequence import Sequence


class NGramDraft:
    """Guesses up to `length` tokens: those that followed the last earlier occurrence of the last `n` tokens."""

    def __init__(self, length: int, n: int = 2) -> None:
        self._length, self._n = length, n

    def __call__(self, sequence: Sequence) -> tuple[int, ...]:
        tokens, n = sequence.tokens, self._n
        last = tokens[-n:]
        for start in range(len(tokens) - n - 1, -1, -1):
            if tokens[start : start + n] == last:
                return tuple(tokens[start + n : start + n + self._length])
        return ()
