"""What an OpenAI-compatible server answers, read: tokens, logprobs and usage, in whichever form it gives them.

token_ids                       vLLM, asked with return_token_ids
logprobs.content[].id           llama.cpp
logprobs.tokens "token_id:17"   vLLM, asked with return_tokens_as_token_ids
text                            everybody; split by the tokenizer of the model folder, word by word as it comes
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvfence.adapters.api import EngineFaultError, EngineStartError
from kvfence.adapters.stream_session import Best, Emitted

NUMBERED = "token_id:"


@dataclass(frozen=True)
class Piece:
    """One event of a stream, or a whole answer. Tokens are None where it tells none."""

    text: str = ""
    tokens: tuple[int, ...] | None = None
    logprobs: tuple[float, ...] | None = None
    best: tuple[Best, ...] | None = None
    prompt_length: int | None = None  # tokens, as the server counts them
    length: int | None = None
    cached: int | None = None
    finish: str | None = None

    def emitted(self) -> list[Emitted]:
        """Its tokens, each with what is told of it."""
        tokens = self.tokens or ()
        n = len(tokens)
        logprobs: Sequence[float | None] = self.logprobs if self.logprobs and len(self.logprobs) == n else [None] * n
        best: Sequence[Best | None] = self.best if self.best and len(self.best) == n else [None] * n
        return [Emitted(*told) for told in zip(tokens, logprobs, best, strict=True)]


class Words:
    """The tokenizer of a model folder: text where ids cannot be sent, ids where only text comes back."""

    def __init__(self, folder: str) -> None:
        from tokenizers import Tokenizer

        file = Path(folder) / "tokenizer.json"
        if not file.is_file():
            raise EngineStartError(f"openai needs {file}, to know which tokens a text is made of")
        self._tokenizer = Tokenizer.from_file(str(file))
        config = json.loads((Path(folder) / "config.json").read_text(encoding="utf-8"))
        start = config.get("bos_token_id")
        self._start = start if isinstance(start, int) else None

    def some(self, n: int) -> tuple[int, ...]:
        """A prompt of `n` tokens, the first of a text among them, whose text is split into just those again."""
        found = () if self._start is None else (self._start,)
        special = self._tokenizer.get_added_tokens_decoder()
        for token in range(self._tokenizer.get_vocab_size()):
            if len(found) < n and token not in special and self.encode(self.decode((*found, token))) == (*found, token):
                found = (*found, token)
        return found

    def encode(self, text: str) -> tuple[int, ...]:
        """Token ids of a text, without special tokens."""
        return tuple(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def settled(self, text: str) -> tuple[int, ...]:
        """Token ids of a text that goes on, up to its last word, which may still grow."""
        found = self._tokenizer.encode(text, add_special_tokens=False)
        ids, words = list(found.ids), list(found.word_ids)
        last = words[-1] if words else None
        while ids and words[-1] == last:
            ids.pop(), words.pop()
            if last is None:
                break  # a special token is a word of its own
        return tuple(ids)

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of token ids, special tokens included."""
        text: str = self._tokenizer.decode(list(tokens), skip_special_tokens=False)
        return text


def read(event: Mapping[str, Any]) -> Piece:
    """One event, or a whole answer. Raises EngineFaultError for what has not the form of either."""
    try:
        usage = event.get("usage") or {}
        choices = event.get("choices") or []
        details = usage.get("prompt_tokens_details") or {}
        counts = (usage.get("prompt_tokens"), usage.get("completion_tokens"), details.get("cached_tokens"))
        if not all(count is None or isinstance(count, int) for count in counts):
            raise TypeError(f"usage {usage}")
        if not choices:
            return Piece("", None, None, None, *counts)
        choice = choices[0]
        tokens, logprobs, best = _tokens(choice)
        finish = choice.get("finish_reason")
        return Piece(
            str(choice.get("text") or ""), tokens, logprobs, best, *counts, None if finish is None else str(finish)
        )
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        reason = " ".join(str(error).split())[:120]
        raise EngineFaultError(
            f"the answer has not the form of a completion: {type(error).__name__}: {reason}"
        ) from error


Told = tuple[tuple[int, ...] | None, tuple[float, ...] | None, tuple[Best, ...] | None]


def _tokens(choice: Mapping[str, Any]) -> Told:
    told = choice.get("logprobs") or {}
    ids = choice.get("token_ids")
    if (content := told.get("content")) is not None:
        found = tuple(int(one["id"]) for one in content) if all("id" in one for one in content) else None
        best = (
            tuple(tuple((int(o["id"]), float(o["logprob"])) for o in one["top_logprobs"]) for one in content)
            if found
            else None
        )
        return tuple(ids) if ids else found, tuple(float(one["logprob"]) for one in content), best
    spelled: list[str] = told.get("tokens") or []
    logprobs = tuple(float(value) for value in told.get("token_logprobs") or ()) or None
    numbered = [number(text) for text in spelled]
    if not spelled or None in numbered:
        return tuple(int(id) for id in ids) if ids else None, logprobs, None
    return tuple(n for n in numbered if n is not None), logprobs, _best(told.get("top_logprobs") or [])


def _best(told: Sequence[Mapping[str, float]]) -> tuple[Best, ...] | None:
    """The best few of each position, where all are told by number."""
    found = []
    for position in told:
        pairs = [(number(text), float(value)) for text, value in position.items()]
        known = [(token, value) for token, value in pairs if token is not None]
        if len(known) < len(pairs):
            return None
        found.append(tuple(sorted(known, key=lambda pair: -pair[1])))
    return tuple(found) or None


def number(text: str) -> int | None:
    """The token that a text names by number, if it does."""
    rest = text.removeprefix(NUMBERED)
    return int(rest) if text.startswith(NUMBERED) and rest.isdecimal() else None
