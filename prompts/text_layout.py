"""Prompts of text, in the Chinese of the experiment kvfence grew out of and in its English twin."""

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from typing import Protocol

from kvfence.prompts.groups import Layout, Tokens
from kvfence.prompts.passphrases import proquints
from kvfence.prompts.prompt import Prompt


@dataclass(frozen=True)
class Language:
    """The sentences of one language; `filler` lengthens a system prompt, a numbered rule at a time."""

    system: dict[str, str]
    filler: str
    secret: str
    questions: tuple[str, str]


LANGUAGES = {
    "zh": Language(
        system={"assistant": "系统提示：你是一个助手。", "translator": "系统提示：你是一个翻译。"},
        filler="规则{n}：遇到第{n}类问题，只说事实，不说别的。",
        secret="我的口令是 {secret} 。请先重复我的口令，再回答问题。",
        questions=("1+1等于几？我的口令是", "2+2等于几？我的口令是"),
    ),
    "en": Language(
        system={
            "assistant": "System prompt: you are an assistant.",
            "translator": "System prompt: you are a translator.",
        },
        filler=" Rule {n}: questions of kind {n} are answered with facts and with nothing else.",
        secret=" My passphrase is {secret} . First repeat my passphrase, then answer.",
        questions=(" What is 1+1? My passphrase is", " What is 2+2? My passphrase is"),
    ),
}
USUAL = 256  # passphrases that tell which length in tokens is the most usual
SAMPLE_TOKENS = 20_000  # of text that samples are cut from
_PROQUINT = re.compile(r"(?<![a-z])[a-z]{5}(?![a-z])")


class Tokenizer(Protocol):
    """What is needed of a tokenizer."""

    def encode(self, text: str) -> list[int]:
        """Token ids of a text, without special tokens."""

    def decode(self, ids: Sequence[int]) -> str:
        """Text of token ids, special tokens included."""


class TextLayout(Layout):
    """Text prompts as token ids. Each part is tokenized by itself, so a prefix has its length to the token."""

    def __init__(self, language: str, tokenizer: Tokenizer, bos: int | None, seed: int) -> None:
        self.name = language
        self._language, self._tokenizer = LANGUAGES[language], tokenizer
        self._bos: Tokens = () if bos is None else (bos,)
        self._rng = random.Random(f"{seed} {language}")
        usual = random.Random(0)
        lengths = [len(self._private(proquints(usual))) for _ in range(USUAL)]
        # Passphrases of one length in tokens, so that prompts of one prefix length are of one length.
        self._secret_tokens = max(set(lengths), key=lengths.count)
        self.overhead = len(self.write("A0", (), self.secret(()), 0, 0.0).tokens)

    def prefix(self, role: str, n: int | None, beside: Tokens) -> Tokens:
        if n is None:
            return tuple(self._tokenizer.encode(self._language.system[role]))
        return self._numbered(role, n)

    @cache  # noqa: B019 - a layout lives as long as its run
    def _numbered(self, role: str, count: int) -> Tokens:
        """The system prompt of a role, lengthened by numbered rules and cut to `count` tokens."""
        rules = 0
        while True:
            numbered = "".join(self._language.filler.format(n=i + 1) for i in range(rules))
            tokens = self._tokenizer.encode(self._language.system[role] + numbered)
            if len(tokens) >= count:
                return tuple(tokens[:count])
            rules = 2 * rules + 1

    def another(self, prefix: Tokens) -> int:
        candidates = self._tokenizer.encode(self._language.system["translator"] + self._language.filler)
        return next(token for token in candidates if token not in prefix)

    def secret(self, avoid: Sequence[int]) -> tuple[str, ...]:
        while len(self._private(secret := proquints(self._rng))) != self._secret_tokens:
            pass
        return secret

    def write(self, name: str, prefix: Tokens, secret: tuple[str, ...], question: int, share: float) -> Prompt:
        private = self._private(secret)
        tail = self._tokenizer.encode(self._language.questions[question])
        tokens = (*self._bos, *prefix, *private, *tail)
        return Prompt(
            name=name,
            group=name[0],
            tokens=tokens,
            prefix_tokens=len(self._bos) + len(prefix),
            words=secret,
            secret=secret,
        )

    def _private(self, secret: tuple[str, ...]) -> list[int]:
        return self._tokenizer.encode(self._language.secret.format(secret=" ".join(secret)))

    def sample(self, length: int) -> Tokens:
        role = self._rng.choice(list(self._language.system))
        text = self._numbered(role, count=max(SAMPLE_TOKENS, 2 * length))
        begin = self._rng.randrange(len(text) - length)
        return text[begin : begin + length]

    def words(self, tokens: Sequence[int]) -> list[tuple[str, int]]:
        texts = self.texts(tokens)
        ends = list(accumulate(map(len, texts)))
        found = _PROQUINT.finditer("".join(texts))
        return [(match.group(), sum(end <= match.start() for end in ends)) for match in found]

    def texts(self, tokens: Sequence[int]) -> list[str]:
        return [self._tokenizer.decode([token]) for token in tokens]

    def text(self, tokens: Sequence[int]) -> str:
        return self._tokenizer.decode(tokens)
