"""A prompt: the token ids that are sent, and what in them is whose."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Prompt:
    """One request's prompt.

    `words` are all the words by which its content could be recognised elsewhere, in their order; the private ones,
    its passphrase, are `secret`.
    """

    name: str  # group and number, such as "A0"
    group: str  # A, B or C
    tokens: tuple[int, ...]
    prefix_tokens: int  # length of the part that its group's system prompt takes, BOS included
    words: tuple[str, ...]
    secret: tuple[str, ...]
